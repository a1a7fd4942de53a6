#!/usr/bin/env python3
"""Measures what the README shows and writes it there, each table above the command that made it. Standard library only.

Usage: measure.py [--peer LLAMA_BENCH] [--server LLAMA_SERVER [--formats FILE.gguf ...]] [--big FILE.gguf ...] [--quick]
--peer: the llama-bench of a native llama.cpp build, timed in alternation with ours on the embedded model and the first larger one.
--server: its llama-server, for speculation side by side (tools/compare_speculation.py), also on --formats: the same model in other types.
--big: larger models, for example from `tools/make_bundle.py big --shape 1.44b --type Q4_K FILE.gguf`.
Run it on a quiet machine: shares and ratios survive noise, absolute figures do not."""
import argparse
import datetime
import json
import pathlib
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
EMBEDDED = "models/demo-dense/demo-dense-Q4_K_M.gguf"
DRAFTER = "models/demo-dense/dflash2/demo-dense-dflash2-Q8_0.gguf"
ENGINE = {"lanes": "plain decoding over lanes", "speculation": "speculation at four lanes", "prefix": "first token of a cached prompt",
          "end": "from the last token to the end", "context": "cost of a token over the context"}
BEGIN, END = "<!-- measured:begin -->", "<!-- measured:end -->"


def output(*words):
    return subprocess.run([str(w) for w in words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.rstrip()


def block(title, *words):
    print(title, flush=True)
    text = output(*words)
    command = " ".join(str(w) if " " not in str(w) else f'"{w}"' for w in words)
    return f"{title}\n\n```\n{text}\n```\n`{command}`\n"


def peer_rate(program, model, kind, count):
    """Median tokens per second of one llama-bench call."""
    flags = ["-p", count, "-n", 0] if kind == "prefill" else ["-p", 0, "-n", count]
    rows = json.loads(output(program, "-m", model, "-t", 2, "-r", 3, "-o", "json", *flags))
    return statistics.median(rows[0]["samples_ts"])


def our_rate(model, kind, count):
    ids = ",".join(str(1 + i * 37 % 4000) for i in range(count if kind == "prefill" else 4))
    run = json.loads(output("build/foretoken", "run", "--json", "--model", model, "--threads", 2, "--speculate", "off", "--ignore-eos", "--ids", ids,
                            "-n", 2 if kind == "prefill" else count))
    return run["timing"]["prefill_tok_s" if kind == "prefill" else "decode_tok_s"]


def comparison(program, models, rounds):
    """Ours and the peer's in alternation; medians of the rates and of the ratios."""
    lines = ["| model | | Foretoken tokens/s | llama.cpp tokens/s | ratio |", "|---|---|---|---|---|"]
    for model in models:
        for kind, count in (("decode", 64), ("prefill", 512)):
            print(f"comparing {kind} on {model}", flush=True)
            ours, theirs = [], []
            for i in range(rounds):
                for first in ((0, 1) if i % 2 == 0 else (1, 0)):
                    (ours if first == 0 else theirs).append(our_rate(model, kind, count) if first == 0 else peer_rate(program, model, kind, count))
            ratio = statistics.median(a / b for a, b in zip(ours, theirs))
            name = pathlib.Path(model).name
            lines.append(f"| {name} | {kind}{' 512' if kind == 'prefill' else ''} | {statistics.median(ours):,.0f} | {statistics.median(theirs):,.0f} | {ratio:.2f} |")
    return "Plain decoding and prefill beside llama.cpp's CPU backend, same file, 2 threads, alternating:\n\n" + "\n".join(lines) + \
        f"\n\n`tools/measure.py --peer LLAMA_BENCH`, medians of {rounds} rounds\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer")
    parser.add_argument("--server")
    parser.add_argument("--formats", nargs="*", default=[])
    parser.add_argument("--big", nargs="*", default=[])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rounds = 3 if options.quick else 7
    processor = next((line.split(":")[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "?")
    parts = [f"On {processor}, 2 processors of a shared virtual machine, {datetime.date.today()}. The limits are measured between the passes; shares and "
             "ratios are what to read.\n"]
    models = [EMBEDDED] + options.big
    for model in models:
        parts.append(block(f"Cost of a pass against its rows, {pathlib.Path(model).name}:", "build/bench/step_bench", "--model", model, "--rounds", rounds))
    parts.append(block("Speculation against plain decoding (ratio, and tokens per cycle), embedded model:", "build/bench/speculation_bench", "--rounds", rounds))
    for measure in ("lanes", "speculation", "prefix", "end", "context"):
        words = ["build/bench/engine_bench", measure, "--rounds", rounds]
        parts.append(block(f"The engine ({ENGINE[measure]}), embedded model:", *words))
    for model in options.big[:1]:
        parts.append(block(f"The engine ({ENGINE['lanes']}), {pathlib.Path(model).name}:", "build/bench/engine_bench", "lanes", "--model", model, "--tokens", 40, "--rounds", 3))
    if options.peer:
        parts.append(comparison(options.peer, models[:2], rounds))
    if options.server:
        for model in [EMBEDDED] + options.formats:
            print(f"comparing speculation on {model}", flush=True)
            parts.append("Speculation beside llama.cpp's: " + output("tools/compare_speculation.py", options.server, model, "--drafter", DRAFTER, "--rounds", min(rounds, 3)) +
                         f"\n\n`tools/compare_speculation.py LLAMA_SERVER {pathlib.Path(model).name} --drafter {DRAFTER}`\n")
    readme = ROOT / "README.md"
    text = readme.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    measured = "\n".join(parts)
    for model in options.big + options.formats:
        measured = measured.replace(model, pathlib.Path(model).name)
    readme.write_text(text[:begin] + "\n" + measured + text[end:])
    print("README.md is updated")


if __name__ == "__main__":
    main()
