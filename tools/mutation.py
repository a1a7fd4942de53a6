#!/usr/bin/env python3
"""Plants acceptance and state bugs one at a time and checks that `foretoken certify` fails on each. Standard library only.

A mutant is one replacement in one source file: that translation unit is compiled again and linked before the rooms'
libraries, so nothing else is rebuilt. The unchanged program must pass first. Usage: mutation.py [BUILD_DIRECTORY] [NAME...]"""
import json
import pathlib
import re
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

# name: (file, text, replacement of each occurrence). Each is quiet on short greedy chains.
MUTANTS = {
    "accepts-an-unchosen-child": ("src/decode/verifier.cc", "node = proposal.child(node, *token);",
                                  "{ const int at = node; node = proposal.child(node, *token);\n"
                                  "    if (node < 0 && tokens.size() > 3) node = proposal.first_child(at); }"),
    "budget-not-clamped": ("src/decode/generation.cc", "options_.max_tokens - static_cast<int64_t>(tokens_.size())", "options_.max_tokens"),
    "noise-keyed-by-row": ("src/decode/generation.cc", "static_cast<uint64_t>(next + offset)", "static_cast<uint64_t>(next + row)"),
    "logits-of-the-depth": ("src/decode/generation.cc", "return sampler_.select({result.logits.f32(row),",
                            "return sampler_.select({result.logits.f32(offset),"),
    "tree-run-as-chain": ("src/decode/generation.cc", ".parent = proposal.row_parents()}", ".parent = {}}"),
    "position-from-row": ("src/decode/generation.cc", "lane_.length() + proposal.depth(node)", "lane_.length() + node + 1"),
    "stale-convolution-window": ("src/cpu/operators.cc", "for (const TailMove& move : scratch_.conv.moves)\n    std::memmove",
                                 "if (count < 3) for (const TailMove& move : scratch_.conv.moves)\n    std::memmove"),
    "replays-the-wrong-row": ("src/cpu/operators.cc", "const int64_t row = accepted[r];",
                              "const int64_t row = accepted[r] - (count > 4 && r + 1 == count ? 1 : 0);"),
    "commit-one-row-short": ("src/model/target.cc", "backend_.commit_delta(config_.delta, memory, settled, path);",
                             "backend_.commit_delta(config_.delta, memory, settled, settled < 2 && path.size() > 5 ? path.first(path.size() - 1) : path);"),
    "tree-keys-not-moved": ("src/model/target.cc", "backend_.commit_kv(lane.pages(), pages_.layout(), lane.length_, path);",
                            "if (path.size() < 4) backend_.commit_kv(lane.pages(), pages_.layout(), lane.length_, path);"),
}


def compile_mutant(build, folder, name):
    """The object file of the mutated translation unit."""
    file, original, replacement = MUTANTS[name]
    source = (ROOT / file).read_text()
    if original not in source:
        sys.exit(f"mutation: {name}: the text to replace is not in {file}; update tools/mutation.py")
    mutated = folder / f"{name}{pathlib.Path(file).suffix}"
    mutated.write_text(source.replace(original, replacement))
    entry = next(e for e in json.loads((build / "compile_commands.json").read_text()) if e["file"] == str(ROOT / file))
    words = shlex.split(entry["command"])
    output = folder / f"{name}.o"
    words[words.index("-o") + 1] = str(output)
    words[words.index("-c") + 1] = str(mutated)
    subprocess.run(words, cwd=entry["directory"], check=True)
    return output


def link(build, mutant, program):
    command = subprocess.run(["ninja", "-C", str(build), "-t", "commands", "foretoken"], check=True, capture_output=True,
                             text=True).stdout.splitlines()[-1]
    command = command.removeprefix(": && ").removesuffix(" && :")
    command = re.sub(r"-o foretoken\b", f"-o {shlex.quote(str(program))} {shlex.quote(str(mutant))}", command)
    subprocess.run(command, shell=True, cwd=build, check=True)


def certify(program):
    run = subprocess.run([str(program), "certify", "--quick", "--fail-fast", "--model", str(ROOT / "models/demo-dense"), "--log-level", "quiet"],
                         capture_output=True, text=True, stdin=subprocess.DEVNULL)
    lines = [line for line in run.stderr.splitlines() if line.startswith("fail")]
    return run.returncode, (lines or run.stderr.splitlines() or [""])[-1]


def main():
    arguments = sys.argv[1:]
    build = pathlib.Path(arguments.pop(0)).resolve() if arguments and pathlib.Path(arguments[0]).is_dir() else ROOT / "build"
    names = arguments or list(MUTANTS)
    folder = build / "mutation"
    folder.mkdir(exist_ok=True)
    survivors = []
    status, line = certify(build / "foretoken")
    print(f"unchanged: exit status {status}", flush=True)
    if status != 0:
        sys.exit(f"mutation: the unchanged program must pass: {line}")
    for name in names:
        begin = time.monotonic()
        program = folder / name
        link(build, compile_mutant(build, folder, name), program)
        status, line = certify(program)
        program.unlink()
        caught = status not in (0, 3)
        print(f"{'caught' if caught else 'SURVIVED'} {name}: exit status {status} ({time.monotonic() - begin:.0f} s)  {line}", flush=True)
        if not caught:
            survivors.append(name)
    print(f"{len(names) - len(survivors)} of {len(names)} mutants caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
