#!/usr/bin/env python3
"""Installs a build, packs it for Debian, and holds both against what the program says of itself: every option is in the manual page and
in each shell's completion, completion completes, the installed program finds its model, the package holds the same files.
Usage: check_install.py [BUILD_DIRECTORY]. Standard library only."""
import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
failures = []


def expect(condition, what):
    if not condition:
        failures.append(what)
        print(f"FAILED {what}")


def run(*words, **options):
    result = subprocess.run(list(map(str, words)), capture_output=True, text=True, **options)
    expect(result.returncode == 0, f"{' '.join(map(str, words))[:120]}: exit status {result.returncode}: {(result.stdout + result.stderr).strip()[-600:]}")
    return result.stdout


def options_of_help(text):
    """Names at the beginning of the help's lines: `  -m,--model TEXT   ...`."""
    names = set()
    for line in text.splitlines():
        match = re.match(r"  (-[\w-]+(?:,-[\w-]+)*)", line)
        if match:
            names.update(match[1].split(","))
    return names


def commands_below(text):
    """Names of the subcommands that a help lists."""
    return re.findall(r"^  (\w+)  ", text.partition("Subcommands:")[2], re.M)


def check_listings(program):
    commands = commands_below(run(program, "--help"))
    expect({"run", "serve", "agent", "certify"} <= set(commands) and len(commands) > 12, f"the commands of the help: {commands}")
    manual = run(program, "manual").replace("\\-", "-")
    bash, zsh, fish = (run(program, "completion", shell) for shell in ("bash", "zsh", "fish"))
    for command in commands:
        bash_part = re.search(rf"^    {command}\)\n      options='([^']*)'", bash, re.M)
        zsh_part = re.search(rf"^    {command}\)\n(.*?);;", zsh, re.M | re.S)
        fish_part = "\n".join(line for line in fish.splitlines() if f"__fish_seen_subcommand_from {command}'" in line)
        whole = [[command], *([command, part] for part in commands_below(run(program, command, "--help")))]
        for words in whole:
            title, names = " ".join(words), options_of_help(run(program, *words, "--help"))
            expect(names, f"{title} --help names options")
            heading = f'.SS "foretoken {title} '
            expect(heading in manual, f"the manual describes {title}")
            section = manual.partition(heading)[2].split("\n.S", 1)[0] + manual.partition(".SH COMMON OPTIONS")[2]
            for name in names:
                expect(re.search(rf"\\fB{name}\\fR", section), f"the manual's {title} lacks {name}")
                expect(bash_part and name in bash_part[1].split(), f"bash: {title} lacks {name}")
                expect(zsh_part and re.search(rf"[ ',{{({{]{name}[\[ ,}})]", zsh_part[1]), f"zsh: {title} lacks {name}")
                expect(f" -l {name[2:]} " in fish_part if name.startswith("--") else f" -s {name[1:]} " in fish_part, f"fish: {title} lacks {name}")


def complete(script, *words):
    """What bash offers for the last of `words`."""
    quoted = " ".join(f"'{word}'" for word in words)
    code = f'source "{script}"; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _foretoken; printf "%s\\n" "${{COMPREPLY[@]}}"'
    return run("bash", "-c", code).split()


def check_shells(program, folder):
    scripts = {shell: folder / f"completion.{shell}" for shell in ("bash", "zsh", "fish")}
    for shell, script in scripts.items():
        script.write_text(run(program, "completion", shell))
        if shutil.which(shell):
            run(shell, "-n", script)
    bash = scripts["bash"]
    expect(complete(bash, "foretoken", "se") == ["serve"], "bash completes a command")
    expect(complete(bash, "foretoken", "run", "--backend", "c") == ["cpu", "cuda"], "bash completes a value")
    expect(complete(bash, "foretoken", "run", "--backend", "=", "re") == ["reference"], "bash completes a value after =")
    expect(complete(bash, "foretoken", "serve", "--allowed-") == ["--allowed-host", "--allowed-origin"], "bash completes an option")
    expect("claude" in complete(bash, "foretoken", "agent", ""), "bash completes the name of a client")
    expect(str(bash) in complete(bash, "foretoken", "run", "--model", f"{folder}/comp"), "bash completes the name of a file")
    if shutil.which("groff"):
        page = folder / "foretoken.1"
        page.write_text(run(program, "manual"))
        result = subprocess.run(["groff", "-man", "-ww", "-Tutf8", page], capture_output=True, text=True)
        expect(result.returncode == 0 and not result.stderr, f"groff on the manual page: {result.stderr[:300]}")
        expect("--max-context" in re.sub("\x1b\\[[0-9;]*m|.\b", "", result.stdout).replace("‐", "-"), "the formatted manual shows options")


def files_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() or path.is_symlink()}


def check_runs(program, what):
    with tempfile.TemporaryDirectory() as elsewhere:
        answer = run(program, "run", "--raw", "--ignore-eos", "-n", 3, "--packed-cache", "off", "The", cwd=elsewhere, env={"PATH": "/usr/bin:/bin"})
        expect(len(answer) > 1, f"{what}: the program finds its model")


def check_unit(text, folder):
    expect(f"ExecStart={folder}/foretoken serve $FORETOKEN_OPTIONS" in text, f"the unit starts {folder}/foretoken")
    if shutil.which("systemd-analyze") and "--offline" in subprocess.run(["systemd-analyze", "--help"], capture_output=True, text=True).stdout:
        with tempfile.TemporaryDirectory() as place:
            unit = pathlib.Path(place, "foretoken.service")
            unit.write_text(text)
            run("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=25", unit)


def check_installation(build, folder):
    prefix = folder / "root/opt/foretoken"
    run("cmake", "--install", build, "--prefix", "/opt/foretoken", env={**os.environ, "DESTDIR": str(folder / "root")})
    files = files_below(prefix)
    for name in ("bin/foretoken", "share/foretoken/models/demo-dense/demo-dense-Q4_K_M.gguf", "share/bash-completion/completions/foretoken",
                 "share/zsh/vendor-completions/_foretoken", "share/fish/vendor_completions.d/foretoken.fish", "share/man/man1/foretoken.1.gz",
                 "lib/systemd/system/foretoken.service", "share/doc/foretoken/copyright", "share/doc/foretoken/docs/serving.md"):
        expect(name in files, f"installed: {name}")
    expect(gzip.decompress((prefix / "share/man/man1/foretoken.1.gz").read_bytes()).decode() == run(build / "foretoken", "manual"), "the installed manual is this program's")
    check_unit((prefix / "lib/systemd/system/foretoken.service").read_text(), "/opt/foretoken/bin")
    check_runs(prefix / "bin/foretoken", "installed")
    return files


def check_package(build, folder, installed):
    alone = ["unshare", "--net"] if os.geteuid() == 0 and subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0 else []
    run(*alone, "cpack", "-G", "DEB", "-B", folder / "package", cwd=build)
    packages = list((folder / "package").glob("*.deb"))
    expect(len(packages) == 1, f"one package: {packages}")
    if len(packages) != 1:
        return
    fields = dict(re.findall(r"^ (\w[\w-]*): (.*)", run("dpkg-deb", "--info", packages[0]), re.M))
    expect(fields.get("Package") == "foretoken" and "libc6" in fields.get("Depends", "") and "libssl3" in fields.get("Depends", ""), f"the package's fields: {fields}")
    listing = run("dpkg-deb", "--contents", packages[0])
    held = set(re.findall(r" \./usr/(\S.*)", "\n".join(line for line in listing.splitlines() if not line.startswith("d"))))
    expect(held == installed, f"the package holds what is installed: {sorted(held ^ installed)[:10]}")
    expect(all(line.split()[1] == "root/root" for line in listing.splitlines()), "everything is root's")
    expect(not re.search(r"^[-d].......w", listing, re.M), "nothing is writable by others")
    run("dpkg-deb", "--extract", packages[0], folder / "unpacked")
    check_unit((folder / "unpacked/usr/lib/systemd/system/foretoken.service").read_text(), "/usr/bin")
    check_runs(folder / "unpacked/usr/bin/foretoken", "packaged")
    run("dpkg-deb", "--control", packages[0], folder / "control")
    for script in ("postinst", "prerm", "postrm"):
        run("sh", "-n", folder / "control" / script)


def main():
    build = (pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build").resolve()
    program = build / "foretoken"
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        check_listings(program)
        check_shells(program, folder)
        check_package(build, folder, check_installation(build, folder))
    print(f"{len(failures)} failures" if failures else "install: all there")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
