#!/usr/bin/env bash
# The regression gate: builds revision BASE and revision HEAD (without one: this tree, uncommitted changes included), and holds HEAD
# against BASE in alternating blocks of processes. Revisions that build the program from the same sources are said to be that, and
# nothing is built or measured.
# Usage: tools/bench_check.sh BASE [HEAD] [options of `foretoken bench abba`]. Prints the verdict table; the evidence is in
# build/bench-check/evidence.
# Exit status 0 no loss, 1 a loss or answers that differ, 2 bad input or a build that fails, 3 inconclusive (again on a quieter machine).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

refuse() { echo "bench-check: $*" >&2; exit 2; }
commit_of() { git rev-parse --verify --quiet "$1^{commit}" || refuse "$1 names no commit of this repository"; }

base="${1:-}"
[[ -n "$base" ]] || refuse "name the revision to compare with, such as make bench-check BASE=HEAD~1"
shift
head=""
if [[ $# -gt 0 && "$1" != -* ]]; then
  head="$1"
  shift
fi
base_commit=$(commit_of "$base")
head_commit=""
[[ -z "$head" ]] || head_commit=$(commit_of "$head")
head_name=${head:-this tree}

# All that the program is made of; the model is this tree's for both. The CUDA backend takes long to build and is left out of both,
# unless a run asks for it (BENCH_ARGS=--run=--backend=cuda).
sources=(src CMakeLists.txt bench/cohort.json bench/cohort_heldout.json) cuda=OFF
if [[ "$*" == *cuda* ]]; then cuda=ON; else sources+=(':(exclude)src/cuda'); fi
if git diff --quiet "$base_commit" ${head_commit:+"$head_commit"} -- "${sources[@]}"; then
  echo "$base ($(git rev-parse --short "$base_commit")) and $head_name make the program of the same sources (${sources[*]}): no difference, nothing to measure."
  echo "What this machine makes of two equal programs: build/foretoken bench abba build/foretoken build/foretoken"
  exit 0
fi

work=build/bench-check
mkdir -p "$work"

# Both alike: release, without what is not measured. A revision's sources and its build stay in a folder of its own, for the next time.
build_tree() {  # SOURCES BUILD NAME
  echo "building $3"
  cmake -S "$1" -B "$2" -G Ninja -DCMAKE_BUILD_TYPE=Release -DFORETOKEN_TESTS=OFF -DFORETOKEN_BENCH=OFF -DFORETOKEN_CUDA=$cuda > "$2.log" 2>&1 &&
    cmake --build "$2" --target foretoken >> "$2.log" 2>&1 || { tail -n 20 "$2.log" >&2; refuse "$3 does not build"; }
}
build_revision() {  # COMMIT NAME; leaves the program's path in $program
  local folder
  folder="$work/$(git rev-parse --short=12 "$1")"
  if [[ ! -e "$folder/complete" ]]; then
    rm -rf "$folder"
    mkdir -p "$folder/source"
    git archive "$1" -- . ':(exclude)models' ':(exclude)docs' | tar -x -C "$folder/source"
    touch "$folder/complete"
  fi
  build_tree "$folder/source" "$folder/build-cuda-$cuda" "$2 ($(git rev-parse --short "$1"))"
  program="$folder/build-cuda-$cuda/foretoken"
}

build_revision "$base_commit" "$base"
base_program=$program
if [[ -n "$head_commit" ]]; then
  build_revision "$head_commit" "$head"
else
  build_tree . "$work/here-cuda-$cuda" "this tree"
  program="$work/here-cuda-$cuda/foretoken"
fi
head_program=$program
# One model for both, whatever each tree embeds. HEAD's own `bench abba` measures.
"$head_program" bench abba --help > /dev/null 2>&1 || refuse "$head_name has no \`bench abba\`; name a later HEAD"
"$head_program" bench abba "$base_program" "$head_program" --run=--model=models/demo-dense/demo-dense-Q4_K_M.gguf \
  --run=--draft-model=models/demo-dense/dflash2 --out "$work/evidence" "$@"
