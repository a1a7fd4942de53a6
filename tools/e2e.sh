#!/usr/bin/env bash
# Runs the official openai and Anthropic clients for Node, and the tests of the server as a service, against BUILD/foretoken with the
# embedded model. Installs the clients into BUILD/e2e at the versions of tests/e2e/package-lock.json. Usage: tools/e2e.sh [BUILD [FILE...]].
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$(realpath "${1:-build}")
shift || true
folder="$build/e2e"

mkdir -p "$folder"
cp tests/e2e/*.mjs tests/e2e/package.json "$folder/"
if ! cmp -s tests/e2e/package-lock.json "$folder/installed.json"; then
  cp tests/e2e/package-lock.json "$folder/"
  (cd "$folder" && npm ci --no-audit --no-fund --loglevel error < /dev/null)
  cp tests/e2e/package-lock.json "$folder/installed.json"
fi
cd "$folder"
files=("$@")
(( ${#files[@]} )) || files=(*.test.mjs)
status=0
for file in "${files[@]}"; do  # one after the other: they measure
  FORETOKEN="$build/foretoken" FORETOKEN_CACHE_DIR="$folder/cache" node --test-reporter=tap "$file" || status=1
done
exit "$status"
