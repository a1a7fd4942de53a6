#!/usr/bin/env bash
# Collects what a machine with a GPU needs to run the checks, from a build folder into another: programs, the backend's library, tiny
# bundles, and the shared libraries that a bare machine may lack. usage: tools/device/collect.sh BUILD FOLDER
set -euo pipefail
build=${1:?usage: collect.sh BUILD FOLDER} folder=${2:?usage: collect.sh BUILD FOLDER}
mkdir -p "$folder/lib" "$folder/golden"
here=$(dirname "${BASH_SOURCE[0]}")
programs=("$build/foretoken" "$build/tests/cuda/cuda_test" "$build/bench/cuda_bench" "$build/bench/cuda_cycle")
for program in "${programs[@]}" "$build/libforetoken_cuda.so"; do
  [[ -e "$program" ]] || continue
  strip -o "$folder/$(basename "$program")" "$program"
  ldd "$program" | awk '/=> \//{print $3}' | grep -vE '/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv))\.so' |
    xargs -r cp -Lnt "$folder/lib" || true
done
for bundle in qwen35/model-f32.gguf qwen35moe/model-f32.gguf qwen3next/model-bf16.gguf quant/model.gguf quantmoe/model.gguf; do
  [[ -e "$build/golden/$bundle" ]] || continue
  mkdir -p "$folder/golden/$(dirname "$bundle")"
  cp -u "$build/golden/$bundle" "$folder/golden/$bundle"
done
cp "$here/check.sh" "$folder/"
du -sh "$folder"
