#!/usr/bin/env python3
"""Writes random model bundles: `tiny DIR` the golden set of the tests, `big` one bundle of any size for benchmarks.

Needs numpy and the standard library; the package bundles/ does the work."""
import argparse
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
try:
    from bundles import big, tiny
except ModuleNotFoundError as missing:
    sys.exit(f"make_bundle: {sys.executable} has no module '{missing.name}'; on Debian: apt-get install python3-numpy, "
             "then run this with /usr/bin/python3")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    golden = commands.add_parser("tiny", help="every tiny case with its reference results")
    golden.add_argument("folder")
    big.add_arguments(commands.add_parser("big", help="random weights in a named or given shape, streamed to disk"))
    options = parser.parse_args()

    begin = time.monotonic()
    if options.command == "tiny":
        tiny.write(options.folder)
        size = sum(f.stat().st_size for f in pathlib.Path(options.folder).rglob("*") if f.is_file())
        print(f"{options.folder}: {size / 1e6:.1f} MB in {time.monotonic() - begin:.1f} s")
    else:
        print(big.write(options))


if __name__ == "__main__":
    main()
