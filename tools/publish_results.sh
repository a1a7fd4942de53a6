#!/usr/bin/env bash
# Makes the measurements of docs/results/, one command each. Run it on a machine that does nothing else; undecided results are kept too.
# Usage: tools/publish_results.sh [--llama LLAMA_SERVER] [MODEL.gguf ...]   (further models: their row costs and speed)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

llama=""
if [[ "${1:-}" == --llama ]]; then
  llama=${2:?--llama takes the path of llama.cpp\'s server}
  shift 2
fi
embedded=models/demo-dense/demo-dense-Q4_K_M.gguf

publish() {  # NAME, words of `foretoken bench`
  local name=$1 status=0
  shift
  echo "== $name: foretoken bench $*"
  build/foretoken bench "$@" --out "docs/results/$name" || status=$?
  (( status == 0 || status == 3 )) || { echo "publish_results: $name ended with status $status" >&2; exit "$status"; }
  build/foretoken bench report "docs/results/$name" > /dev/null
}

publish speed-demo speed --blocks 6
publish speed-holdout speed --blocks 6 --cohort holdout
publish rows-demo rows --model "$embedded"
publish conversation-demo conversation
publish variate-demo variate
[[ -z "$llama" ]] || publish compare-demo compare --model "$embedded" --llama "$llama"
for model in "$@"; do
  name=$(basename "${model%.gguf}")
  publish "rows-$name" rows --model "$model"
  publish "speed-$name" speed --model "$model" --cohort bench/cohort_random.json --blocks 4 --tokens 48
done
