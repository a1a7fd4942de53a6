#!/usr/bin/env python3
"""Builds the natural text of the training corpus from Debian packages: one file per domain, documents separated by NUL bytes,
paragraphs that occurred before left out. Needs mandoc for the man pages.

README.md says where each input comes from. Afterwards each domain is cut to CAPS, whole documents only."""
import argparse
import glob
import gzip
import hashlib
import html
import os
import pickle
import random
import re
import subprocess
from multiprocessing import Pool

CROOT = SRCS = OUT = None  # folders: extracted packages, sources of C programs, output (see main)
random.seed(1)
SEEN = set()
BAD = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def clean(t):
    return BAD.sub("", t.replace("\r\n", "\n").replace("\r", "\n"))


def dedup(text, minlen=120):
    """Drops paragraphs already seen anywhere in the corpus."""
    out = []
    for p in text.split("\n\n"):
        if len(p) >= minlen:
            h = hashlib.blake2b(re.sub(r"\s+", " ", p).encode(), digest_size=8).digest()
            if h in SEEN:
                continue
            SEEN.add(h)
        out.append(p)
    return "\n\n".join(out).strip("\n")


def read(path, limit=None):
    try:
        if path.endswith(".gz") or path.endswith(".dz"):
            b = gzip.open(path).read()
        else:
            b = open(path, "rb").read()
        if limit:
            b = b[:limit]
        return clean(b.decode("utf-8"))
    except Exception:
        return None


def write(domain, docs, cap_mb, minlen=200, shuffle=True, maxdoc=60000):
    docs = list(docs)
    if shuffle:
        random.shuffle(docs)
    n = k = 0
    with open(f"{OUT}/{domain}.txt", "wb") as f:
        for d in docs:
            if not d:
                continue
            d = dedup(d)
            if len(d) < minlen:
                continue
            if len(d) > maxdoc:
                d = d[:maxdoc]
                d = d[: d.rfind("\n") + 1]
            b = d.encode() + b"\0"
            f.write(b)
            n += len(b)
            k += 1
            if n > cap_mb * 1e6:
                break
    print(f"{domain:10s} {n/1e6:7.1f} MB {k} docs", flush=True)


def walk(
    root,
    exts,
    maxsize=200_000,
    minsize=300,
    skip=("test_data", "/data/", "min.js", ".min.", "locale", "encodings/", "unicode"),
):
    for d, _, fs in os.walk(root):
        for f in fs:
            if f.endswith(exts):
                p = os.path.join(d, f)
                if any(s in p for s in skip):
                    continue
                try:
                    if os.path.islink(p) or not (minsize <= os.path.getsize(p) <= maxsize):
                        continue
                except OSError:
                    continue
                yield p


# Megabytes of each domain that training uses.
CAPS = {
    "prose": 25,
    "docs": 24,
    "man": 18,
    "pkg": 14,
    "code_py": 32,
    "code_js": 10,
    "code_c": 18,
    "code_pl": 8,
    "struct": 5,
}


def cap(domain):
    path = f"{OUT}/{domain}.txt"
    text = open(path, "rb").read(int(CAPS[domain] * 1e6))
    open(f"{OUT}/train/{domain}.txt", "wb").write(text[: text.rfind(b"\0") + 1])


TAG = re.compile(r"<[^>]+>")


def html2text(path):
    t = read(path)
    if not t:
        return None
    t = re.sub(r"(?is)<(script|style|head|nav|footer)[^>]*>.*?</\1>", "", t)
    m = re.search(r'(?is)<div class="(body|sect1|section|chapter|book|refentry)[^"]*"[^>]*>.*', t)
    if m:
        t = m.group(0)
    pre = []

    def keep(m):
        pre.append(html.unescape(TAG.sub("", m.group(1))))
        return "\n\n\x01%d\x01\n\n" % (len(pre) - 1)

    t = re.sub(r"(?is)<pre[^>]*>(.*?)</pre>", keep, t)
    t = re.sub(r"\s+", " ", t)
    t = re.sub(r"(?i)<(p|div|h[1-6]|li|tr|dt|dd|table|ul|ol|section|blockquote)\b[^>]*>", "\n\n", t)
    t = re.sub(r"(?i)<br */?>", "\n", t)
    t = re.sub(r"(?i)</t[dh]>", "  ", t)
    t = html.unescape(TAG.sub("", t)).replace("¶", "").replace("\u200b", "").replace("\xa0", " ")
    t = "\n".join(x.strip() for x in t.split("\n"))
    t = re.sub(r"\n{3,}", "\n\n", t)
    t = re.sub("\x01(\\d+)\x01", lambda m: pre[int(m.group(1))].strip("\n"), t)
    return t.strip()


def man2text(path):
    try:
        src = gzip.open(path).read() if path.endswith(".gz") else open(path, "rb").read()
        if src.startswith(b".so "):
            return None
        r = subprocess.run(["mandoc", "-T", "utf8", "-O", "width=88"], input=src, capture_output=True, timeout=20)
        t = r.stdout.decode("utf-8", "replace")
        t = re.sub(r".\x08", "", t)
        t = clean(t)
        t = t.replace("\u2010", "-").replace("\u2212", "-")
        # rendered pages indent by 5..7 columns: take 5 off to save tokens
        t = "\n".join(re.sub(r"^ {5}", "", x).rstrip() for x in t.split("\n"))
        return re.sub(r"\n{3,}", "\n\n", t)
    except Exception:
        return None


def packages(available):
    """(descriptions, sections) of all Debian packages, from apt's lists."""
    desc = {}
    for f in glob.glob("/var/lib/apt/lists/*Translation-en*"):
        t = subprocess.run(["/usr/lib/apt/apt-helper", "cat-file", f], capture_output=True).stdout.decode(
            "utf-8", "replace"
        )
        for st in t.split("\n\n"):
            m = re.match(r"Package: (\S+)\n", st)
            d = re.search(r"Description-en: (.*(?:\n .*)*)", st)
            if m and d:
                lines = d.group(1).split("\n")
                body = "\n".join("" if x.strip() == "." else x[1:] for x in lines[1:])
                desc[m.group(1)] = (lines[0], body)
    sect = {}
    for st in open(available, encoding="utf-8", errors="replace").read().split("\n\n"):
        m = re.search(r"^Package: (\S+)", st, re.M)
        s = re.search(r"^Section: (\S+)", st, re.M)
        h = re.search(r"^Homepage: (\S+)", st, re.M)
        if m:
            sect[m.group(1)] = (s.group(1) if s else "misc", h.group(1) if h else None)
    return desc, sect


def dictd(croot, pkgdir):
    """(headword, text) of a dictd dictionary inside an extracted package."""
    for idx in glob.glob(f"{croot}/{pkgdir}/usr/share/dictd/*.index"):
        data = gzip.open(idx[:-6] + ".dict.dz").read()
        abc = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
        val = lambda s: sum(abc.index(c) * 64**i for i, c in enumerate(reversed(s)))
        last = None
        for line in open(idx, encoding="utf-8", errors="replace"):
            w, o, l = line.rstrip("\n").split("\t")[:3]
            o, l = val(o), val(l)
            if w.startswith("00-") or o == last:
                continue
            last = o
            yield w, clean(data[o : o + l].decode("utf-8", "replace"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", required=True, help="folder with one extracted package (dpkg -x) per subfolder")
    parser.add_argument("--sources", required=True, help="folder with the unpacked sources of C programs")
    parser.add_argument("--available", required=True, help="output of apt-cache dumpavail")
    parser.add_argument("--bible", default="", help="output of: bible -f gen1:1-rev22:21 (package bible-kjv)")
    parser.add_argument("--out", required=True, help="folder for one text file per domain")
    options = parser.parse_args()
    global CROOT, SRCS, OUT
    CROOT, SRCS, OUT = options.packages, options.sources, options.out
    os.makedirs(OUT, exist_ok=True)
    pool = Pool(2)
    # prose: dictionaries, KJV bible, fortunes, manuals
    prose = []
    for d in ("dict-foldoc", "dict-jargon"):
        prose += [t for _, t in dictd(CROOT, d)]
    wn = [t for _, t in dictd(CROOT, "dict-wn")]
    gc = [t for _, t in dictd(CROOT, "dict-gcide")]
    random.shuffle(wn)
    random.shuffle(gc)
    prose += ["\n".join(wn[i : i + 12]) for i in range(0, len(wn), 12)][:5000]
    prose += ["\n".join(gc[i : i + 8]) for i in range(0, len(gc), 8)][:3000]
    for p in glob.glob(f"{CROOT}/fortunes*/usr/share/games/fortunes/*"):
        if p.endswith((".dat", ".u8")):
            continue
        t = read(os.path.realpath(p)) if not os.path.islink(p) else None
        if t:
            fs = t.split("\n%\n")
            random.shuffle(fs)
            prose += ["\n\n".join(fs[i : i + 20]) for i in range(0, len(fs), 20)]
    kjv = [x for x in (read(options.bible) or "").split("\n") if re.match(r"[1-3]?[A-Z][A-Za-z]+\d+:\d+ ", x)]
    chap, cur = [], None
    for x in kjv:
        ref, t = x.split(" ", 1)
        c = ref.split(":")[0]
        if c != cur:
            chap.append([])
            cur = c
        chap[-1].append(t)
    prose += ["\n".join(c) for c in chap]
    write("prose", prose, 34, maxdoc=30000)
    docs = []
    for pk in (
        "debian-reference-en",
        "debian-handbook",
        "developers-reference",
        "debian-policy",
        "installation-guide-amd64",
        "python3.11-doc",
        "linux-doc-6.1",
        "git-doc",
        "sqlite3-doc",
        "postgresql-doc-15",
        "gawk-doc",
        "bash-doc",
        "make-doc",
        "gcc-doc",
        "debian-faq",
        "python-django-doc",
        "python-sqlalchemy-doc",
    ):
        hs = [
            p
            for p in walk(
                f"{CROOT}/{pk}",
                (".html", ".html.gz"),
                400_000,
                1500,
                skip=(
                    "genindex",
                    "py-modindex",
                    "search.html",
                    "/de/",
                    "/fr/",
                    "/ja/",
                    "/zh",
                    "/it/",
                    "/es/",
                    "/pt",
                    "/ru/",
                    "translations",
                ),
            )
            if not re.search(r"/(html|handbook|debian-handbook)/(?!en|single)[a-z]{2}(-[A-Z]{2})?/", p)
        ]
        hs = [
            p for p in hs if not re.search(r"\.(de|fr|ja|es|it|pt|ru|zh-cn|zh-tw|pl|da|nb|sv|cs|ko|id|vi|nl)\.html", p)
        ]
        random.shuffle(hs)
        docs += [t for t in pool.map(html2text, hs[:2500], 16) if t]
        docs += [
            read(p)
            for p in list(walk(f"{CROOT}/{pk}", (".rst.gz", ".txt.gz", ".rst", ".txt", ".adoc"), 400_000, 1500))[:2000]
        ]
    for p in walk(f"{CROOT}/perl-doc", (".pod",), 300_000, 1500):
        docs.append(read(p))
    for p in walk(f"{CROOT}/nodejs-doc", (".md", ".html"), 600_000, 1500):
        docs.append(read(p) if p.endswith(".md") else html2text(p))
    write("docs", docs, 34, maxdoc=40000)
    # man pages
    # The installed man pages too, but only those of Debian packages.
    mans = [
        p
        for p in glob.glob(f"{CROOT}/*/usr/share/man/man[1-8]/*") + glob.glob("/usr/share/man/man[1-8]/*")
        if os.path.isfile(p) and not os.path.basename(p).startswith(("gcloud", "gsutil", "bq"))
    ]
    write("man", pool.map(man2text, mans, 16), 22, maxdoc=40000)
    # package descriptions
    desc, sect = packages(options.available)
    pickle.dump((desc, sect), open(f"{OUT}/packages.pkl", "wb"))
    pk = []
    for n, (s, b) in desc.items():
        if (
            re.match(
                r"(lib.*(-dev|-dbg|\d)$|.*-(dbgsym|dbg|l10n|locale|i18n)|.*-l10n-.*|task-|libghc|librust-|golang-|node-|libjs-|fonts-|r-cran|r-bioc|gcc-.*cross|linux-image|linux-headers)",
                n,
            )
            and random.random() > 0.25
        ):
            continue
        se, h = sect.get(n, ("misc", None))
        pk.append(f"Package: {n}\nSection: {se}\n" + (f"Homepage: {h}\n" if h else "") + f"Description: {s}\n{b}")
    random.shuffle(pk)
    write("pkg", ["\n\n".join(pk[i : i + 6]) for i in range(0, len(pk), 6)], 18)
    # source code
    py = list(
        walk(
            CROOT,
            (".py",),
            120_000,
            400,
            skip=(
                "test_data",
                "/tests/data",
                "encodings/",
                "unicodedata",
                "lib2to3/pgen",
                "locale",
                "_pb2.py",
                "/fixtures/",
            ),
        )
    )
    py += [p for p in walk("/usr/lib/python3", (".py",), 120_000, 400)]
    random.shuffle(py)
    write("code_py", (t for t in map(read, py) if t and max(map(len, t.split("\n"))) < 400), 46)
    js = list(
        walk(
            CROOT,
            (".js", ".ts", ".mjs"),
            100_000,
            400,
            skip=(".min.", "min.js", "/locale", "/doc/", "/dist/", "bundle", "/data/", "unicode"),
        )
    )
    random.shuffle(js)
    write("code_js", (t for t in map(read, js) if t and max(map(len, t.split("\n"))) < 300), 20)
    cs = list(walk(SRCS, (".c", ".h"), 150_000, 600)) + list(walk(f"{CROOT}/libnode-dev", (".h",), 80_000, 600))
    random.shuffle(cs)
    write("code_c", (t for t in map(read, cs) if t and max(map(len, t.split("\n"))) < 300), 26)
    pl = list(walk(CROOT, (".pm", ".pl", ".rb", ".sh"), 100_000, 400)) + list(
        walk(SRCS, (".sh", ".py", ".pl", ".lua", ".vim"), 60_000, 400)
    )
    random.shuffle(pl)
    write("code_pl", (t for t in map(read, pl) if t and max(map(len, t.split("\n"))) < 300), 12)
    st = list(
        walk(
            CROOT,
            (".yml", ".yaml", ".json", ".toml", ".ini", ".cfg", ".xml", ".conf", ".service", ".sql"),
            40_000,
            150,
            skip=("schema", "locale", "package.json", ".min.", "unicode", "/man/"),
        )
    )
    random.shuffle(st)
    write("struct", (t for t in map(read, st) if t and max(map(len, t.split("\n"))) < 300), 8, maxdoc=12000)
    os.makedirs(OUT + "/train", exist_ok=True)
    for domain in CAPS:
        cap(domain)


if __name__ == "__main__":
    main()
