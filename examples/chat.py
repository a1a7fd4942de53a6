#!/usr/bin/env python3
"""Streams an answer of a running server (foretoken serve). Standard library only. OPENAI_BASE_URL and OPENAI_API_KEY, where set, say
where the server is and its key."""
import json
import os
import sys
import urllib.request

URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1") + "/chat/completions"
KEY = os.environ.get("OPENAI_API_KEY", "none")


def main():
    question = " ".join(sys.argv[1:]) or "What does the command ls do?"
    body = {"messages": [{"role": "user", "content": question}], "stream": True, "stream_options": {"include_usage": True}}
    request = urllib.request.Request(URL, json.dumps(body).encode(), {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request) as response:
        for line in response:
            text = line.decode().strip()
            if not text.startswith("data: ") or text == "data: [DONE]":
                continue
            chunk = json.loads(text[6:])
            for choice in chunk["choices"]:
                print(choice["delta"].get("content") or "", end="", flush=True)
            if chunk.get("usage"):
                speculation = chunk["foretoken"]["speculation"]
                print(f"\n[{chunk['usage']['completion_tokens']} tokens, {speculation['tokens_per_cycle']:.2f} a cycle]")


if __name__ == "__main__":
    main()
