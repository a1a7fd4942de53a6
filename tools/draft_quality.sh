#!/bin/sh
# Tokens per cycle of quantised targets and drafters against bf16: every target format with every drafter format, over a cohort of prompts.
#
#   tools/draft_quality.sh OUT MODEL [COHORT]
#
# MODEL: a folder with safetensors and a drafter folder. OUT receives the quantised files, one text per cell and table.md, whose last columns
# say what a cell loses against the first cell (bf16 with the stored drafter) for chains and trees. All targets follow the answers of the first
# one: a quantised target writes other text, and how predictable that is would drown what quantisation costs a draft.
# TARGETS and DRAFTERS choose the formats.
set -eu
program=${PROGRAM:-build/foretoken}
bench=${BENCH:-build/bench/plans_bench}
targets=${TARGETS:-bf16 Q8_0 Q4_K IQ4_XS}
drafters=${DRAFTERS:-stored q8_0}
[ $# -ge 2 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
out=$1 model=$2 cohort=${3:-bench/cohort.json}
drafter=$model/dflash2
[ -d "$drafter" ] || drafter=$model/dflash
mkdir -p "$out"
follow="--traces $out/traces.json"
for target in $targets; do
  path=$model
  if [ "$target" != bf16 ]; then
    path=$out/$(basename "$model")-$target.gguf
    [ -f "$path" ] || "$program" quantize "$model" "$path" --type "$target" --log-level quiet > /dev/null
  fi
  for weights in $drafters; do
    "$bench" --model "$path" --draft-model "$drafter" --draft-weights "$weights" --cohort "$cohort" --cycles-only $follow > "$out/$target-$weights.txt"
    follow="--text $out/traces.json"
  done
done
python3 - "$out" "$targets" "$drafters" << 'PYTHON' | tee "$out/table.md"
import sys
out, targets, drafters = sys.argv[1], sys.argv[2].split(), sys.argv[3].split()
plans = ["mtp chain 3", "mtp chain 7", "dflash chain 7", "dflash tree 16"]
def read(target, drafter):
    with open(f"{out}/{target}-{drafter}.txt") as f:
        return {p: float(line[18:].split()[0]) for line in f for p in plans if line.startswith(p + " ")}
base = read(targets[0], drafters[0])
print("| target | drafter | " + " | ".join(plans) + " | " + " | ".join(p + " against " + targets[0] for p in plans) + " |")
print("|" + "---|" * (2 + 2 * len(plans)))
for t in targets:
    for d in drafters:
        cell = read(t, d)
        print(f"| {t} | {d} | " + " | ".join(f"{cell[p]:.3f}" for p in plans) + " | " + " | ".join(f"{100 * (cell[p] / base[p] - 1):+.1f} %" for p in plans) + " |")
PYTHON
