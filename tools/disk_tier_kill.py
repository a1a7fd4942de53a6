#!/usr/bin/env python3
"""Kills a process that writes the disk tier with SIGKILL, again and again, and checks after each that what survived is right.

usage: disk_tier_kill.py [--rounds 1000] [--program build/tests/engine/disk_tier_kill] [--folder DIR] [--seed 1]

Each round starts `disk_tier_kill write`, kills it after a random time, and runs `disk_tier_kill verify`, which restores every entry and
compares every byte. The folder goes from round to round. Ends with the figures of all rounds; exit status 1 when anything was wrong.
Standard library only."""
import argparse
import collections
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def one_round(program, folder, seed, wait_s):
    writer = subprocess.Popen([program, "write", folder, str(seed)])
    time.sleep(wait_s)
    early = writer.poll()
    writer.kill()
    writer.wait()
    if early is not None:
        sys.exit(f"disk_tier_kill: the writer ended by itself with status {early}")
    checked = subprocess.run([program, "verify", folder], capture_output=True, text=True)
    if checked.returncode != 0:
        sys.exit(f"disk_tier_kill: round with seed {seed} is wrong:\n{checked.stdout}{checked.stderr}the folder is {folder}")
    return {name: int(value) for name, value in re.findall(r"(\w+) (\d+)", checked.stdout)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--program", default=str(ROOT / "build/tests/engine/disk_tier_kill"))
    parser.add_argument("--folder", help="kept afterwards; a temporary one when absent")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest-ms", type=float, default=250.0, help="that a writer lives")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    total, rounds_with_entries = collections.Counter(), 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or temporary
        for number in range(options.rounds):
            figures = one_round(options.program, folder, options.seed * 1_000_000 + number, chance.uniform(0.005, options.longest_ms / 1000))
            total.update(figures)
            rounds_with_entries += figures["entries"] > 0
            if (number + 1) % 50 == 0:
                print(f"{number + 1} rounds, entries checked {total['verified']}, unfinished {total['unfinished']}", flush=True)
    print(f"rounds {options.rounds}, with entries {rounds_with_entries}, entries found {total['entries']}, verified {total['verified']}, "
          f"restores compared {total['restores']}, unfinished files removed {total['unfinished']}, torn {total['truncated'] + total['damaged']}, "
          f"orphans {total['orphans']}, wrong 0")
    if rounds_with_entries == 0:
        sys.exit("disk_tier_kill: no round left an entry behind; nothing was shown")


if __name__ == "__main__":
    main()
