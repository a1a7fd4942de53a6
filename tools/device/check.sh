#!/usr/bin/env bash
# Runs every check of the CUDA backend on a machine with a GPU and prints a short table last. It builds nothing: FOLDER is what
# collect.sh made. usage: check.sh FOLDER [STEP...], from the repository's root. Steps: ops fusion draft model transfers run certify rows sanitize products
# speed27 speeda3b cycle27 cyclea3b profile27 profilea3b, and with OTHER=FOLDER2, of a build for another architecture, same; the first seven by default.
set -uo pipefail
folder=$(realpath "${1:?usage: check.sh FOLDER [STEP...]}")
shift
steps=("$@")
(( ${#steps[@]} )) || steps=(ops fusion draft model transfers run certify)
logs=${OUT:-$(mktemp -d)}
OTHER=$(realpath "${OTHER:-$folder}")
export LD_LIBRARY_PATH="$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
table=()

step() {  # name, command...
  local name=$1 begin=$SECONDS
  shift
  if timeout 400 "$@" > "$logs/$name.log" 2>&1; then table+=("$name|passed|$((SECONDS - begin)) s"); else table+=("$name|FAILED ($?)|$((SECONDS - begin)) s"); fi
}

test_step() { step "$1" "$folder/cuda_test" --gtest_brief=1 --gtest_filter="$2"; }

same_text() {  # the same ids plain and with every drafter, greedy and sampled
  local plain other arguments
  for arguments in "--temperature 0" "--temperature 0.8 --seed 7"; do
    # shellcheck disable=SC2086
    plain=$("$folder/foretoken" run --backend cuda --log-level quiet --json --max-tokens 96 --speculate off $arguments "Write a short story." ) || return 1
    for drafter in copy mtp dflash; do
      # shellcheck disable=SC2086
      other=$("$folder/foretoken" run --backend cuda --log-level quiet --json --max-tokens 96 --speculate $drafter $arguments "Write a short story.") || return 1
      python3 - "$plain" "$other" "$drafter $arguments" <<'PY' || return 1
import json, sys
a, b = json.loads(sys.argv[1]), json.loads(sys.argv[2])
print(sys.argv[3], "same" if a["ids"] == b["ids"] else "DIFFERENT", len(b["ids"]), b["speculation"], "plain tok/s", round(a["timing"]["decode_tok_s"]),
      "with drafts", round(b["timing"]["decode_tok_s"]))
sys.exit(a["ids"] != b["ids"])
PY
    done
  done
}

same_build() {  # both folders' kernels, on this device, give the same ids: plain and drafted, prompts of one pass and of many
  local mine other arguments prompt
  prompt=$(printf 'The quick brown fox number %d jumps over the lazy dog. ' $(seq 40))
  for arguments in "--speculate off" "--speculate mtp" "--speculate copy --temperature 0.8 --seed 7" "--speculate off --kv-format int8" "--speculate off --kv-format f32"; do
    # shellcheck disable=SC2086
    mine=$("$folder/foretoken" run --backend cuda --log-level quiet --json --max-tokens 128 $arguments "$prompt") || return 1
    # shellcheck disable=SC2086
    other=$("$OTHER/foretoken" run --backend cuda --log-level quiet --json --max-tokens 128 $arguments "$prompt") || return 1
    python3 -c 'import json, sys
a, b = (json.loads(t)["ids"] for t in sys.argv[1:3])
print(sys.argv[3], "same" if a == b else "DIFFERENT", len(a))
sys.exit(a != b or len(set(a)) < 5)' "$mine" "$other" "$arguments" || return 1
  done
}

profile() {  # shape: time of each kernel alone, of four layers and the head, for one row and for eight
  ncu --clock-control none --cache-control none --metrics gpu__time_duration.sum --csv --page raw \
    --log-file "$logs/profile.csv" "$folder/cuda_bench" --no-graphs --shape "$1" --layers 4 --rows 1,8 --rounds 1 --prefill 512 --prefix 1024 || return 1
  python3 - "$logs/profile.csv" <<'PY'
import csv, sys
rows = [r for r in csv.reader(line for line in open(sys.argv[1]) if line.startswith('"'))]
head = rows[0]
name, grid, time = head.index("Kernel Name"), head.index("Grid Size"), head.index("gpu__time_duration.sum")
unit = {"ns": 1e-3, "us": 1, "ms": 1e3}[rows[1][time].replace("second", "s")]
passes = {}
for r in rows[2:]:
    kernel, size = r[name].split("(")[0].split("::")[-1].replace("unnamed>", ""), r[grid].replace(" ", "")
    if r[name].find("embed_kernel") >= 0:
        current = passes[size.split(",")[1]] = []  # the last pass of so many rows stays
    if passes:
        current.append((r[name].split("(anonymous namespace)::")[-1].split("unnamed>::")[-1].split("(")[0], size, float(r[time].replace(",", "")) * unit))
for size, kernels in passes.items():
    print("%s rows, %d launches, %.1f us:" % (size, len(kernels), sum(k[2] for k in kernels)))
    print("  " + "; ".join("%s%s %.1f" % k for k in kernels))
PY
}

export folder logs OTHER
export -f same_text same_build profile

for name in "${steps[@]}"; do
  case "$name" in
    ops) test_step ops 'CudaOps.*' ;;
    fusion) test_step fusion 'CudaFusion.*' ;;
    draft) test_step draft 'CudaDraft.*' ;;
    model) test_step model 'CudaModel.*' ;;
    transfers) test_step transfers 'CudaTransfers.*' ;;
    run) step run bash -c same_text ;;
    same) step same bash -c same_build ;;
    certify) step certify "$folder/foretoken" certify --backend cuda --quick ;;
    sanitize) step sanitize compute-sanitizer --error-exitcode 9 "$folder/cuda_test" --gtest_brief=1 --gtest_filter='CudaOps.ProductsOfEveryFormat:CudaOps.Moe:CudaModel.*' ;;
    rows) step rows bash -c '"$folder/cuda_bench" --check --prefill 256 --shape 27b && "$folder/cuda_bench" --check --prefill 256 --shape a3b' ;;
    cycle27) step cycle27 "$folder/cuda_cycle" --shape 27b --rows 1,4,8 ;;
    cyclea3b) step cyclea3b "$folder/cuda_cycle" --shape a3b --rows 1,4,8 --tokens 3.3,4.8 ;;
    products) step products "$folder/cuda_bench" --products ;;
    speed27) step speed27 "$folder/cuda_bench" --shape 27b ;;
    profile27) step profile27 bash -c 'profile 27b' ;;
    profilea3b) step profilea3b bash -c 'profile a3b' ;;
    speeda3b) step speeda3b "$folder/cuda_bench" --shape a3b ;;
    *) table+=("$name|unknown step|") ;;
  esac
done
for name in "${steps[@]}"; do
  [[ -s "$logs/$name.log" ]] || continue
  echo "---- $name"
  tail -n 24 "$logs/$name.log" | cut -c 1-"${WIDTH:-230}"
done
echo "---- table"
printf '%s\n' "${table[@]}" | awk -F'|' '{printf "%-12s %-12s %s\n", $1, $2, $3}'
[[ "${table[*]}" != *FAILED* ]]
