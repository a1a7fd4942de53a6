#!/usr/bin/env python3
"""Holds every command that the documents print against the repository: its program, sub-command and options exist, and files it names are
here or are made by another printed command. Every table of README's measured part has its command below it.

Usage: check_readme.py [BUILD_DIRECTORY]                           the check, a part of `make test`
       check_readme.py BUILD_DIRECTORY --run [--only TEXT] [--whole] [--set LLAMA_BENCH=FILE ...]
--run also runs the commands of README's measured part, in order, shortened to one round (--whole: as printed); those with a placeholder
that was not set are left out and named. Standard library only."""
import argparse
import json
import pathlib
import re
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "SECURITY.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))]
BEGIN, END = "<!-- measured:begin -->", "<!-- measured:end -->"
COMMAND = re.compile(r"^([A-Z_]+=\S* )*(make|cmake|ninja|node|(/usr/bin/)?python3|foretoken|build/foretoken|build/bench/\w+|tools/[\w/]+\.(py|sh|mjs))( |$)")
PLACEHOLDER = re.compile(r"^(.*/)?[A-Z][A-Z_]*(\.\w+|\.\.\.)?$|^\.\.\.$|^[A-Z_]+=[A-Z_]+$")
FILE = re.compile(r"^[\w./+-]+\.(gguf|json|jsonl|safetensors|txt|py|mjs|sh)$|^(models|docs|bench|tools|build|examples)/[\w./+-]+$")
VARIABLES = {"FUZZ_SECONDS"}          # of the environment, beside those of the Makefile
NAMES = {"foretoken packed", "foretoken prefix"}  # what the program's own files begin with, in the same type as commands


class Command:
    def __init__(self, document, line, text):
        self.where, self.text = f"{document}:{line}", text
        self.words = shlex.split(text)
        while self.words and re.match(r"^[A-Z_]+=", self.words[0]):
            self.words.pop(0)


def commands_of(document, text):
    """Every command in `text`: lines of fenced blocks that begin with a program, and spans of inline code that do."""
    found, fenced = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            continue
        pieces = re.split(r"\s*&&\s*", re.sub(r"\s+#.*$", "", line).strip()) if fenced else re.findall(r"(?<!`)`([^`]+)`(?!`)", line)
        found += [Command(document, number, piece) for piece in pieces if COMMAND.match(piece) and piece not in NAMES]
    return found


class Programs:
    """What each program takes, learnt from the program itself, or from the script's text."""

    def __init__(self, build):
        self.build, self.helps = build, {}
        makefile = (ROOT / "Makefile").read_text()
        self.targets = set(re.findall(r"^([a-z][\w-]*):", makefile, re.M))
        self.variables = set(re.findall(r"^([A-Z_]+) \?=", makefile, re.M)) | VARIABLES
        self.presets = {p["name"] for p in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]}
        self.benches = set(re.findall(r"add_executable\((\w+)", (ROOT / "bench/CMakeLists.txt").read_text()))

    def help(self, *words):
        if words not in self.helps:
            result = subprocess.run([*words, "--help"], capture_output=True, text=True, timeout=60)
            self.helps[words] = result.stdout if result.returncode == 0 else ""
        return self.helps[words]

    def problem(self, command):
        """One sentence, or nothing."""
        words = command.words
        for variable in re.findall(r"(?:^| )([A-Z_]+)=", command.text):
            if variable not in self.variables:
                return f"{variable} is no variable of the Makefile"
        if words[0] == "make":
            unknown = [w for w in words[1:] if "=" not in w and w not in self.targets]
            return f"the Makefile makes no {unknown[0]}" if unknown else ""
        if words[0] == "cmake":
            given = dict(zip(words, words[1:])).get("--preset")
            return f"there is no preset {given}" if given and given not in self.presets else ""
        if words[0].endswith("foretoken"):
            return self.of_program(words)
        if words[0].startswith("build/bench/"):
            return self.of_bench(words)
        script = next((w for w in words if w.startswith("tools/")), "")
        return self.of_script(script, words) if script else ""

    def of_program(self, words):
        program, known = (str(self.build / "foretoken"),), 1
        while known < len(words) and re.search(rf"^  {re.escape(words[known])}  ", self.help(*program).partition("Subcommands:")[2], re.M):
            program += (words[known],)
            known += 1
        text = self.help(*program)
        if "Subcommands:" in text and known < len(words) and not words[known].startswith("-") and not PLACEHOLDER.match(words[known]):
            return f"`{' '.join(words[:known])}` has no sub-command {words[known]}"
        return unknown_option(words[known:], text)

    def of_bench(self, words):
        name = words[0].rpartition("/")[2]
        if name not in self.benches:
            return f"bench/CMakeLists.txt makes no {name}"
        program = self.build / "bench" / name
        if not program.exists():
            return f"{program} is not built"
        if not any(w.startswith("-") for w in words[1:]):
            return ""
        return unknown_option(words[1:], self.help(str(program)))

    def of_script(self, script, words):
        if not (ROOT / script).is_file():
            return f"there is no {script}"
        if words[0] == script and words[1:] and not (ROOT / script).stat().st_mode & 0o111:
            return f"{script} is not executable"
        text = (ROOT / script).read_text() + "".join(p.read_text() for p in (ROOT / "tools/bundles").glob("*.py") if script.endswith("make_bundle.py"))
        return unknown_option(words[words.index(script) + 1:], text)


def unknown_option(words, text):
    for word in words:
        if word == "--":
            return ""
        option = word.split("=")[0]
        if re.match(r"^-\D", word) and not re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text):
            return f"{option} is no option of it"
    return ""


def made_by(commands):
    """Files that printed commands write."""
    made = set()
    for command in commands:
        for option, value in zip(command.words, command.words[1:]):
            if option in ("--out", "--traces", "--costs-out", "--trace"):
                made.add(value)
        if "make_bundle.py" in command.text or command.words[1:2] == ["quantize"]:
            made.update(w for w in command.words[2:] if FILE.match(w))
    return made


def missing_file(command, made):
    if command.words[0] in ("make", "cmake", "ninja"):
        return ""
    for word in (piece for w in command.words[1:] for piece in (w, w.partition("=")[2]) if FILE.match(piece)):
        if word not in made and not PLACEHOLDER.match(word) and not (ROOT / word).exists() and not (ROOT / "tests/e2e" / word).exists():
            return f"{word} is not here, and no printed command makes it"
    return ""


def tables_without_command(text):
    """Titles in README's measured part whose table has no command below it."""
    part = text[text.index(BEGIN):text.index(END)]
    pieces = re.split(r"\n(?=[A-Z][^\n`|]*:\n|Speculation beside)", part)[1:]
    return [piece.split("\n")[0] for piece in pieces if not any(c.words[0] != "make" for c in commands_of("README.md", piece))] or ([] if pieces else ["none at all"])


def check(build):
    programs, problems = Programs(build), []
    texts = {d: (ROOT / d).read_text() for d in DOCUMENTS if (ROOT / d).is_file()}
    commands = [c for d, text in texts.items() for c in commands_of(d, text)]
    made = made_by(commands)
    for command in commands:
        problem = programs.problem(command) or missing_file(command, made)
        if problem:
            problems.append(f"{command.where}: `{command.text}`: {problem}")
    problems += [f"README.md: no command below \"{title}\"" for title in tables_without_command(texts["README.md"])]
    return commands, problems


def run_measured(options):
    """Runs the commands of README's measured part; how many failed."""
    text, failed = (ROOT / "README.md").read_text(), 0
    given = dict(pair.split("=", 1) for pair in options.set)
    for command in commands_of("README.md", text[text.index(BEGIN):text.index(END)]):
        makes_what_is_missing = any(not (ROOT / path).exists() for path in made_by([command]))
        if command.words[0] == "make" or (options.only not in command.text and not makes_what_is_missing):
            continue
        words = [given.get(w, w) for w in command.words]
        unset = [w for w in words if PLACEHOLDER.match(w)]
        if unset:
            print(f"left out: {command.text} (--set {unset[0]}=FILE)")
            continue
        if not options.whole and "--rounds" in words:
            words[words.index("--rounds") + 1] = "1"
        if words[0].startswith("build/"):
            words[0] = str(options.build / words[0].removeprefix("build/"))
        begin = time.monotonic()
        result = subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        failed += result.returncode != 0
        print(f"{'ok' if result.returncode == 0 else f'FAILED ({result.returncode})'} {command.text} ({time.monotonic() - begin:.1f} s)", flush=True)
        if result.returncode != 0:
            print("    " + "\n    ".join((result.stdout + result.stderr).strip().splitlines()[-5:]))
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", default=ROOT / "build", type=pathlib.Path)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    options.build = options.build.resolve()
    commands, problems = check(options.build)
    for problem in problems:
        print(problem)
    if len(commands) < 40:
        problems.append("too few commands were found")
        print(f"only {len(commands)} commands were found: does the search still work?")
    failed = run_measured(options) if options.run else 0
    print(f"{len(commands)} printed commands, {len(problems)} problems" + (f", {failed} failed" if options.run else ""))
    return 1 if problems or failed else 0


if __name__ == "__main__":
    sys.exit(main())
