#!/usr/bin/env bash
# Runs the official openai and Anthropic clients for Node, the chat page in a browser, and the tests of the server as a service, against
# BUILD/foretoken with the embedded model. Installs what they need from npm into BUILD/e2e at the versions of tests/e2e/package-lock.json;
# the browser is the system's chromium. Usage: tools/e2e.sh [BUILD [FILE...]].
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$(realpath "${1:-build}")
shift || true
folder="$build/e2e"

mkdir -p "$folder"
cp tests/e2e/*.mjs tests/e2e/package.json "$folder/"
mkdir -p "$folder/web"
cp src/serve/web/*.js "$folder/web/"
export FORETOKEN="$build/foretoken" FORETOKEN_BUILD="$build" FORETOKEN_ROOT="$PWD" FORETOKEN_CACHE_DIR="$folder/cache"
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
  node --test-reporter=tap "$file" || status=1
done
exit "$status"
