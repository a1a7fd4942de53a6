#!/usr/bin/env python3
"""Checks that objects built for one instruction set define nothing that the linker may share with other objects.

A weak symbol (an inline function or a template instance) compiled with AVX-512 flags may be the copy that the linker keeps for
the whole program, which then dies on processors without AVX-512. Usage: check_isa.py [BUILD_DIRECTORY], by default build/.
Standard library only.
"""
import pathlib
import subprocess
import sys

# Symbol types of nm that other objects can see and that may come from several objects.
SHARED = set("WwVvuUC") - {"U"}


def main():
    if len(sys.argv) > 2:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    build = pathlib.Path(sys.argv[1]) if len(sys.argv) == 2 else pathlib.Path(__file__).resolve().parent.parent / "build"
    objects = sorted(build.rglob("isa_*.cc.o"))
    if len(objects) < 3:
        print(f"check_isa: expected the objects of three instruction sets under {build}, found {len(objects)}: "
              "build foretoken_cpu first.", file=sys.stderr)
        return 2
    bad = []
    for path in objects:
        symbols = subprocess.run(["nm", "-C", "--defined-only", str(path)], check=True, capture_output=True, text=True).stdout
        visible = 0
        for line in symbols.splitlines():
            kind, name = line.split(maxsplit=2)[1:]
            if kind in SHARED:
                bad.append(f"{path.name}: shared symbol ({kind}) {name}")
            visible += kind.isupper()
        if visible == 0:
            bad.append(f"{path.name}: defines no kernel table")
        elif visible > 1 and not any(path.name in entry for entry in bad):
            bad.append(f"{path.name}: {visible} visible symbols; only the kernel table may be visible")
    print("\n".join(bad) if bad else f"isa: {len(objects)} objects share nothing but their kernel tables")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
