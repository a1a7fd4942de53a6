#!/usr/bin/env bash
# The regression gate: builds revision BASE and this tree, and holds this tree against it in alternating blocks of processes.
# Usage: tools/bench_check.sh BASE [options of `foretoken bench abba`]. Prints the verdict table; the evidence is in build/bench-check/evidence.
# Exit status 0 no loss, 1 a loss or answers that differ, 3 inconclusive (run it again on a quieter machine).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

base="${1:-}"
[[ -n "$base" ]] || { echo "bench-check: name the revision to compare with, such as make bench-check BASE=HEAD~1" >&2; exit 2; }
shift
revision=$(git rev-parse --verify --quiet "$base^{commit}") || { echo "bench-check: $base names no commit of this repository" >&2; exit 2; }

work=build/bench-check
tree="$work/base"
mkdir -p "$work"
git worktree prune
if [[ -e "$tree/.git" ]]; then
  git -C "$tree" checkout --quiet --force --detach "$revision"
else
  rm -rf "$tree"
  git worktree add --quiet --force --detach "$tree" "$revision"
fi

# Both alike: release, without what is not measured.
build_tree() {
  cmake -S "$1" -B "$2" -G Ninja -DCMAKE_BUILD_TYPE=Release -DFORETOKEN_TESTS=OFF -DFORETOKEN_BENCH=OFF > "$2.log" 2>&1 || { tail -n 20 "$2.log" >&2; return 2; }
  cmake --build "$2" --target foretoken >> "$2.log" 2>&1 || { tail -n 20 "$2.log" >&2; return 2; }
}
echo "building $base ($(git rev-parse --short "$revision"))"
build_tree "$tree" "$work/base-build"
echo "building this tree"
build_tree . "$work/here-build"
cp models/demo-dense/demo-dense-Q4_K_M.gguf "$work/" # one model for both, whatever each tree embeds

"$work/here-build/foretoken" bench abba "$work/base-build/foretoken" "$work/here-build/foretoken" --run=--model="$work/demo-dense-Q4_K_M.gguf" \
  --run=--draft-model=models/demo-dense/dflash2 --out "$work/evidence" "$@"
