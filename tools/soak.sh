#!/usr/bin/env bash
# Simulated hours of traffic on the engine (8 unless --hours says otherwise): answers, invariants and flat memory. Options are sim_soak's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cmake --preset release > /dev/null
cmake --build build --target sim_soak > /dev/null
exec build/tests/sim/sim_soak "$@"
