#!/usr/bin/env python3
"""Line coverage of each parser of foreign bytes under its fuzzer's seeds and corpus: prints a table, fails below 90 %.

Builds the fuzzers with clang's coverage (preset coverage), replays build-fuzz/seeds and build-fuzz/corpus (tools/fuzz.sh makes
both) and asks llvm-cov. `--show` also prints the lines that no input reached. Standard library only."""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build-coverage"
LEAST_PERCENT = 90.0

# The sources that a fuzzer answers for, where its file has no line `// Covers: src/...` of its own.
COVERS = {
    "json": ["src/base/json.cc"],
    "gguf": ["src/bundle/gguf.cc"],
    "safetensors": ["src/bundle/safetensors.cc"],
}


def tool(name):
    found = shutil.which(name) or shutil.which(name + "-14")
    if not found:
        sys.exit(f"coverage: {name} is missing; on Debian 12: apt-get install llvm-14")
    return found


def declared_fuzzers():
    text = (ROOT / "fuzz" / "CMakeLists.txt").read_text()
    return re.findall(r"^\s*foretoken_fuzzer\(([a-z0-9_]+)", text, re.M)


def sources_of(name):
    text = (ROOT / "fuzz" / f"{name}_fuzz.cc").read_text()
    return [s for line in re.findall(r"^// Covers: (.*)", text, re.M) for s in line.split()] or COVERS.get(name)


def replay(name):
    """Runs every known input once; returns the binary and its merged profile."""
    binary = next(path for path in BUILD.rglob(f"fuzz_{name}") if path.is_file() and os.access(path, os.X_OK))
    inputs = [folder for folder in (ROOT / "fuzz" / "seeds" / name, ROOT / "build-fuzz" / "seeds" / name,
                                    ROOT / "build-fuzz" / "corpus" / name) if folder.is_dir()]
    if not inputs:
        sys.exit(f"coverage: no inputs for {name}; run tools/fuzz.sh first")
    raw, merged = BUILD / f"{name}.profraw", BUILD / f"{name}.profdata"
    result = subprocess.run([binary, "-runs=0", *inputs], env={**os.environ, "LLVM_PROFILE_FILE": str(raw)},
                            capture_output=True, text=True, cwd=BUILD)
    if result.returncode != 0:
        sys.exit(f"coverage: fuzz_{name} failed on its own inputs:\n{result.stderr[-2000:]}")
    subprocess.run([tool("llvm-profdata"), "merge", "-sparse", raw, "-o", merged], check=True)
    return binary, merged


def lines_of(binary, profile, sources):
    """{source: (covered, all)} of lines with code."""
    exported = subprocess.run([tool("llvm-cov"), "export", binary, f"-instr-profile={profile}", "-summary-only",
                               *(ROOT / source for source in sources)], capture_output=True, text=True, check=True)
    files = json.loads(exported.stdout)["data"][0]["files"]
    found = {os.path.relpath(f["filename"], ROOT): f["summary"]["lines"] for f in files}
    return {source: (found[source]["covered"], found[source]["count"]) if source in found else (0, 0) for source in sources}


def missed(binary, profile, source):
    """The lines that no input reached. (llvm-cov's own filter compares spellings of paths, so the file is picked here.)"""
    text = subprocess.run([tool("llvm-cov"), "show", binary, f"-instr-profile={profile}"], capture_output=True, text=True, check=True).stdout
    lines = text.partition(f"{ROOT / source}:\n")[2].split("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if re.match(r"\s*\d+\|\s*0\|", line))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("fuzzers", nargs="*")
    parser.add_argument("--show", action="store_true", help="print the lines that no input reached")
    options = parser.parse_args()
    os.chdir(ROOT)
    subprocess.run(["cmake", "--preset", "coverage"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", BUILD, "--target", "fuzzers"], check=True, stdout=subprocess.DEVNULL)
    bad = []
    print(f"{'fuzzer':14} {'source':36} {'lines':>6} {'covered':>8}")
    for name in options.fuzzers or declared_fuzzers():
        sources = sources_of(name)
        if not sources:
            bad.append(f"{name}: fuzz/{name}_fuzz.cc lacks a line `// Covers: src/...` with the sources it answers for")
            continue
        binary, profile = replay(name)
        for source, (covered, count) in lines_of(binary, profile, sources).items():
            percent = 100.0 * covered / count if count else 0.0
            print(f"{name:14} {source:36} {count:6} {percent:7.1f}%")
            if percent < LEAST_PERCENT:
                bad.append(f"{name}: {source} has {percent:.1f} % of its lines covered, less than {LEAST_PERCENT:.0f} %")
            if options.show and covered < count:
                print(missed(binary, profile, source))
    print("\n".join(bad) if bad else "coverage: every parser is covered")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
