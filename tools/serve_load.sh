#!/usr/bin/env bash
# The tests of load and failure at full size (1,000 streams, 10,000 requests, three kills a minute apart, 5,000 broken connections), and
# what the server adds to the first token and to decoding. Some minutes; not part of the tests. Usage: tools/serve_load.sh [BUILD].
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build}
CLIENTS=1000 REQUESTS=10000 KILLS=3 HOSTILE=5000 tools/e2e.sh "$build" load.test.mjs hostile.test.mjs kill.test.mjs | grep -E '^( *)?(# [^S]|ok|not ok|  error)' |
  grep -vE '# (tests|pass|fail|cancelled|skipped|todo|duration|suites)'
tools/e2e.sh "$build" latency.mjs | grep -E '^[f4]'
