#!/usr/bin/env python3
"""Writes seed inputs for the fuzzers of the engine room: OUT/<fuzzer>/<name>. Standard library only.

usage: engine_seeds.py OUT

Checksums are left to the fuzzer, whose first input byte says what it repairs (fuzz/disk_entry_fuzz.cc).
"""
import pathlib
import struct
import sys

HEADER_SUM, NUMBERS, PART_SUMS, NAMES = 1, 2, 4, 8
ALL = HEADER_SUM | NUMBERS | PART_SUMS | NAMES


def aligned(size):
    return -size % 64


def entry(length=40, parent=0, page_bytes=64, state=70, drafter=9, magic=b"foretoken prefix", version=1, page_tokens=32,
          fingerprint=b"\1" + bytes(31), parent_key=None, cut=None, extra=b""):
    """One file. Parts are filled with patterns; checksums, key and hashes are zero."""
    if parent_key is None:
        parent_key = bytes([7] * 32) if parent else bytes(32)
    header = magic + struct.pack("<IIQ", version, page_tokens, page_bytes) + fingerprint + bytes(32) + parent_key
    header += struct.pack("<qqQQ", length, parent, state, drafter)
    body = header + bytes(320 - len(header))
    pages = -(-length // 32) - parent // 32
    for size, byte in ((4 * (length - parent), 1), (max(0, pages) * page_bytes, 2), (state, 3), (drafter, 4)):
        size = min(max(size, 0), 4096)
        body += bytes([byte] * size) + bytes(aligned(size))
    return (body + extra)[:cut]


def disk_entry():
    for repaired in (0, HEADER_SUM, HEADER_SUM | PART_SUMS, HEADER_SUM | PART_SUMS | NAMES, HEADER_SUM | NAMES, ALL):
        yield f"sound_{repaired}", bytes([repaired]) + entry()
    for length in (1, 31, 32, 33, 64, 100):
        yield f"length_{length}", bytes([ALL & ~NUMBERS]) + entry(length=length)
    yield "empty_parts", bytes([ALL & ~NUMBERS]) + entry(state=0, drafter=0)
    yield "no_parent", bytes([ALL & ~NUMBERS]) + entry(length=70, parent=40)
    # One kind of damage each.
    damage = {
        "magic": dict(magic=b"foretoken packed"), "version": dict(version=2), "page_tokens": dict(page_tokens=16),
        "page_bytes": dict(page_bytes=128), "huge_page": dict(page_bytes=2**63), "fingerprint": dict(fingerprint=bytes(32)),
        "length_zero": dict(length=0), "length_negative": dict(length=-1), "length_huge": dict(length=2**62),
        "parent_longer": dict(length=40, parent=41), "parent_negative": dict(parent=-5),
        "parent_without_key": dict(length=70, parent=40, parent_key=bytes(32)), "key_without_parent": dict(parent_key=b"\7" * 32),
        "state_huge": dict(state=2**64 - 1), "drafter_huge": dict(drafter=2**63), "grown": dict(extra=b"x" * 64),
    }
    for name, change in damage.items():
        yield f"bad_{name}", bytes([HEADER_SUM | PART_SUMS | NAMES]) + entry(**change)
    for cut in (0, 15, 20, 300, 319, 320, 400, 600):
        yield f"cut_{cut}", bytes([HEADER_SUM]) + entry(cut=cut)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1]) / "disk_entry"
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for name, body in disk_entry():
        (folder / name).write_bytes(body)
        count += 1
    print(f"disk_entry: {count} seeds in {folder}")


if __name__ == "__main__":
    main()
