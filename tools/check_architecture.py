#!/usr/bin/env python3
"""Checks that every include in src/ points down the rooms (docs/architecture.md). Standard library only."""
import pathlib
import re
import sys

# A room may include itself and the rooms named here, with everything below them.
BELOW = {
    "base": [], "numerics": ["base"], "ops": ["numerics"], "cpu": ["ops"], "cuda": ["ops"], "bundle": ["numerics"],
    "model": ["bundle", "ops"], "decode": ["model"], "text": ["base"], "engine": ["decode"],
    "serve": ["engine", "text"], "qualify": ["engine", "text"],
    "app": ["serve", "qualify", "engine", "text", "decode", "model", "cpu", "cuda"],
}


def reachable(room):
    seen, todo = {room}, [room]
    while todo:
        for below in BELOW[todo.pop()]:
            if below not in seen:
                seen.add(below)
                todo.append(below)
    return seen


def main():
    root = pathlib.Path(__file__).resolve().parent.parent / "src"
    bad = []
    for path in sorted(p for p in root.rglob("*") if p.suffix in {".h", ".cc", ".inl", ".cu", ".cuh"}):
        room = path.relative_to(root).parts[0]
        if room not in BELOW:
            bad.append(f"{path.relative_to(root)}: room '{room}' is not in the table")
            continue
        allowed = reachable(room)
        for number, line in enumerate(path.read_text().splitlines(), 1):
            include = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if include and include[1].split("/")[0] not in allowed:
                bad.append(f"{path.relative_to(root)}:{number}: '{room}' may not include \"{include[1]}\"")
    print("\n".join(bad) if bad else "architecture: every include points down")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
