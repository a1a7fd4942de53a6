#!/usr/bin/env python3
"""Plain decoding and prefill of Foretoken and of llama.cpp's CPU backend on the same files and threads, alternating, as a table. Standard
library only.

Usage: compare_speed.py LLAMA_BENCH MODEL.gguf... [--rounds 3] [--tokens 64] [--prompt 512]
Rates are medians of the rounds, as each program reports them; ratios are medians of the rounds' ratios."""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
THREADS = 2


def output(*words):
    return subprocess.run([str(w) for w in words], check=True, capture_output=True, text=True).stdout


def peer_rate(program, model, kind, count):
    """Median tokens per second of one llama-bench call."""
    flags = ["-p", count, "-n", 0] if kind == "prefill" else ["-p", 0, "-n", count]
    rows = json.loads(output(program, "-m", model, "-t", THREADS, "-r", 3, "-o", "json", *flags))
    return statistics.median(rows[0]["samples_ts"])


def our_rate(model, kind, count):
    ids = ",".join(str(1 + i * 37 % 4000) for i in range(count if kind == "prefill" else 4))
    run = json.loads(output(ROOT / "build/foretoken", "run", "--json", "--model", model, "--threads", THREADS, "--speculate", "off", "--ignore-eos", "--ids", ids,
                            "-n", 2 if kind == "prefill" else count))
    return run["timing"]["prefill_tok_s" if kind == "prefill" else "decode_tok_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="llama-bench of a native build of llama.cpp")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=512)
    o = parser.parse_args()
    print("| model | | Foretoken tokens/s | llama.cpp tokens/s | ratio |\n|---|---|---|---|---|")
    for model in o.models:
        for kind, count in (("decode", o.tokens), ("prefill", o.prompt)):
            print(f"comparing {kind} on {model}", file=sys.stderr, flush=True)
            ours, theirs = [], []
            for i in range(o.rounds):
                for mine in ((True, False) if i % 2 == 0 else (False, True)):
                    (ours if mine else theirs).append(our_rate(model, kind, count) if mine else peer_rate(o.program, model, kind, count))
            ratio = statistics.median(a / b for a, b in zip(ours, theirs))
            print(f"| {pathlib.Path(model).name} | {kind} {count} | {statistics.median(ours):,.0f} | {statistics.median(theirs):,.0f} | {ratio:.2f} |")
    print(f"\n{THREADS} threads, medians of {o.rounds} rounds")


if __name__ == "__main__":
    main()
