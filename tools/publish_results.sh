#!/usr/bin/env bash
# Makes the measurements of docs/results/, one command each. Run it on a machine that does nothing else; undecided results are kept too.
# Usage: tools/publish_results.sh [--llama LLAMA_SERVER] [--only NAME] [MODEL.gguf ...]
# MODEL.gguf: further models with a tokenizer, for their row costs, speed and comparison, for example what
# `tools/make_bundle.py big --shape 1.44b --type Q4_K --tokenizer build/big-Q4_K.gguf` writes. --only: that folder alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

llama="" only=""
while [[ "${1:-}" == --* ]]; do
  case "$1" in
    --llama) llama=${2:?--llama takes the path of llama.cpp\'s server} ;;
    --only) only=${2:?--only takes the name of a folder of docs/results} ;;
    *) echo "publish_results: there is no option $1" >&2; exit 2 ;;
  esac
  shift 2
done
embedded=models/demo-dense/demo-dense-Q4_K_M.gguf
drafter=models/demo-dense/dflash2/demo-dense-dflash2-Q8_0.gguf

publish() {  # NAME, words of `foretoken bench`
  local name=$1 status=0
  shift
  [[ -z "$only" || "$only" == "$name" ]] || return 0
  echo "== $name: foretoken bench $*"
  build/foretoken bench "$@" --out "docs/results/$name" || status=$?
  (( status == 0 || status == 3 )) || { echo "publish_results: $name ended with status $status" >&2; exit "$status"; }
  build/foretoken bench report "docs/results/$name" > /dev/null
}

publish speed-demo speed
publish speed-holdout speed --cohort holdout --arms "auto,mtp chain 3,dflash live 7,copy chain 7"
publish rows-demo rows --model "$embedded"
publish conversation-demo conversation
publish variate-demo variate
[[ -z "$llama" ]] || publish compare-demo compare --model "$embedded" --peer-drafter "$drafter" --tokens 48 --llama "$llama"
for model in "$@"; do
  name=$(basename "${model%.gguf}")
  publish "rows-$name" rows --model "$model" --blocks 2
  publish "speed-$name" speed --model "$model" --cohort bench/cohort_random.json --tokens 16 --arms auto
  [[ -z "$llama" ]] || publish "compare-$name" compare --model "$model" --cohort bench/cohort_random.json --classes "random digits" --tokens 16 --modes none,ngram-simple --llama "$llama"
done
