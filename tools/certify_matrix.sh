#!/bin/sh
# The exactness certificate over models, weight formats and K/V formats: one certificate per cell, and a table.
#
#   tools/certify_matrix.sh OUT MODEL... [-- CERTIFY_OPTIONS]
#
# MODEL: folders with safetensors (a drafter folder beside the weights is used). OUT receives NAME-WEIGHTS-KV.json and table.md; quantised
# weights go to OUT/weights and are kept. WEIGHTS and KV choose the columns (defaults below), PROGRAM the program.
#   WEIGHTS="bf16 Q8_0 Q4_K IQ4_XS" KV="f32 bf16 int8" tools/certify_matrix.sh out models/a models/b -- --quick
# Exit status 0 when every cell passes, 1 when one fails, 3 when none fails and one is inconclusive.
set -eu
program=${PROGRAM:-build/foretoken}
weights=${WEIGHTS:-bf16 Q8_0 Q4_K IQ4_XS}
kv_formats=${KV:-f32 bf16 int8}
[ $# -ge 2 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
out=$1
shift
models=
while [ $# -gt 0 ] && [ "$1" != "--" ]; do
  models="$models $1"
  shift
done
[ $# -eq 0 ] || shift
mkdir -p "$out/weights"
table=$out/table.md
{
  echo "| model | weights | K/V | verdict | cells | logits | tokens | states | drafted | rejected | least drafted | least rejected | seconds |"
  echo "|---|---|---|---|---|---|---|---|---|---|---|---|---|"
} > "$table"
worst=0
for model in $models; do
  name=$(basename "$model")
  drafter=
  for folder in dflash2 dflash; do
    [ -n "$drafter" ] || [ ! -d "$model/$folder" ] || drafter=$model/$folder
  done
  for format in $weights; do
    if [ "$format" = bf16 ]; then
      path=$model
    else
      path=$out/weights/$name-$format.gguf
      [ -f "$path" ] || "$program" quantize "$model" "$path" --type "$format" --log-level quiet > /dev/null
    fi
    for kv in $kv_formats; do
      file=$out/$name-$format-$kv.json
      begin=$(date +%s)
      status=0
      "$program" certify --model "$path" ${drafter:+--draft-model "$drafter"} --kv-format "$kv" --log-level quiet --out "$file" "$@" > /dev/null 2> "$file.log" || status=$?
      case $status in 0 | 1 | 3) ;; *)
        cat "$file.log" >&2
        exit "$status" ;;
      esac
      rm -f "$file.log"
      if [ "$status" -eq 1 ] || { [ "$status" -eq 3 ] && [ "$worst" -eq 0 ]; }; then worst=$status; fi
      python3 - "$file" "$name" "$format" "$kv" "$(($(date +%s) - begin))" << 'PYTHON' >> "$table"
import json, sys
path, name, weights, kv, seconds = sys.argv[1:]
with open(path) as f:
    c = json.load(f)
ids = [cell for cell in c["cells"] if cell["part"] == "ids" and not cell["name"].startswith("all routes")]
row = [name, weights, kv, c["verdict"], len(c["cells"]), c["compared_logits"], c["compared_tokens"], c["compared_states"], c["drafted"], c["rejected"],
       min((cell["drafted"] for cell in ids), default=0), min((cell["rejected"] for cell in ids), default=0), seconds]
print("| " + " | ".join(str(x) for x in row) + " |")
PYTHON
      tail -n 1 "$table"
    done
  done
done
exit "$worst"
