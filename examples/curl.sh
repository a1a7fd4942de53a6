#!/bin/sh
# Asks a running server (foretoken serve) through each API. Usage: curl.sh [URL]; OPENAI_API_KEY, where set, is its key.
set -eu
url="${1:-http://127.0.0.1:8000}"
key="${OPENAI_API_KEY:-none}"
ask() { curl -fsS "$url$1" -H "Authorization: Bearer $key" -H 'Content-Type: application/json' -d "$2"; echo; }

curl -fsS "$url/v1/models" -H "Authorization: Bearer $key"; echo
ask /v1/chat/completions '{"messages": [{"role": "user", "content": "What does ls do?"}], "max_tokens": 60}'
ask /v1/completions '{"prompt": "The first three primes are", "max_tokens": 12}'
ask /v1/responses '{"input": "What does ls do?", "max_output_tokens": 60}'
ask /v1/messages '{"model": "demo-dense", "max_tokens": 60, "messages": [{"role": "user", "content": "What does ls do?"}]}'
