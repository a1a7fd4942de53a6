#!/usr/bin/env bash
# Builds every fuzzer (preset fuzz: clang, address and undefined behaviour sanitizers) and runs each for FUZZ_SECONDS
# (default 30 in CI, 10 elsewhere) from its seeds. Prints `ok NAME ...` or `FAILED NAME ...` for each; exit status 1 when any
# failed. Arguments name fuzzers to run instead of all. FUZZ_SEED (default 1, so that a run can be repeated) seeds the mutations; 0 takes
# another seed each time, for long runs.
#
# Seeds of fuzzer NAME: build-fuzz/seeds/NAME/, written by the scripts fuzz/*seeds.py, and fuzz/seeds/NAME/ where committed.
# Inputs that reached new code are kept in build-fuzz/corpus/NAME/, findings in build-fuzz/findings/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds="${FUZZ_SECONDS:-}"
[[ -n "$seconds" ]] || seconds=$([[ "${CI:-}" == true ]] && echo 30 || echo 10)
seed="${FUZZ_SEED:-1}"
jobs="${FUZZ_JOBS:-$(nproc)}"
python=/usr/bin/python3
[[ -x "$python" ]] || python=python3

cmake --preset fuzz > /dev/null
cmake --build build-fuzz --target fuzzers
for script in fuzz/*seeds.py; do
  [[ -f "$script" ]] && "$python" "$script" build-fuzz/seeds
done

fuzzers=("$@")
if (( ${#fuzzers[@]} == 0 )); then
  mapfile -t fuzzers < <(sed -n 's/^ *foretoken_fuzzer(\([a-z0-9_]*\).*/\1/p' fuzz/CMakeLists.txt)
fi
(( ${#fuzzers[@]} )) || { echo "fuzz: no fuzzer is declared in fuzz/CMakeLists.txt"; exit 0; }

run_one() {
  local name=$1 log="build-fuzz/logs/$1.log" seeds=() folder
  mkdir -p "build-fuzz/corpus/$name" build-fuzz/logs build-fuzz/findings
  for folder in "fuzz/seeds/$name" "build-fuzz/seeds/$name"; do
    [[ -d "$folder" ]] && seeds+=("$folder")
  done
  if [[ ${#seeds[@]} -eq 0 ]]; then
    echo "FAILED fuzz_$name: it has no seeds; let a script fuzz/*seeds.py write them"
    return 1
  fi
  local binary
  binary=$(find build-fuzz -type f -name "fuzz_$name" -perm -u+x -print -quit)
  # Lengths beyond a seed's own size teach little and cost much; a single input may take 10 s and 2 GiB at most.
  if "$binary" -seed="$seed" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=1 \
      -artifact_prefix="build-fuzz/findings/$name-" "build-fuzz/corpus/$name" "${seeds[@]}" > "$log" 2>&1; then
    local runs
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -n 1)
    echo "ok fuzz_$name: ${runs:-0} runs in $seconds s from $(find "${seeds[@]}" -type f | wc -l) seeds"
  else
    tail -n 30 "$log"
    echo "FAILED fuzz_$name: see $log; the input is in build-fuzz/findings"
    return 1
  fi
}
export -f run_one
export seconds seed
printf '%s\n' "${fuzzers[@]}" | xargs -P "$jobs" -I{} bash -c 'run_one "$1"' _ {}
