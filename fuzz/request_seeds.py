#!/usr/bin/env python3
"""Writes seed inputs for the fuzzer of API requests: OUT/requests/<name>. Standard library only. usage: request_seeds.py OUT"""
import json
import pathlib
import sys

TOOL = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "u"}]},
            {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "t"}]
SAMPLING = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "seed": 7, "stop": ["x"], "n": 2, "logit_bias": {"1": -100, "2": 3}, "presence_penalty": 1,
            "frequency_penalty": 1, "repetition_penalty": 1.1, "thinking_budget": 4, "stream": True, "priority": 1, "timeout": 3}
SEEDS = {
    "chat": (0, {"model": "m", "messages": MESSAGES, "tools": [{"type": "function", "function": TOOL}], "tool_choice": {"type": "function", "function": {"name": "f"}}, "logprobs": True,
                 "top_logprobs": 2, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}, "reasoning_effort": "low",
                 "chat_template_kwargs": {"enable_thinking": True}, "stream_options": {"include_usage": True}, "max_tokens": 3, **SAMPLING}),
    "completion": (1, {"prompt": ["a", [1, 2]], "echo": False, "logprobs": 1, "max_tokens": 2, **SAMPLING}),
    "messages": (2, {"model": "m", "max_tokens": 9, "system": [{"type": "text", "text": "s"}], "thinking": {"type": "enabled", "budget_tokens": 5}, "stop_sequences": ["x"],
                     "tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "tool", "name": "f"}, "output_config": {"effort": "low"},
                     "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, {"type": "text", "text": "a"},
                                  {"type": "tool_use", "id": "u", "name": "f", "input": {}}]},
                                  {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "u", "content": "r", "is_error": True}]}]}),
    "responses": (3, {"instructions": "i", "input": [{"role": "user", "content": [{"type": "input_text", "text": "u"}]}, {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "r"}]},
                      {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}, {"type": "function_call_output", "call_id": "c", "output": "o"}],
                      "tools": [{"type": "function", **TOOL}], "text": {"format": {"type": "json_schema", "schema": {}}}, "reasoning": {"effort": "low"}, "store": True, "max_output_tokens": 4}),
}
# A frame: its length, then CBOR of {"type": "event", "k": 3, "c": 4, "m": "x"}.
EVENT = bytes.fromhex("a4647479706565" "76656e74616b03616304616d6178")


def main():
    folder = pathlib.Path(sys.argv[1]) / "requests"
    folder.mkdir(parents=True, exist_ok=True)
    for name, (reader, body) in SEEDS.items():
        (folder / name).write_bytes(bytes([reader]) + json.dumps(body).encode())
    (folder / "frame").write_bytes(b"\x04" + len(EVENT).to_bytes(4, "little") + EVENT)
    (folder / "host").write_bytes(b"\x05[::1]:80")


if __name__ == "__main__":
    main()
