#!/usr/bin/python3
"""Compares chat templates rendered by @huggingface/jinja with the golden results of Jinja2, which our interpreter gives too.

  npm install --prefix FOLDER @huggingface/jinja        (development only: no test and no build needs it)
  compare_templates.py FOLDER/node_modules [--show]

Reads tests/data/text/golden_templates.json: family templates over conversations with tools, thinking, images and nested content, and one
snippet for each construct of the language. Groups what differs; docs/templates.md says for each group which behaviour is right. Exit status 1
when a difference has no group. Standard library only."""
import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests/data/text"

NODE = """
import { Template } from "@huggingface/jinja";
import fs from "fs";
const jobs = JSON.parse(fs.readFileSync(0, "utf8"));
console.log(JSON.stringify(jobs.map(({ source, variables }) => {
  try { return { text: new Template(source).render(variables) }; } catch (error) { return { fails: true, why: String(error.message) }; }
})));
"""

# What it says when it refuses, and the group of docs/templates.md.
REFUSALS = [
    (r"Unknown \w+ filter|Cannot apply filter|`map` expressions|Cannot convert to JSON|arguments of `selectattr`|width must be", "refuses: filters"),
    (r"Cannot call something", "refuses: functions and methods"),
    (r"Unknown operator|Cannot perform operation", "refuses: operators"),
    (r"Parser Error|Unknown statement|Unknown test|Unexpected|Invalid LHS|reading 'type'", "refuses: syntax and tests"),
    (r"Cannot access property|Slice start|Expected iterable|Object keys|Cannot unpack", "refuses: subscripts and loops"),
]


def spelling(text):
    """Printed values without what only spells them: booleans and none, quotes, kinds of brackets, whole floats."""
    text = re.sub(r"\b(None|null|[Uu]ndefined)\b", "", text.replace("True", "true").replace("False", "false"))
    text = re.sub(r"\b1e\+16\b", "1" + "0" * 16, text).replace("\\\\", "\\").replace('\\"', '"').replace("\\'", "'")
    text = re.sub(r"\\u00(..)|\\x(..)", lambda m: chr(int(m[1] or m[2], 16)), text).replace("\\u200b", "\u200b")
    return re.sub(r"(\d)\.0\b", r"\1", text).translate(str.maketrans("()'", '[]"'))


def group_of(expected, given):
    if given.get("fails"):
        return next((name for pattern, name in REFUSALS if re.search(pattern, given["why"])), None)
    if expected.get("fails"):
        return "accepts what is an error"
    return "spelling of printed values" if spelling(expected["text"]) == spelling(given["text"]) else "another result"


def jobs():
    golden = json.loads((DATA / "golden_templates.json").read_text(encoding="utf-8"))
    sources = {name: (DATA / name).read_text(encoding="utf-8") for name in ("family35.jinja", "family38.jinja")}
    for case in golden["cases"]:
        tools = None if case["tools"] is None else golden["tools"][:case["tools"]]
        variables = dict(case["extra"], messages=golden["conversations"][case["conversation"]], tools=tools,
                         add_generation_prompt=case["add_generation_prompt"])
        yield "conversation", f"{case['template']}: {case['conversation']} {case['extra']}", sources[case["template"]], variables, case
    variables = dict(golden["variables"], messages=[], tools=None, documents=None, add_generation_prompt=True)
    for snippet in golden["snippets"]:
        yield "snippet", snippet["template"], snippet["template"], variables, snippet


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("node_modules", type=pathlib.Path)
    parser.add_argument("--show", action="store_true", help="print every difference")
    options = parser.parse_args()
    every = list(jobs())
    answer = subprocess.run(["node", "--input-type=module", "-e", NODE], cwd=options.node_modules.resolve().parent, text=True, check=True,
                            capture_output=True, input=json.dumps([{"source": j[2], "variables": j[3]} for j in every]))
    groups, counts, differ = collections.defaultdict(list), collections.Counter(), collections.Counter()
    for job, given in zip(every, json.loads(answer.stdout)):
        kind, title, _, _, expected = job
        counts[kind] += 1
        if given.get("text") == expected.get("text") and given.get("fails") == expected.get("fails"):
            continue
        differ[kind] += 1
        name = group_of(expected, given) or "no group"
        groups[name].append(title)
        if options.show or name == "no group":
            print(f"{name}: {title[:300]!r}\n  Jinja2:             {expected.get('text', 'an error')!r:.300}\n"
                  f"  @huggingface/jinja: {given.get('text', given.get('why', 'an error'))!r:.300}")
    for kind, count in counts.items():
        print(f"{kind}s: {count - differ[kind]} of {count} equal")
    for name, titles in sorted(groups.items(), key=lambda item: -len(item[1])):
        print(f"{len(titles):5} {name}")
    return 1 if "no group" in groups else 0


if __name__ == "__main__":
    sys.exit(main())
