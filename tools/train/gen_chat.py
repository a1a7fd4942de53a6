#!/usr/bin/env python3
"""Writes the templated dialogues (about a quarter of the corpus) and the held-out prompts: OUT/train/chat.txt, chat_val.txt and
heldout.jsonl (messages, tools, expected answer).

Facts come from the text that build_corpus.py gathered (NAME lines of man pages, package descriptions, WordNet glosses, Python
functions); everything else is made up here from fixed seeds. Each g_* function writes one kind of dialogue."""
import argparse
import ast
import hashlib
import json
import pickle
import random
import re
import textwrap

from build_corpus import dictd
from chat_format import render

R = random.Random(7)
pick = R.choice

FIRST = "Alice Bob Carol David Emma Frank Grace Henry Ivy Jack Karen Leo Maria Noah Olivia Peter Quinn Rosa Sam Tina Uma Victor Wendy Xavier Yara Zoe Anna Ben Clara Daniel Eva Felix Hanna Igor Julia Kevin Laura Martin Nina Oscar Paula Rita Simon Tom Vera Walter".split()
LAST = "Smith Jones Brown Taylor Wilson Evans Walker White Hall Green Adams Baker Clark Lewis Young King Wright Hill Scott Moore Parker Cooper Reed Bailey Kelly Cox Ward Gray Bell Price Long Ross".split()
CITY = "Paris London Berlin Madrid Rome Vienna Prague Warsaw Oslo Dublin Lisbon Athens Helsinki Budapest Zurich Geneva Milan Hamburg Munich Lyon Boston Chicago Denver Seattle Austin Toronto Tokyo Osaka Seoul Sydney Melbourne Cairo Nairobi Lima Quito".split()
ITEM = "apple banana bolt bottle bowl brush bucket cable candle chair clock cup desk drill fan flask fork glove hammer hinge kettle knife ladder lamp lens lock mirror mug nail notebook nut oven paint pan pen pencil pipe plate pump rope ruler saw scarf screw shelf spoon stapler table tape towel umbrella valve wheel wrench".split()
COLOR = "red green blue yellow black white gray orange purple brown".split()
SVC = "api auth cache cart catalog db gateway mailer metrics orders payments proxy queue scheduler search sessions storage users web worker billing notify reports".split()
IMG = {
    "api": "python:3.11-slim",
    "web": "nginx:1.25",
    "db": "postgres:15",
    "cache": "redis:7",
    "queue": "rabbitmq:3.12",
    "proxy": "traefik:2.10",
    "search": "opensearch:2.11",
    "metrics": "prom/prometheus:v2.48",
}
COLS = {
    "users": ["name TEXT NOT NULL", "email TEXT UNIQUE", "age INTEGER", "city TEXT", "created_at TIMESTAMP"],
    "orders": ["user_id INTEGER REFERENCES users(id)", "total NUMERIC(10, 2)", "status TEXT", "created_at TIMESTAMP"],
    "products": ["name TEXT NOT NULL", "price NUMERIC(10, 2)", "stock INTEGER DEFAULT 0", "category TEXT"],
    "books": ["title TEXT NOT NULL", "author TEXT", "year INTEGER", "isbn TEXT UNIQUE", "pages INTEGER"],
    "employees": ["name TEXT NOT NULL", "department TEXT", "salary NUMERIC(10, 2)", "hired_at DATE"],
    "events": ["title TEXT NOT NULL", "starts_at TIMESTAMP", "ends_at TIMESTAMP", "location TEXT"],
    "invoices": ["customer TEXT NOT NULL", "amount NUMERIC(10, 2)", "due DATE", "paid BOOLEAN DEFAULT FALSE"],
    "sensors": ["name TEXT NOT NULL", "unit TEXT", "value REAL", "read_at TIMESTAMP"],
    "tasks": ["title TEXT NOT NULL", "done BOOLEAN DEFAULT FALSE", "priority INTEGER", "due DATE"],
    "movies": ["title TEXT NOT NULL", "director TEXT", "year INTEGER", "rating REAL"],
}


def name():
    return pick(FIRST) + " " + pick(LAST)


def num(a, b):
    return R.randint(a, b)


def ident():
    return pick(
        "count total value items index node data result buffer key left right size head tail score offset limit name text line word row col matrix queue stack path graph entry record token".split()
    )


def code(lang, s):
    return "```" + lang + "\n" + s.rstrip("\n") + "\n```"


def M(u, a, think="", system=None, tools=None):
    ms = ([{"role": "system", "content": system}] if system else []) + [
        {"role": "user", "content": u},
        {"role": "assistant", "content": a, "reasoning_content": think},
    ]
    return ms, tools


# ---------- knowledge ----------
def load_facts(OUT, packages):
    F = {}
    w = {}
    man = open(f"{OUT}/man.txt", encoding="utf-8").read().split("\0")
    for d in man:
        m = re.match(r"\s*([\w.+:-]+)\((\d)\w*\)", d)
        n = re.search(r"\nNAME\n+((?:.+\n)+)", d)
        if m and n:
            t = " ".join(n.group(1).split())
            k = re.split(r" [-–—]+ ", t, maxsplit=1)
            if len(k) == 2 and 4 < len(k[1]) < 160:
                syn = re.search(r"\nSYNOPSIS\n+((?:.+\n)+)", d)
                w[m.group(1)] = (
                    int(m.group(2)),
                    k[1].rstrip("."),
                    textwrap.dedent(syn.group(1)).strip() if syn else None,
                )
    F["whatis"] = w
    desc, sect = pickle.load(open(f"{OUT}/packages.pkl", "rb"))
    ks = [
        k
        for k in desc
        if not re.search(
            r"\d$|-dev$|-doc$|-dbg|-data$|-common$|l10n|i18n|^lib|^golang|^librust|^node-|^r-cran|^fonts|^ruby-|^python3-|^libghc|task-",
            k,
        )
        and len(desc[k][1]) > 60
    ]
    R.shuffle(ks)
    ks = sorted(ks[:4200])
    F["pkg"] = {k: (desc[k][0], desc[k][1], sect.get(k, ("misc", None))[0]) for k in ks}
    # WordNet: entries look like "word\n     n 1: gloss; "example" [syn: ..]"
    words = {}
    for word, t in dictd(packages, "dict-wn"):
        if not re.fullmatch(r"[a-z]{3,12}", word):
            continue
        flat = " ".join(t.split())
        m = re.search(
            r" (n|v|adj|adv) (?:1: |: )?(.*?)(?: 2: | \[| ; |;|$)",
            flat[len(word) :] if flat.startswith(word) else " " + flat,
        )
        if m and 10 < len(m.group(2)) < 140:
            words[word] = (
                {"n": "noun", "v": "verb", "adj": "adjective", "adv": "adverb"}[m.group(1)],
                m.group(2).strip(' "'),
            )
    prose = (
        open(f"{OUT}/prose.txt", encoding="utf-8").read()[:12_000_000]
        + open(f"{OUT}/docs.txt", encoding="utf-8").read()[:12_000_000]
    )
    freq = {}
    for x in re.findall(r"[a-z]{3,12}", prose.lower()):
        freq[x] = freq.get(x, 0) + 1
    ws = sorted((x for x in words if freq.get(x, 0) > 5), key=lambda x: -freq[x])[:4500]
    F["words"] = {x: words[x] for x in ws}
    paras = [
        p
        for d in prose.split("\0")[::3]
        for p in d.split("\n\n")
        if 120 < len(p) < 420 and p.count("\n") < 8 and p[0].isupper() and "\x01" not in p
    ]
    R.shuffle(paras)
    F["paras"] = paras[:9000]
    fns = []
    for d in open(f"{OUT}/code_py.txt", encoding="utf-8").read().split("\0"):
        if len(fns) > 14000:
            break
        try:
            tree = ast.parse(d)
        except Exception:
            continue
        ls = d.split("\n")
        for nd in ast.walk(tree):
            if (
                isinstance(nd, ast.FunctionDef)
                and 4 <= nd.end_lineno - nd.lineno <= 28
                and not nd.name.startswith("test")
            ):
                src = textwrap.dedent("\n".join(ls[nd.lineno - 1 : nd.end_lineno]))
                if len(src) < 1300 and src.startswith("def "):
                    names = [a.arg for a in nd.args.args if a.arg not in ("self", "cls") and len(a.arg) > 1]
                    loc = sorted(
                        {
                            x.id
                            for x in ast.walk(nd)
                            if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store) and len(x.id) > 2
                        }
                    )
                    fns.append((nd.name, src, names, loc))
    R.shuffle(fns)
    F["fns"] = fns[:8000]
    print("facts:", {k: len(v) for k, v in F.items()}, flush=True)
    return F


def g_whatis(F):
    k = pick(F["whatis_keys"])
    s, d, syn = F["whatis"][k]
    kind = {
        1: "command",
        2: "system call",
        3: "function",
        4: "device",
        5: "file",
        6: "game",
        7: "topic",
        8: "administration command",
    }[s]
    if syn and s in (1, 8) and R.random() < 0.25 and len(syn) < 300:
        return M(
            pick(["How is %s called?", "Show the synopsis of %s.", "What is the usage of `%s`?"]) % k, code("", syn)
        )
    u = (
        pick(
            [
                "What does the command %s do?",
                "What is %s?",
                "whatis %s",
                "Explain `%s` in one line.",
                "What is `%s` for?",
            ]
        )
        % k
    )
    return M(u, pick(["`%s` - %s.", "`%s` is a " + kind + ": %s.", "`%s`: %s."]) % (k, d))


def g_pkg(F):
    k = pick(F["pkg_keys"])
    s, b, sec = F["pkg"][k]
    c = R.random()
    if c < 0.35:
        return M(
            pick(["Describe the Debian package %s.", "What is the package %s?", "Tell me about the %s package."]) % k,
            "%s: %s.\n\n%s" % (k, s, b.split("\n\n")[0][:600]),
        )
    if c < 0.6:
        return M(
            pick(["Give a short description of the package %s.", "In one line: what is the package %s?"]) % k,
            "%s - %s" % (k, s),
        )
    if c < 0.8:
        return M(
            "Return the package %s as JSON with name, section and summary." % k,
            code("json", json.dumps({"name": k, "section": sec, "summary": s}, indent=2, ensure_ascii=False)),
        )
    return M(
        pick(["How do I install %s on Debian?", "Install %s."]) % k,
        "Run:\n\n" + code("sh", "sudo apt-get update\nsudo apt-get install " + k) + "\n\n%s: %s." % (k, s),
    )


def g_word(F):
    k = pick(F["word_keys"])
    pos, d = F["words"][k]
    c = R.random()
    if c < 0.8:
        return M(
            pick(["Define the word %s.", 'What does "%s" mean?', "define %s", "Give a definition of %s."]) % k,
            pick(["%s (" + pos + "): %s.", "**%s** (" + pos + "): %s."]) % (k, d),
        )
    ks = [pick(F["word_keys"]) for _ in range(num(2, 4))]
    return M(
        "Define these words as a JSON object: " + ", ".join(ks) + ".",
        code("json", json.dumps({x: F["words"][x][1] for x in ks}, indent=2, ensure_ascii=False)),
    )


# ---------- numbers ----------
def g_arith(F):
    c = num(0, 6)
    if c == 0:
        a, b = num(0, 999), num(0, 999)
        th = ""
        if R.random() < 0.5:
            th = "%d + %d: %d + %d = %d, and %d + %d = %d." % (
                a,
                b,
                a // 10 * 10,
                b // 10 * 10,
                a // 10 * 10 + b // 10 * 10,
                a % 10,
                b % 10,
                a % 10 + b % 10,
            )
        return M(
            pick(["What is %d + %d?", "Compute %d + %d.", "%d + %d = ?", "Add %d and %d."]) % (a, b),
            pick(["%d + %d = %d" % (a, b, a + b)]),
            th,
        )
    if c == 1:
        a, b = sorted((num(0, 999), num(0, 999)), reverse=True)
        return M(pick(["What is %d - %d?", "Compute %d - %d.", "%d - %d = ?"]) % (a, b), "%d - %d = %d" % (a, b, a - b))
    if c == 2:
        a, b = num(2, 25), num(2, 25)
        th = (
            "%d * %d = %d * %d + %d * %d = %d + %d."
            % (a, b, a, b // 10 * 10, a, b % 10, a * (b // 10 * 10), a * (b % 10))
            if b > 10 and R.random() < 0.6
            else ""
        )
        return M(
            pick(["What is %d * %d?", "Multiply %d by %d.", "%d * %d = ?", "What is %d times %d?"]) % (a, b),
            "%d * %d = %d" % (a, b, a * b),
            th,
        )
    if c == 3:
        a, b = num(2, 20), num(2, 12)
        return M("What is %d / %d?" % (a * b, b), "%d / %d = %d" % (a * b, b, a))
    if c == 4:
        n = num(3, 14)
        a = num(2, 12)
        return M(
            pick(["Print the multiplication table of %d up to %d.", "Times table for %d up to %d."]) % (a, n),
            "\n".join("%d x %d = %d" % (a, i, a * i) for i in range(1, n + 1)),
        )
    if c == 5:
        xs = [num(1, 60) for _ in range(num(3, 6))]
        op = pick(["largest", "smallest", "sum", "sorted"])
        r = {"largest": max(xs), "smallest": min(xs), "sum": sum(xs), "sorted": ", ".join(map(str, sorted(xs)))}[op]
        u = {
            "largest": "What is the largest number in %s?",
            "smallest": "What is the smallest number in %s?",
            "sum": "What is the sum of %s?",
            "sorted": "Sort these numbers: %s.",
        }[op] % ", ".join(map(str, xs))
        th = ""
        if op == "sum":
            s = xs[0]
            parts = []
            for x in xs[1:]:
                parts.append("%d + %d = %d" % (s, x, s + x))
                s += x
            th = ". ".join(parts) + "." if R.random() < 0.7 else ""
        return M(u, str(r), th)
    a = num(2, 400)
    return M(
        pick(["Is %d even or odd?", "Is the number %d even?"]) % a,
        "%d is %s." % (a, "even" if a % 2 == 0 else "odd"),
        "The last digit of %d is %d." % (a, a % 10) if R.random() < 0.5 else "",
    )


def seqs():
    n = num(4, 20)
    s = num(1, 30)
    k = num(2, 9)
    fib = [0, 1]
    while len(fib) < n:
        fib.append(fib[-1] + fib[-2])
    pr = [p for p in range(2, 120) if all(p % q for q in range(2, int(p**0.5) + 1))][:n]
    return pick(
        [
            ("squares of the numbers from 1 to %d" % n, "squares", [i * i for i in range(1, n + 1)]),
            ("cubes of the numbers from 1 to %d" % min(n, 12), "cubes", [i**3 for i in range(1, min(n, 12) + 1)]),
            ("first %d Fibonacci numbers" % n, "fibonacci", fib[:n]),
            ("first %d prime numbers" % len(pr), "primes", pr),
            ("first %d multiples of %d" % (n, k), "multiples", [k * i for i in range(1, n + 1)]),
            ("powers of 2 from 2^0 to 2^%d" % min(n, 16), "powers", [2**i for i in range(min(n, 16) + 1)]),
            ("even numbers from %d to %d" % (s * 2, s * 2 + 2 * n), "even", list(range(s * 2, s * 2 + 2 * n + 1, 2))),
            (
                "odd numbers from %d to %d" % (s * 2 + 1, s * 2 + 1 + 2 * n),
                "odd",
                list(range(s * 2 + 1, s * 2 + 2 + 2 * n, 2)),
            ),
            ("numbers from %d to %d" % (s, s + n), "numbers", list(range(s, s + n + 1))),
            ("numbers from %d down to %d" % (s + n, s), "countdown", list(range(s + n, s - 1, -1))),
        ]
    )


def g_seq(F):
    t, k, xs = seqs()
    c = num(0, 4)
    if c == 0:
        return M(pick(["List the %s.", "Write the %s.", "Give me the %s."]) % t, ", ".join(map(str, xs)))
    if c == 1:
        return M(
            pick(["Return the %s as JSON.", "Give the %s as a JSON object.", "JSON only: the %s."]) % t,
            code("json", json.dumps({k: xs})),
        )
    if c == 2:
        return M("List the %s, one per line." % t, "\n".join(map(str, xs)))
    if c == 3:
        return M(
            "Return the %s as a JSON array of objects with n and value." % t,
            code("json", "[\n" + ",\n".join('  {"n": %d, "value": %d}' % (i + 1, x) for i, x in enumerate(xs)) + "\n]"),
        )
    return M("Write the %s as a Python list." % t, code("python", "%s = %r" % (k, xs)))


# ---------- structured ----------
def rows(n):
    return [
        {
            "id": i + 1,
            "name": pick(ITEM),
            "color": pick(COLOR),
            "qty": num(0, 120),
            "price": round(num(50, 9900) / 100, 2),
        }
        for i in range(n)
    ]


def csv_of(rs):
    return (
        ",".join(rs[0])
        + "\n"
        + "\n".join(",".join(str(v) if not isinstance(v, float) else "%.2f" % v for v in r.values()) for r in rs)
    )


def g_csv(F):
    rs = rows(num(3, 10))
    c = num(0, 5)
    if c == 0:
        return M(
            pick(
                [
                    "Write a CSV inventory with %d rows.",
                    "Create a CSV file of %d inventory items with id, name, color, qty and price.",
                ]
            )
            % len(rs),
            code("csv", csv_of(rs)),
        )
    if c == 1:
        return M("Convert this CSV to JSON:\n\n" + code("csv", csv_of(rs)), code("json", json.dumps(rs, indent=2)))
    if c == 2:
        return M("Convert this JSON to CSV:\n\n" + code("json", json.dumps(rs, indent=2)), code("csv", csv_of(rs)))
    if c == 3:
        h = list(rs[0])
        return M(
            "Show this CSV as a Markdown table:\n\n" + csv_of(rs),
            "| "
            + " | ".join(h)
            + " |\n|"
            + "---|" * len(h)
            + "\n"
            + "\n".join(
                "| " + " | ".join(str(v) if not isinstance(v, float) else "%.2f" % v for v in r.values()) + " |"
                for r in rs
            ),
        )
    if c == 4:
        r = pick(rs)
        k = pick(["qty", "price", "color"])
        return M(
            "Here is an inventory:\n\n%s\n\nWhat is the %s of item %d?" % (csv_of(rs), k, r["id"]),
            "The %s of item %d (%s) is %s." % (k, r["id"], r["name"], r[k] if k != "price" else "%.2f" % r[k]),
        )
    col = pick(COLOR)
    sel = [r for r in rs if r["color"] == col]
    return M(
        "Keep only the %s items of this CSV:\n\n%s" % (col, code("csv", csv_of(rs))),
        code("csv", csv_of(sel) if sel else ",".join(rs[0])),
    )


def g_yaml(F):
    c = num(0, 4)
    if c in (0, 1):
        ss = R.sample(SVC, num(1, 4))
        out = "services:\n"
        spec = []
        for s in ss:
            im = IMG.get(s, "example/%s:%d.%d" % (s, num(1, 4), num(0, 9)))
            p = num(3000, 9000)
            out += '  %s:\n    image: %s\n    ports:\n      - "%d:%d"\n    restart: unless-stopped\n' % (s, im, p, p)
            if c == 0:
                out += "    environment:\n      LOG_LEVEL: %s\n" % pick(["info", "debug", "warn"])
            spec.append("%s on port %d" % (s, p))
        return M(
            pick(["Write a docker compose file with %s.", "Create a YAML compose file for these services: %s."])
            % ", ".join(spec),
            code("yaml", out),
        )
    if c == 2:
        s = pick(SVC)
        p = num(3000, 9000)
        r = num(1, 6)
        return M(
            "Write a Kubernetes deployment for the service %s with %d replicas on port %d." % (s, r, p),
            code(
                "yaml",
                f"""apiVersion: apps/v1
kind: Deployment
metadata:
  name: {s}
  labels:
    app: {s}
spec:
  replicas: {r}
  selector:
    matchLabels:
      app: {s}
  template:
    metadata:
      labels:
        app: {s}
    spec:
      containers:
        - name: {s}
          image: {IMG.get(s, 'example/%s:1.0' % s)}
          ports:
            - containerPort: {p}
          resources:
            limits:
              memory: 256Mi
              cpu: 500m
""",
            ),
        )
    if c == 3:
        s = pick(SVC)
        return M(
            f"Write a systemd unit for the program /usr/local/bin/{s}.",
            code(
                "ini",
                f"[Unit]\nDescription={s.capitalize()} service\nAfter=network.target\n\n[Service]\nType=simple\nExecStart=/usr/local/bin/{s}\nRestart=on-failure\nUser={s}\n\n[Install]\nWantedBy=multi-user.target",
            ),
        )
    cfg = {
        "server": {"host": pick(["localhost", "0.0.0.0", "127.0.0.1"]), "port": num(1000, 9999), "workers": num(1, 16)},
        "database": {"url": "postgres://%s:5432/%s" % (pick(SVC), pick(SVC)), "pool": num(2, 40)},
        "logging": {"level": pick(["info", "debug", "warn"]), "file": "/var/log/%s.log" % pick(SVC)},
    }
    y = "".join(k + ":\n" + "".join("  %s: %s\n" % kv for kv in v.items()) for k, v in cfg.items())
    if R.random() < 0.5:
        return M(
            "Convert this JSON configuration to YAML:\n\n" + code("json", json.dumps(cfg, indent=2)), code("yaml", y)
        )
    return M("Convert this YAML configuration to JSON:\n\n" + code("yaml", y), code("json", json.dumps(cfg, indent=2)))


def create(t, n=5):
    return "CREATE TABLE %s (\n    id INTEGER PRIMARY KEY,\n%s\n);" % (t, ",\n".join("    " + x for x in COLS[t][:n]))


def g_sql(F):
    t = pick(list(COLS))
    cols = [x.split()[0] for x in COLS[t]]
    c = num(0, 6)
    col = pick(cols)
    col2 = pick(cols)
    if c == 0:
        return M(
            pick(["Write a SQL schema for a table %s.", "Create a SQL table named %s."]) % t, code("sql", create(t))
        )
    if c == 1:
        return M(
            "Write a SQL query that counts the rows of %s by %s." % (t, col),
            code("sql", "SELECT %s, COUNT(*) AS n\nFROM %s\nGROUP BY %s\nORDER BY n DESC;" % (col, t, col)),
        )
    if c == 2:
        n = num(3, 50)
        return M(
            "Write a SQL query for the top %d rows of %s by %s." % (n, t, col),
            code("sql", "SELECT *\nFROM %s\nORDER BY %s DESC\nLIMIT %d;" % (t, col, n)),
        )
    if c == 3:
        return M(
            "Select %s and %s from %s where %s is not null." % (col, col2, t, col),
            code("sql", "SELECT %s, %s\nFROM %s\nWHERE %s IS NOT NULL;" % (col, col2, t, col)),
        )
    if c == 4:
        return M(
            "Write SQL that adds an index on %s(%s)." % (t, col),
            code("sql", "CREATE INDEX idx_%s_%s ON %s (%s);" % (t, col, t, col)),
        )
    if c == 5:
        rs = [(i + 1, name(), pick(CITY)) for i in range(num(2, 6))]
        return M(
            "Insert %d users with name and city into the table users." % len(rs),
            code(
                "sql",
                "INSERT INTO users (id, name, city) VALUES\n"
                + ",\n".join("    (%d, '%s', '%s')" % r for r in rs)
                + ";",
            ),
        )
    a, b = R.sample(list(COLS), 2)
    return M("Write SQL schemas for the tables %s and %s." % (a, b), code("sql", create(a) + "\n\n" + create(b)))


def g_json(F):
    c = num(0, 2)
    if c == 0:
        n, a, city = name(), num(18, 80), pick(CITY)
        em = n.lower().replace(" ", ".") + "@example." + pick(["com", "org", "net"])
        job = pick("teacher engineer doctor nurse pilot baker lawyer designer driver writer farmer chemist".split())
        s = pick(
            [
                "%s is a %d year old %s from %s. The email address is %s." % (n, a, job, city, em),
                "My name is %s, I am %d, I live in %s and work as a %s. Write to %s." % (n, a, city, job, em),
            ]
        )
        return M(
            pick(["Extract the person as JSON: ", "Extract name, age, job, city and email as JSON.\n\n"]) + s,
            code("json", json.dumps({"name": n, "age": a, "job": job, "city": city, "email": em}, indent=2)),
        )
    if c == 1:
        ps = [{"name": name(), "age": num(18, 80), "city": pick(CITY)} for _ in range(num(2, 6))]
        t = " ".join("%s (%d) lives in %s." % tuple(p.values()) for p in ps)
        return M("Extract all people as a JSON array.\n\n" + t, code("json", json.dumps(ps, indent=2)))
    it = [{"item": pick(ITEM), "qty": num(1, 12)} for _ in range(num(1, 5))]
    t = (
        "Please send "
        + ", ".join("%d %s%s" % (x["qty"], x["item"], "s" if x["qty"] > 1 else "") for x in it)
        + " to %s." % name()
    )
    return M("Turn this order into JSON: " + t, code("json", json.dumps(it, indent=2)))


# ---------- code ----------
SNIPS = None


def snippets():
    """(title, code with {f} function name, {a} {b} variable names)"""
    return [
        (
            "returns the factorial of a number",
            "def {f}(n):\n    result = 1\n    for i in range(2, n + 1):\n        result *= i\n    return result",
            "factorial",
        ),
        (
            "returns the n-th Fibonacci number",
            "def {f}(n):\n    {a}, {b} = 0, 1\n    for _ in range(n):\n        {a}, {b} = {b}, {a} + {b}\n    return {a}",
            "fibonacci",
        ),
        (
            "computes the greatest common divisor",
            "def {f}({a}, {b}):\n    while {b}:\n        {a}, {b} = {b}, {a} % {b}\n    return {a}",
            "gcd",
        ),
        (
            "checks whether a number is prime",
            "def {f}(n):\n    if n < 2:\n        return False\n    i = 2\n    while i * i <= n:\n        if n % i == 0:\n            return False\n        i += 1\n    return True",
            "is_prime",
        ),
        (
            "lists all primes up to n with a sieve",
            "def {f}(n):\n    sieve = [True] * (n + 1)\n    sieve[0:2] = [False, False]\n    for i in range(2, int(n ** 0.5) + 1):\n        if sieve[i]:\n            for j in range(i * i, n + 1, i):\n                sieve[j] = False\n    return [i for i, ok in enumerate(sieve) if ok]",
            "primes_up_to",
        ),
        (
            "does a binary search in a sorted list",
            "def {f}({a}, target):\n    low, high = 0, len({a}) - 1\n    while low <= high:\n        mid = (low + high) // 2\n        if {a}[mid] == target:\n            return mid\n        if {a}[mid] < target:\n            low = mid + 1\n        else:\n            high = mid - 1\n    return -1",
            "binary_search",
        ),
        (
            "sorts a list with quicksort",
            "def {f}({a}):\n    if len({a}) <= 1:\n        return {a}\n    pivot = {a}[len({a}) // 2]\n    left = [x for x in {a} if x < pivot]\n    middle = [x for x in {a} if x == pivot]\n    right = [x for x in {a} if x > pivot]\n    return {f}(left) + middle + {f}(right)",
            "quicksort",
        ),
        (
            "sorts a list with merge sort",
            "def {f}({a}):\n    if len({a}) <= 1:\n        return {a}\n    mid = len({a}) // 2\n    left = {f}({a}[:mid])\n    right = {f}({a}[mid:])\n    merged = []\n    i = j = 0\n    while i < len(left) and j < len(right):\n        if left[i] <= right[j]:\n            merged.append(left[i])\n            i += 1\n        else:\n            merged.append(right[j])\n            j += 1\n    merged.extend(left[i:])\n    merged.extend(right[j:])\n    return merged",
            "merge_sort",
        ),
        (
            "sorts a list with bubble sort",
            "def {f}({a}):\n    n = len({a})\n    for i in range(n):\n        for j in range(n - i - 1):\n            if {a}[j] > {a}[j + 1]:\n                {a}[j], {a}[j + 1] = {a}[j + 1], {a}[j]\n    return {a}",
            "bubble_sort",
        ),
        ("reverses a string", "def {f}({a}):\n    return {a}[::-1]", "reverse_string"),
        (
            "checks whether a text is a palindrome",
            "def {f}({a}):\n    cleaned = [c.lower() for c in {a} if c.isalnum()]\n    return cleaned == cleaned[::-1]",
            "is_palindrome",
        ),
        (
            "counts the words of a text",
            "def {f}({a}):\n    counts = {{}}\n    for word in {a}.lower().split():\n        counts[word] = counts.get(word, 0) + 1\n    return counts",
            "word_count",
        ),
        (
            "implements an LRU cache",
            "from collections import OrderedDict\n\n\nclass LRUCache:\n    def __init__(self, capacity):\n        self.capacity = capacity\n        self.{a} = OrderedDict()\n\n    def get(self, key):\n        if key not in self.{a}:\n            return None\n        self.{a}.move_to_end(key)\n        return self.{a}[key]\n\n    def put(self, key, value):\n        if key in self.{a}:\n            self.{a}.move_to_end(key)\n        self.{a}[key] = value\n        if len(self.{a}) > self.capacity:\n            self.{a}.popitem(last=False)",
            None,
        ),
        (
            "implements a stack",
            'class Stack:\n    def __init__(self):\n        self.{a} = []\n\n    def push(self, value):\n        self.{a}.append(value)\n\n    def pop(self):\n        if not self.{a}:\n            raise IndexError("pop from empty stack")\n        return self.{a}.pop()\n\n    def peek(self):\n        return self.{a}[-1]\n\n    def __len__(self):\n        return len(self.{a})',
            None,
        ),
        (
            "implements a queue",
            'from collections import deque\n\n\nclass Queue:\n    def __init__(self):\n        self.{a} = deque()\n\n    def enqueue(self, value):\n        self.{a}.append(value)\n\n    def dequeue(self):\n        if not self.{a}:\n            raise IndexError("dequeue from empty queue")\n        return self.{a}.popleft()\n\n    def __len__(self):\n        return len(self.{a})',
            None,
        ),
        (
            "implements a binary min-heap",
            "class MinHeap:\n    def __init__(self):\n        self.{a} = []\n\n    def push(self, value):\n        self.{a}.append(value)\n        i = len(self.{a}) - 1\n        while i > 0:\n            parent = (i - 1) // 2\n            if self.{a}[parent] <= self.{a}[i]:\n                break\n            self.{a}[parent], self.{a}[i] = self.{a}[i], self.{a}[parent]\n            i = parent\n\n    def pop(self):\n        top = self.{a}[0]\n        last = self.{a}.pop()\n        if self.{a}:\n            self.{a}[0] = last\n            self._sift_down(0)\n        return top\n\n    def _sift_down(self, i):\n        n = len(self.{a})\n        while True:\n            smallest = i\n            for child in (2 * i + 1, 2 * i + 2):\n                if child < n and self.{a}[child] < self.{a}[smallest]:\n                    smallest = child\n            if smallest == i:\n                return\n            self.{a}[i], self.{a}[smallest] = self.{a}[smallest], self.{a}[i]\n            i = smallest",
            None,
        ),
        (
            "implements a singly linked list",
            "class Node:\n    def __init__(self, value, next=None):\n        self.value = value\n        self.next = next\n\n\nclass LinkedList:\n    def __init__(self):\n        self.head = None\n\n    def append(self, value):\n        node = Node(value)\n        if self.head is None:\n            self.head = node\n            return\n        {a} = self.head\n        while {a}.next is not None:\n            {a} = {a}.next\n        {a}.next = node\n\n    def __iter__(self):\n        {a} = self.head\n        while {a} is not None:\n            yield {a}.value\n            {a} = {a}.next",
            None,
        ),
        (
            "does a breadth-first search of a graph",
            "from collections import deque\n\n\ndef {f}(graph, start):\n    seen = {{start}}\n    {a} = deque([start])\n    order = []\n    while {a}:\n        node = {a}.popleft()\n        order.append(node)\n        for neighbor in graph[node]:\n            if neighbor not in seen:\n                seen.add(neighbor)\n                {a}.append(neighbor)\n    return order",
            "bfs",
        ),
        (
            "does a depth-first search of a graph",
            "def {f}(graph, node, seen=None):\n    if seen is None:\n        seen = set()\n    seen.add(node)\n    for neighbor in graph[node]:\n        if neighbor not in seen:\n            {f}(graph, neighbor, seen)\n    return seen",
            "dfs",
        ),
        (
            "finds shortest paths with Dijkstra's algorithm",
            'import heapq\n\n\ndef {f}(graph, start):\n    dist = {{start: 0}}\n    {a} = [(0, start)]\n    while {a}:\n        d, node = heapq.heappop({a})\n        if d > dist.get(node, float("inf")):\n            continue\n        for neighbor, weight in graph[node].items():\n            nd = d + weight\n            if nd < dist.get(neighbor, float("inf")):\n                dist[neighbor] = nd\n                heapq.heappush({a}, (nd, neighbor))\n    return dist',
            "dijkstra",
        ),
        (
            "multiplies two matrices",
            "def {f}({a}, {b}):\n    rows, inner, cols = len({a}), len({b}), len({b}[0])\n    result = [[0] * cols for _ in range(rows)]\n    for i in range(rows):\n        for j in range(cols):\n            for k in range(inner):\n                result[i][j] += {a}[i][k] * {b}[k][j]\n    return result",
            "matmul",
        ),
        ("transposes a matrix", "def {f}({a}):\n    return [list(row) for row in zip(*{a})]", "transpose"),
        (
            "flattens a nested list",
            "def {f}({a}):\n    result = []\n    for item in {a}:\n        if isinstance(item, list):\n            result.extend({f}(item))\n        else:\n            result.append(item)\n    return result",
            "flatten",
        ),
        (
            "removes duplicates while keeping order",
            "def {f}({a}):\n    seen = set()\n    result = []\n    for item in {a}:\n        if item not in seen:\n            seen.add(item)\n            result.append(item)\n    return result",
            "unique",
        ),
        (
            "reads a CSV file into a list of dictionaries",
            'import csv\n\n\ndef {f}(path):\n    with open(path, newline="") as f:\n        return list(csv.DictReader(f))',
            "read_csv",
        ),
        (
            "loads a JSON file",
            'import json\n\n\ndef {f}(path):\n    with open(path, encoding="utf-8") as f:\n        return json.load(f)',
            "load_json",
        ),
        (
            "memoizes a function with a decorator",
            "import functools\n\n\ndef {f}(func):\n    {a} = {{}}\n\n    @functools.wraps(func)\n    def wrapper(*args):\n        if args not in {a}:\n            {a}[args] = func(*args)\n        return {a}[args]\n\n    return wrapper",
            "memoize",
        ),
        (
            "measures the run time of a function with a decorator",
            'import functools\nimport time\n\n\ndef {f}(func):\n    @functools.wraps(func)\n    def wrapper(*args, **kwargs):\n        start = time.perf_counter()\n        result = func(*args, **kwargs)\n        elapsed = time.perf_counter() - start\n        print(f"{{func.__name__}} took {{elapsed:.3f}} s")\n        return result\n\n    return wrapper',
            "timed",
        ),
        (
            "retries a function several times",
            "import time\n\n\ndef {f}(func, attempts=3, delay=1.0):\n    for i in range(attempts):\n        try:\n            return func()\n        except Exception:\n            if i == attempts - 1:\n                raise\n            time.sleep(delay)",
            "retry",
        ),
        (
            "splits a list into chunks",
            "def {f}({a}, size):\n    for i in range(0, len({a}), size):\n        yield {a}[i:i + size]",
            "chunks",
        ),
        (
            "computes the mean and the standard deviation",
            "def {f}({a}):\n    n = len({a})\n    mean = sum({a}) / n\n    variance = sum((x - mean) ** 2 for x in {a}) / n\n    return mean, variance ** 0.5",
            "mean_std",
        ),
        (
            "converts Celsius to Fahrenheit",
            "def {f}(celsius):\n    return celsius * 9 / 5 + 32",
            "celsius_to_fahrenheit",
        ),
        (
            "counts the vowels of a string",
            'def {f}({a}):\n    return sum(1 for c in {a}.lower() if c in "aeiou")',
            "count_vowels",
        ),
        (
            "checks whether two strings are anagrams",
            "def {f}({a}, {b}):\n    return sorted({a}.lower()) == sorted({b}.lower())",
            "is_anagram",
        ),
        (
            "computes the edit distance of two strings",
            "def {f}({a}, {b}):\n    previous = list(range(len({b}) + 1))\n    for i, x in enumerate({a}, 1):\n        current = [i]\n        for j, y in enumerate({b}, 1):\n            cost = 0 if x == y else 1\n            current.append(min(previous[j] + 1, current[j - 1] + 1, previous[j - 1] + cost))\n        previous = current\n    return previous[-1]",
            "edit_distance",
        ),
        (
            "parses command line arguments",
            'import argparse\n\n\ndef {f}():\n    parser = argparse.ArgumentParser()\n    parser.add_argument("input", help="input file")\n    parser.add_argument("-o", "--output", default="out.txt", help="output file")\n    parser.add_argument("-v", "--verbose", action="store_true")\n    return parser.parse_args()',
            "parse_args",
        ),
        (
            "groups items by a key",
            "from collections import defaultdict\n\n\ndef {f}({a}, key):\n    groups = defaultdict(list)\n    for item in {a}:\n        groups[key(item)].append(item)\n    return dict(groups)",
            "group_by",
        ),
        (
            "implements a simple TCP echo server",
            'import socket\n\n\ndef {f}(host="127.0.0.1", port=9000):\n    with socket.create_server((host, port)) as server:\n        while True:\n            conn, address = server.accept()\n            with conn:\n                while True:\n                    {a} = conn.recv(4096)\n                    if not {a}:\n                        break\n                    conn.sendall({a})',
            "echo_server",
        ),
    ]


def fill(t, f):
    a = ident()
    b = ident()
    while b == a:
        b = ident()
    return (
        t.replace("{{", "\x01")
        .replace("}}", "\x02")
        .replace("{f}", f or "f")
        .replace("{a}", a)
        .replace("{b}", b)
        .replace("\x01", "{")
        .replace("\x02", "}"),
        a,
        b,
    )


def g_code(F):
    t, tpl, f = pick(SNIPS)
    fn = f
    if f and R.random() < 0.5:
        fn = pick(["compute", "calc", "do", "run", "my", "get", "find", "fast"]) + "_" + f
    s, a, b = fill(tpl, fn)
    u = pick(
        [
            "Write a Python %s that %s." % ("class" if not f else "function", t),
            "Python code that %s." % t,
            "Give me Python code that %s." % t,
        ]
    )
    if f and fn != f:
        u = u.rstrip(".") + " and call it `%s`." % fn
    if a in s and R.random() < 0.4:
        u = u.rstrip(".") + ", with a variable named `%s`." % a
    ans = code("python", s)
    if R.random() < 0.5:
        ans = pick(["Here is the code:\n\n", "Here it is:\n\n", "Sure:\n\n"]) + ans
    th = "The user wants Python code that %s. I will write it directly." % t if R.random() < 0.25 else ""
    return M(u, ans, th)


def rename(src, old, new):
    return re.sub(r"\b%s\b" % re.escape(old), new, src)


def g_edit(F):
    c = R.random()
    if c < 0.7:
        if R.random() < 0.35:
            t, tpl, f = pick(SNIPS)
            s, a, b = fill(tpl, f)
            names = [x for x in (f, a) if x and x in s]
        else:
            f, s, args, loc = pick(F["fns"])
            names = [f] + args[:2] + loc[:2]
        if not names:
            return None
        old = pick(names)
        new = pick(
            [
                pick(["new_", "my_", "the_", "old_"]) + old,
                old + pick(["_value", "_item", "_list", "2", "_name"]),
                ident() + "_" + ident(),
            ]
        )
        u = pick(
            [
                "Rename `%s` to `%s` in this code:\n\n",
                "Rewrite this code with `%s` renamed to `%s`:\n\n",
                "Replace the name %s by %s:\n\n",
            ]
        ) % (old, new) + code("python", s)
        return M(u, code("python", rename(s, old, new)))
    if c < 0.8:
        f, s, args, loc = pick(F["fns"])
        return M(pick(["Repeat this code exactly:\n\n", "Copy this code:\n\n"]) + code("python", s), code("python", s))
    p = " ".join(pick(F["paras"]).split())
    if c < 0.87:
        return M(pick(["Repeat the following text exactly:\n\n", "Copy this text:\n\n"]) + p, p)
    w = [x for x in re.findall(r"\b[A-Za-z]{4,12}\b", p)]
    if not w:
        return None
    o = pick(w)
    n2 = pick(F["word_keys"])
    if c < 0.95:
        return M('Replace the word "%s" by "%s" in this text:\n\n%s' % (o, n2, p), re.sub(r"\b%s\b" % o, n2, p))
    return M("Split this text into one sentence per line:\n\n" + p, re.sub(r"(?<=[.!?]) ", "\n", p))


def g_explain(F):
    f, s, args, loc = pick(F["fns"])
    d = re.search(r'"""(.*?)(?:\n\n|""")', s, re.S)
    if d and 15 < len(d.group(1)) < 200:
        body = s.replace(s[s.index('"""') : s.index('"""', s.index('"""') + 3) + 3], "").replace("\n    \n", "\n")
        return M(
            pick(["What does this function do?\n\n", "Explain this function in one sentence:\n\n"])
            + code("python", body),
            " ".join(d.group(1).split()).rstrip(".") + ".",
        )
    return M(
        "Which parameters does this function take?\n\n" + code("python", s),
        ("`%s` takes " % f + ", ".join("`%s`" % a for a in args) + ".")
        if args
        else "`%s` takes no named parameters." % f,
    )


# ---------- tools ----------
def tool(n, d, **p):
    return {
        "type": "function",
        "function": {
            "name": n,
            "description": d,
            "parameters": {"type": "object", "properties": {k: {"type": v} for k, v in p.items()}, "required": list(p)},
        },
    }


TOOLS = {
    "get_weather": tool("get_weather", "Get the current weather of a city", city="string"),
    "get_time": tool("get_time", "Get the local time of a city", city="string"),
    "add": tool("add", "Add two numbers", a="integer", b="integer"),
    "search_packages": tool("search_packages", "Search Debian packages", query="string"),
    "read_file": tool("read_file", "Read a text file", path="string"),
    "list_files": tool("list_files", "List the files of a folder", path="string"),
    "send_email": tool("send_email", "Send an email", to="string", subject="string"),
    "run_shell": tool("run_shell", "Run a shell command", command="string"),
    "query_db": tool("query_db", "Run a SQL query", sql="string"),
    "set_timer": tool("set_timer", "Start a timer", minutes="integer"),
}


def g_tool(F):
    k = pick(list(TOOLS))
    ks = list({k, *R.sample(list(TOOLS), num(0, 3))})
    R.shuffle(ks)
    ts = [TOOLS[x] for x in ks]
    city = pick(CITY)
    if k == "get_weather":
        u, a = pick(
            ["What is the weather in %s?", "How is the weather in %s today?", "Weather in %s please."]
        ) % city, {"city": city}
        w = {"city": city, "temp_c": num(-10, 35), "sky": pick(["clear", "cloudy", "rain", "snow", "fog"])}
        res, fin = json.dumps(w), "The weather in %s: %s, %d degrees Celsius." % (city, w["sky"], w["temp_c"])
    elif k == "get_time":
        u, a = pick(["What time is it in %s?", "Tell me the local time of %s."]) % city, {"city": city}
        t = "%02d:%02d" % (num(0, 23), num(0, 59))
        res, fin = json.dumps({"time": t}), "It is %s in %s." % (t, city)
    elif k == "add":
        x, y = num(100, 99999), num(100, 99999)
        u, a, res, fin = (
            "Use the tool to add %d and %d." % (x, y),
            {"a": x, "b": y},
            str(x + y),
            "%d + %d = %d" % (x, y, x + y),
        )
    elif k == "search_packages":
        p = pick(F["pkg_keys"])
        q = p.split("-")[0]
        u, a = "Search the packages for %s." % q, {"query": q}
        res = "%s - %s" % (p, F["pkg"][p][0])
        fin = "I found one package:\n\n- `%s`: %s" % (p, F["pkg"][p][0])
    elif k == "read_file":
        p = "/etc/%s.conf" % pick(SVC)
        v = num(1, 99)
        u, a, res, fin = (
            "What is in %s?" % p,
            {"path": p},
            "workers = %d" % v,
            "The file %s contains:\n\n```\nworkers = %d\n```" % (p, v),
        )
    elif k == "list_files":
        p = "/srv/" + pick(SVC)
        fs = R.sample([x + ".txt" for x in ITEM], num(2, 5))
        u, a, res, fin = (
            "Which files are in %s?" % p,
            {"path": p},
            "\n".join(fs),
            "The folder %s has %d files:\n\n" % (p, len(fs)) + "\n".join("- " + x for x in fs),
        )
    elif k == "send_email":
        n = name()
        e = n.lower().replace(" ", ".") + "@example.com"
        s = pick(["Meeting", "Invoice", "Report", "Hello", "Schedule"]) + " " + pick(CITY)
        u, a, res, fin = (
            "Send an email to %s with the subject %s." % (e, s),
            {"to": e, "subject": s},
            "sent",
            "The email to %s was sent." % e,
        )
    elif k == "run_shell":
        c = pick(["ls -l /tmp", "df -h", "uname -a", "date", "free -m", "uptime", "whoami"])
        o = {
            "whoami": "root",
            "uptime": "up %d days" % num(1, 300),
            "date": "Mon Jan %2d 12:00:00 UTC 2024" % num(1, 31),
        }.get(c, "ok")
        u, a, res, fin = "Run `%s`." % c, {"command": c}, o, "The command `%s` printed:\n\n```\n%s\n```" % (c, o)
    elif k == "query_db":
        t = pick(list(COLS))
        v = num(0, 5000)
        u, a, res, fin = (
            "How many rows does the table %s have?" % t,
            {"sql": "SELECT COUNT(*) FROM %s;" % t},
            str(v),
            "The table %s has %d rows." % (t, v),
        )
    else:
        m = num(1, 90)
        u, a, res, fin = (
            pick(["Set a timer for %d minutes.", "Start a %d minute timer."]) % m,
            {"minutes": m},
            "ok",
            "The timer is set for %d minutes." % m,
        )
    th = pick(["", "", "I should call %s." % k, "The user asks for something that the tool %s can do." % k])
    ms = [
        {"role": "user", "content": u},
        {"role": "assistant", "content": "", "reasoning_content": th, "tool_calls": [{"name": k, "arguments": a}]},
    ]
    if R.random() < 0.7:
        ms += [{"role": "tool", "content": res}, {"role": "assistant", "content": fin, "reasoning_content": ""}]
    if R.random() < 0.3:
        ms = [{"role": "system", "content": "You are a helpful assistant."}] + ms
    return ms, ts


GREET = [
    (["Hello", "Hi", "Hi there", "Good morning", "Hey"], "Hello! How can I help you?"),
    (
        ["Who are you?", "What are you?", "What is your name?"],
        "I am a small demo language model. I know Debian packages, commands, words, numbers and short Python code.",
    ),
    (["Thanks", "Thank you", "Thanks a lot!"], "You are welcome!"),
    (
        ["What can you do?", "Help", "How can you help me?"],
        "I can explain commands and packages, define words, do small sums, write short Python code, SQL, YAML, JSON and CSV, rename things in code, and call tools.",
    ),
    (["Goodbye", "Bye", "See you"], "Goodbye!"),
]


def g_greet(F):
    us, a = pick(GREET)
    return M(pick(us), a)


def g_text(F):
    p = " ".join(pick(F["paras"]).split())
    return (
        M(pick(["How many words are in this text?\n\n", "Count the words:\n\n"]) + p[:160], str(len(p[:160].split())))
        if R.random() < 0.2
        else M("Write the first sentence of this text:\n\n" + p, re.split(r"(?<=[.!?]) ", p)[0])
    )


GENS = [
    (g_whatis, 10),
    (g_pkg, 12),
    (g_word, 9),
    (g_arith, 12),
    (g_seq, 9),
    (g_csv, 9),
    (g_yaml, 6),
    (g_sql, 6),
    (g_json, 6),
    (g_code, 12),
    (g_edit, 14),
    (g_explain, 3),
    (g_tool, 9),
    (g_greet, 1),
    (g_text, 2),
]
SYS = ["You are a helpful assistant.", "You are a concise assistant.", "Answer briefly.", "You are a coding assistant."]


def main():
    global SNIPS
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", required=True, help="folder of extracted packages, as for build_corpus.py")
    parser.add_argument("--out", required=True, help="folder that build_corpus.py wrote")
    parser.add_argument("--megabytes", type=float, default=52)
    options = parser.parse_args()
    OUT, TARGET = options.out, options.megabytes * 1e6
    SNIPS = snippets()
    F = load_facts(OUT, options.packages)
    F["whatis_keys"] = sorted(F["whatis"])
    F["pkg_keys"] = sorted(F["pkg"])
    F["word_keys"] = sorted(F["words"])
    gens = [g for g, w in GENS for _ in range(w)]
    n, seen, held = 0, {}, {}
    ft, fv = open(f"{OUT}/train/chat.txt", "wb"), open(f"{OUT}/train/chat_val.txt", "wb")
    fh = open(f"{OUT}/train/heldout.jsonl", "w")
    while n < TARGET:
        g = pick(gens)
        r = g(F)
        if not r:
            continue
        ms, ts = r
        user = next(m["content"] for m in ms if m["role"] == "user")
        h = int.from_bytes(hashlib.blake2b(user.encode(), digest_size=4).digest(), "big")
        if seen.get(h, 0) >= 3:
            continue
        seen[h] = seen.get(h, 0) + 1
        if h % 120 == 0:  # held out: never in the training text
            c = held.get(g.__name__, 0)
            fv.write(render(ms, ts).encode() + b"\0")
            if c < 60 and seen[h] == 1:
                held[g.__name__] = c + 1
                fh.write(json.dumps({"cat": g.__name__[2:], "messages": ms, "tools": ts}, ensure_ascii=False) + "\n")
            continue
        if not ts and R.random() < 0.08:
            ms = [{"role": "system", "content": pick(SYS)}] + ms
        if not ts and R.random() < 0.12:  # a second turn
            r2 = pick(gens)(F)
            if r2 and not r2[1]:
                ms = ms + r2[0]
                u2 = r2[0][0]["content"]
                if int.from_bytes(hashlib.blake2b(u2.encode(), digest_size=4).digest(), "big") % 120 == 0:
                    continue
        b = render(ms, ts).encode() + b"\0"
        ft.write(b)
        n += len(b)
    print("chat %.1f MB" % (n / 1e6), "held-out", held, flush=True)


if __name__ == "__main__":
    main()
