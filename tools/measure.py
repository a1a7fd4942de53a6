#!/usr/bin/env python3
"""Measures what the README shows and writes it there, each table above the command that made it. Standard library only.

Usage: measure.py [--peer LLAMA_BENCH] [--server LLAMA_SERVER [--formats FILE.gguf ...]] [--big FILE.gguf ...] [--quick]
--peer: the llama-bench of a native llama.cpp build, timed in alternation with ours on the embedded model and the first larger one.
--server: its llama-server, for speculation side by side (tools/compare_speculation.py), also on --formats: the same model in other types.
--big: larger models; paths are printed as given, so those of `tools/make_bundle.py big --shape 1.44b --type Q4_K --tokenizer build/big-Q4_K.gguf` (build/ is no part
of the repository) can be made and measured by anyone.
Run it on a quiet machine: shares and ratios survive noise, absolute figures do not."""
import argparse
import datetime
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
EMBEDDED = "models/demo-dense/demo-dense-Q4_K_M.gguf"
DRAFTER = "models/demo-dense/dflash2/demo-dense-dflash2-Q8_0.gguf"
ENGINE = {"lanes": "plain decoding over lanes", "speculation": "speculation at four lanes", "prefix": "first token of a cached prompt",
          "end": "from the last token to the end", "context": "cost of a token over the context"}
BEGIN, END = "<!-- measured:begin -->", "<!-- measured:end -->"


def output(*words):
    return subprocess.run([str(w) for w in words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.rstrip()


def command(words):
    return " ".join(str(w) if " " not in str(w) else f'"{w}"' for w in words)


def block(title, *words):
    print(title, flush=True)
    return f"{title}\n\n```\n{output(*words)}\n```\n`{command(words)}`\n"


def table(title, placeholder, *words):
    """What a tool prints as Markdown; its second word, the peer's program, is printed as `placeholder`."""
    print(title, flush=True)
    return f"{title}\n\n{output(*words)}\n\n`{command([words[0], placeholder, *words[2:]])}`\n"


def how_to_make(model):
    """The command that wrote a file called big-TYPE.gguf."""
    name = pathlib.Path(model)
    return f"tools/make_bundle.py big --shape 1.44b --type {name.stem.removeprefix('big-')} --tokenizer {model}" if name.stem.startswith("big-") else ""


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
             "ratios are what to read. Each command is what made the table above it, after `make bench`.\n"]
    parts += [f"`{maker}` writes the 1.44 B model of random weights below.\n" for model in options.big if (maker := how_to_make(model))]
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
        words = ["tools/compare_speed.py", options.peer, *models[:2], "--rounds", rounds]
        parts.append(table("Plain decoding and prefill beside llama.cpp's CPU backend, same file, alternating:", "LLAMA_BENCH", *words))
    if options.server:
        for model in [EMBEDDED] + options.formats:
            words = ["tools/compare_speculation.py", options.server, model, "--drafter", DRAFTER, "--rounds", min(rounds, 3)]
            parts.append(table("Speculation beside llama.cpp's:", "LLAMA_SERVER", *words))
    readme = ROOT / "README.md"
    text = readme.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    measured = "\n".join(parts)
    readme.write_text(text[:begin] + "\n" + measured + text[end:])
    print("README.md is updated")


if __name__ == "__main__":
    main()
