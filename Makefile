# The two commands a user needs are `make demo` and `make test`; both install what is missing first.
# CMake does the building (presets in CMakePresets.json); this file only names the everyday actions.

PYTHON ?= $(firstword $(wildcard /usr/bin/python3) python3)
PREFIX ?= /usr/local
MODEL ?=
BASE ?=
HEAD ?=
BENCH_ARGS ?=
TEST_ARGS ?=
FUZZ_SECONDS ?=
export FUZZ_SECONDS

.PHONY: demo test build bench bench-check golden fuzz coverage format install deb clean setup configure
.DEFAULT_GOAL := build

# Answers a prompt with the embedded model, or with MODEL=path, and ends with a table of speeds.
demo: setup
	@$(MAKE) --no-print-directory build
	@build/foretoken demo $(if $(MODEL),--model "$(MODEL)")

# Builds everything and runs every test, check and a short run of every fuzzer.
test:
	@tools/setup.sh test
	@$(MAKE) --no-print-directory configure
	@cmake --build build
	@"$(PYTHON)" tools/run_tests.py --build build $(TEST_ARGS)

# Leaves the release program at build/foretoken.
build: configure
	@cmake --build build --target foretoken

# Operator benchmarks: speed of every instruction set beside the machine's own limits.
bench: configure
	@cmake --build build
	@build/bench/ops_bench

# The gate of each release: this tree, or revision HEAD, against revision BASE, for example `make bench-check BASE=v0.1.0` (docs/qualification.md).
bench-check:
	@tools/bench_check.sh "$(BASE)" $(HEAD) $(BENCH_ARGS)

# The tiny random bundles with reference results that tests read (make test writes them too).
golden:
	@"$(PYTHON)" tools/make_bundle.py tiny build/golden

fuzz:
	@tools/setup.sh test
	@tools/fuzz.sh

# Line coverage of each parser under its fuzzer's corpus; fails below 90 %.
coverage:
	@tools/setup.sh test
	@"$(PYTHON)" tools/coverage.py

format:
	@command -v clang-format > /dev/null || { echo "format: clang-format is missing; install it with: apt-get install clang-format" >&2; exit 2; }
	@find src tests bench fuzz -type f \( -name '*.h' -o -name '*.cc' -o -name '*.inl' -o -name '*.cu' -o -name '*.cuh' \) -print0 | xargs -0 -r clang-format -i

# The program, the embedded model, completion, the manual page and a unit for systemd, below PREFIX (DESTDIR is respected).
install: build
	@cmake --build build --target foretoken_package_files
	@DESTDIR="$(DESTDIR)" cmake --install build --prefix "$(PREFIX)" > /dev/null
	@echo "installed $(DESTDIR)$(PREFIX)/bin/foretoken"

# A Debian package of the same, in build/package.
deb: build
	@cmake --build build --target foretoken_package_files
	@cd build && cpack -G DEB > package.log || { cat package.log >&2; exit 1; }
	@ls build/package/*.deb

clean:
	@rm -rf build build-debug build-asan build-tsan build-fuzz build-coverage build-cuda build-cuda-release

setup:
	@tools/setup.sh build

configure:
	@cmake --preset release > /dev/null
