#!/usr/bin/env python3
"""Runs every test of a configured build and ends with the line `N passed, N failed` (`, N skipped` when some were).

A test is: the generation of the tiny golden bundles, each check script of tools/, each case of each GoogleTest program
that CMake registered, and one short run of each fuzzer. It knows nothing about what the tests test. Exit status 1 when
anything failed or nothing ran. Standard library only."""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHECKS = {"check_architecture.py": False, "check_isa.py": True, "check_cli.py": True, "check_install.py": True, "check_readme.py": True,
          "mutation.py": True}  # where present; True: wants the build folder
PROGRAM_TIMEOUT_S = 1800


class Tally:
    def __init__(self):
        self.passed, self.failed, self.skipped = 0, [], []

    def passes(self, count=1):
        self.passed += count

    def fails(self, name, detail=""):
        self.failed.append(name)
        print(f"FAILED {name}")
        for line in detail.rstrip().splitlines()[-60:]:
            print("    " + line)

    def skips(self, name, reason):
        self.skipped.append(name)
        print(f"skipped {name}: {reason}")

    def line(self):
        text = f"{self.passed} passed, {len(self.failed)} failed"
        return text + (f", {len(self.skipped)} skipped" if self.skipped else "")


def run(command, log, timeout=PROGRAM_TIMEOUT_S):
    """Exit status (None after a timeout) with all output in `log`."""
    with open(log, "wb") as out:
        try:
            return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                  timeout=timeout).returncode
        except subprocess.TimeoutExpired:
            return None
        except OSError as error:
            out.write(str(error).encode())
            return 127


def run_check(tally, name, command, logs):
    begin = time.monotonic()
    log = logs / (re.sub(r"[^\w.-]+", "_", name) + ".log")
    status = run(command, log)
    if status == 0:
        tally.passes()
        print(f"ok {name} ({time.monotonic() - begin:.1f} s)")
    else:
        tally.fails(name, log.read_text(errors="replace"))
    return status == 0


def registered_programs(build):
    """{name: program} of this configuration, as CTest lists them: stale binaries of removed rooms do not count. The program
    is None when it was not built."""
    listing = subprocess.run(["ctest", "--test-dir", str(build), "--show-only=json-v1"], capture_output=True, text=True)
    if listing.returncode != 0:
        return {}
    return {test["name"]: (test.get("command") or [None])[0] for test in json.loads(listing.stdout)["tests"]}


def skip_reason(log_text, case):
    """The text of GTEST_SKIP(), which GoogleTest prints between the case's start and its result."""
    part = log_text.partition(f"[ RUN      ] {case}\n")[2].partition(f"[  SKIPPED ] {case}")[0]
    lines = [line for line in part.splitlines() if line and not line.endswith("Skipped")]
    return " ".join(lines) or "no reason given"


def run_program(tally, program, logs, gtest_filter):
    name = pathlib.Path(program).name
    log, report = logs / f"{name}.log", logs / f"{name}.json"
    report.unlink(missing_ok=True)
    begin = time.monotonic()
    command = [program, f"--gtest_output=json:{report}", "--gtest_color=no"]
    status = run(command + ([f"--gtest_filter={gtest_filter}"] if gtest_filter else []), log)
    text = log.read_text(errors="replace")
    failed_before, count = len(tally.failed), 0
    try:
        suites = json.loads(report.read_text())["testsuites"]
    except (OSError, ValueError, KeyError):
        what = "ran longer than its limit" if status is None else f"ended with status {status} before its report"
        last = re.findall(r"^\[ RUN      \] (\S+)", text, re.M)
        tally.fails(f"{name} ({what}{', in ' + last[-1] if last else ''})", text)
        return
    for suite in suites:
        for case in suite["testsuite"]:
            if case.get("status") == "NOTRUN":
                continue
            count += 1
            full = f"{suite['name']}.{case['name']}"
            if case.get("failures"):
                tally.fails(f"{name} {full}", "\n".join(f["failure"] for f in case["failures"]))
            elif case.get("result") == "SKIPPED":
                tally.skips(f"{name} {full}", skip_reason(text, full))
            else:
                tally.passes()
    failed = len(tally.failed) - failed_before
    if status != 0 and failed == 0:  # a sanitizer report or a crash after the last case
        tally.fails(f"{name} (status {status} although no case failed)", text)
    elif count == 0 and not gtest_filter:
        tally.fails(f"{name} ran no case", text)
    elif failed == 0:
        print(f"ok {name}: {count} cases ({time.monotonic() - begin:.1f} s)")


def run_fuzzers(tally, logs):
    """tools/fuzz.sh prints `ok NAME ...` or `FAILED NAME ...` for each fuzzer."""
    log = logs / "fuzz.log"
    status = run([str(ROOT / "tools" / "fuzz.sh")], log, timeout=4 * PROGRAM_TIMEOUT_S)
    text = log.read_text(errors="replace")
    failed = re.findall(r"^FAILED (.*)", text, re.M)
    for line in re.findall(r"^ok (.*)", text, re.M):
        tally.passes()
        print("ok " + line)
    for line in failed:
        tally.fails(line, text)
    if status != 0 and not failed:
        tally.fails(f"tools/fuzz.sh (status {status})", text)


def run_clients(tally, build, logs):
    """tools/e2e.sh runs the official clients and a browser against the server; Node reports `ok N - NAME`, `ok N - NAME # SKIP WHY` or
    `not ok N - NAME`."""
    log = logs / "e2e.log"
    begin = time.monotonic()
    status = run([str(ROOT / "tools" / "e2e.sh"), str(build)], log)
    text = log.read_text(errors="replace")
    reported = [line.partition(" # SKIP") for line in re.findall(r"^ok \d+ - (.*)", text, re.M)]
    passed = [name for name, skipped, _ in reported if not skipped]
    for name, skipped, reason in reported:
        if skipped:
            tally.skips(f"e2e: {name}", reason.strip() or "no reason given")
    failed = re.findall(r"^not ok \d+ - (.*)", text, re.M)
    tally.passes(len(passed))
    for name in failed:
        tally.fails(f"e2e: {name}", text)
    if status != 0 and not failed:
        tally.fails(f"tools/e2e.sh (status {status})", text)
    elif not failed and not passed:
        tally.fails("tools/e2e.sh ran nothing", text)
    elif not failed:
        print(f"ok e2e: {len(passed)} cases ({time.monotonic() - begin:.1f} s)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--filter", help="--gtest_filter for every program; checks and fuzzers are left out")
    parser.add_argument("--no-fuzz", action="store_true", help="leave the fuzzers out")
    options = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)
    build = options.build.resolve()
    logs = build / "test-logs"
    logs.mkdir(parents=True, exist_ok=True)
    tally, begin = Tally(), time.monotonic()

    run_check(tally, "golden bundles", [sys.executable, "tools/make_bundle.py", "tiny", str(build / "golden")], logs)
    if not options.filter:
        for check, wants_build in CHECKS.items():
            if (ROOT / "tools" / check).exists():
                run_check(tally, check, [sys.executable, f"tools/{check}"] + ([str(build)] if wants_build else []), logs)
    programs = registered_programs(build)
    if not programs:
        tally.fails(f"no test program is registered in {build}; configure it first")
    for name, program in programs.items():
        if program:
            run_program(tally, program, logs, options.filter)
        else:
            tally.fails(f"the test program of room '{name}' is not built")
    if not options.filter:
        if os.environ.get("E2E") == "0":
            tally.skips("e2e", "E2E=0")
        else:
            run_clients(tally, build, logs)
    if not options.filter and not options.no_fuzz:
        run_fuzzers(tally, logs)

    for name in tally.failed:
        print(f"failed: {name}")
    print(f"logs in {os.path.relpath(logs, ROOT)}, {time.monotonic() - begin:.0f} s")
    print(tally.line())
    return 1 if tally.failed or tally.passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
