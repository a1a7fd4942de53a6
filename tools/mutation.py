#!/usr/bin/env python3
"""Plants bugs of acceptance, state and engine one at a time and checks that `foretoken certify` fails on each. Standard library only.

A mutant is one replacement in one source file: that translation unit is compiled again and linked before the rooms'
libraries, so nothing else is rebuilt. The unchanged program must pass first. Usage: mutation.py [BUILD_DIRECTORY] [NAME...]"""
import concurrent.futures
import json
import pathlib
import re
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

# name: (part of the certificate that must find it, file, text, replacement of each occurrence). Each is quiet on short greedy chains, or
# on a request that has the engine for itself.
MUTANTS = {
    "accepts-an-unchosen-child": ("ids", "src/decode/verifier.cc", "node = proposal.child(node, *token);",
                                  "{ const int at = node; node = proposal.child(node, *token);\n"
                                  "    if (node < 0 && tokens.size() > 3) node = proposal.first_child(at); }"),
    "budget-not-clamped": ("ids", "src/decode/sequence.cc", "options_.max_tokens - static_cast<int64_t>(tokens().size())", "options_.max_tokens"),
    "noise-keyed-by-row": ("ids", "src/decode/sequence.cc", "return select(result, row, next + offset);",
                           "return select(result, row, next + row);"),
    "logits-of-the-depth": ("ids", "src/decode/sequence.cc", "return select(result, row, next + offset);",
                            "return select(result, offset, next + offset);"),
    "tree-run-as-chain": ("ids", "src/decode/sequence.cc", "proposal_.row_parents()", "{}"),
    "position-from-row": ("ids", "src/decode/sequence.cc", "first + proposal_.depth(node)", "first + node + 1"),
    "stale-convolution-window": ("rows", "src/cpu/operators.cc", "for (const TailMove& move : scratch_.conv.moves)\n    std::memmove",
                                 "if (count < 3) for (const TailMove& move : scratch_.conv.moves)\n    std::memmove"),
    "replays-the-wrong-row": ("rows", "src/cpu/operators.cc", "const int64_t row = accepted[r];",
                              "const int64_t row = accepted[r] - (count > 4 && r + 1 == count ? 1 : 0);"),
    "commit-one-row-short": ("rows", "src/model/target.cc", "backend_.commit_delta(config_.delta, memory, settled, path);",
                             "backend_.commit_delta(config_.delta, memory, settled, settled < 2 && path.size() > 5 ? path.first(path.size() - 1) : path);"),
    "tree-keys-not-moved": ("rows", "src/model/target.cc", "backend_.commit_kv(lane.pages(), pages_.layout(), lane.length_, path);",
                            "if (path.size() < 4) backend_.commit_kv(lane.pages(), pages_.layout(), lane.length_, path);"),
    "logits-of-the-first-lane": ("lanes", "src/decode/sequence.cc", "share_.first_logits + row", "row"),
    "resumes-without-its-last-row": ("preemption", "src/decode/sequence.cc", "return decided_end() - (lane_ != nullptr ? lane_->length() : 0);",
                                     "return std::max<int64_t>(0, decided_end() - (tokens().empty() ? 0 : 1) - (lane_ != nullptr ? lane_->length() : 0));"),
    "counts-lost-with-the-lane": ("preemption", "src/decode/sequence.cc", "  lane_ = &lane;\n",
                                  "  lane_ = &lane;\n  counts_ = {};\n  for (size_t i = 0; i < prompt_; ++i) counts_.add_prompt(known_[i]);\n"),
    "restores-all-but-the-last-tail": ("restore", "src/model/state.cc", "copy_memory(pool_.backend(), saved.recurrent_.data(), recurrent_.data(), recurrent_.size());",
                                       "copy_memory(pool_.backend(), saved.recurrent_.data(), recurrent_.data(), recurrent_.size() - config_.delta.tail_floats() * 4);"),
    "branches-share-a-page": ("restore", "src/model/state.cc", "    pages_.push_back(pool_.take());\n    copy_page(pool_, saved.pages_.back(), pages_.back());",
                              "    pool_.share(saved.pages_.back());\n    pages_.push_back(saved.pages_.back());"),
    "disk-loses-the-last-page": ("restore", "src/model/state.cc", "for (size_t i = 0; i < count; ++i) upload(pool.backend(),",
                                 "for (size_t i = 0; i + 1 < count; ++i) upload(pool.backend(),"),
    "matches-one-token-too-many": ("restore", "src/engine/prefix_cache.cc", "if (same != tail || ", "if (same + 1 < tail || "),
    "counts-as-cached-what-it-computes": ("restore", "src/engine/engine.cc", "if (match.checkpoint != nullptr) state.restore(*match.checkpoint);", ""),
    "drafter-window-begins-late": ("restore", "src/model/dflash.cc", "restart(windows[0].first);", "restart(windows[0].first + 1);"),
}


def compile_mutant(build, folder, name):
    """The object file of the mutated translation unit."""
    _, file, original, replacement = MUTANTS[name]
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
    subprocess.run([*words, "-w"], cwd=entry["directory"], check=True)
    return output


def link(build, mutant, program):
    command = subprocess.run(["ninja", "-C", str(build), "-t", "commands", "foretoken"], check=True, capture_output=True,
                             text=True).stdout.splitlines()[-1]
    command = command.removeprefix(": && ").removesuffix(" && :")
    command = re.sub(r"-o foretoken\b", f"-o {shlex.quote(str(program))} {shlex.quote(str(mutant))}", command)
    subprocess.run(command, shell=True, cwd=build, check=True)


def certify(program, part=None):
    """Exit status and the line that tells most, of the whole certificate or of one part with one drafter."""
    some = ["--parts", part, "--speculate", "dflash"] if part else []
    run = subprocess.run([str(program), "certify", "--quick", "--fail-fast", "--model", str(ROOT / "models/demo-dense"), "--log-level", "quiet", *some],
                         capture_output=True, text=True, stdin=subprocess.DEVNULL)
    lines = [line for line in run.stderr.splitlines() if line.startswith("fail")]
    return run.returncode, (lines or run.stderr.splitlines() or [""])[-1]


def build_mutant(build, folder, name):
    program = folder / name
    link(build, compile_mutant(build, folder, name), program)
    return program


def main():
    arguments = sys.argv[1:]
    build = pathlib.Path(arguments.pop(0)).resolve() if arguments and pathlib.Path(arguments[0]).is_dir() else ROOT / "build"
    names = arguments or list(MUTANTS)
    folder = build / "mutation"
    folder.mkdir(exist_ok=True)
    survivors = []
    begin = time.monotonic()
    # The next programs are built while one is certified.
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as builder:
        programs = {name: builder.submit(build_mutant, build, folder, name) for name in names}
        status, line = certify(build / "foretoken")
        print(f"unchanged: exit status {status} ({time.monotonic() - begin:.0f} s)", flush=True)
        if status != 0:
            builder.shutdown(wait=False, cancel_futures=True)
            sys.exit(f"mutation: the unchanged program must pass: {line}")
        for name in names:
            program = programs[name].result()
            begin = time.monotonic()
            status, line = certify(program, MUTANTS[name][0])
            program.unlink()
            caught = status not in (0, 3)
            print(f"{'caught' if caught else 'SURVIVED'} {name}: exit status {status} ({time.monotonic() - begin:.0f} s)  {line}", flush=True)
            if not caught:
                survivors.append(name)
    print(f"{len(names) - len(survivors)} of {len(names)} mutants caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
