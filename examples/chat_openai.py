#!/usr/bin/env python3
"""A tool call with OpenAI's Python client (pip install openai) on a running server (foretoken serve): the model asks for a file's size,
the program looks, the model answers. OPENAI_BASE_URL and OPENAI_API_KEY say where the server is and its key."""
import json
import os
import pathlib
import sys

from openai import OpenAI

TOOLS = [{"type": "function", "function": {
    "name": "file_size", "description": "Size of a file in bytes",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}}}]


def file_size(path):
    try:
        return {"bytes": pathlib.Path(path).stat().st_size}
    except OSError as error:
        return {"error": error.strerror}


def main():
    client = OpenAI(base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"), api_key=os.environ.get("OPENAI_API_KEY", "none"))
    model = client.models.list().data[0].id
    messages = [{"role": "user", "content": " ".join(sys.argv[1:]) or "How large is /etc/hostname?"}]
    asked = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, tool_choice="required", max_tokens=400)
    messages.append(asked.choices[0].message)
    for call in asked.choices[0].message.tool_calls:
        result = file_size(**json.loads(call.function.arguments))
        print(f"{call.function.name}({call.function.arguments}) = {result}")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
    with client.chat.completions.create(model=model, messages=messages, tools=TOOLS, tool_choice="none", max_tokens=400, stream=True) as stream:
        for chunk in stream:
            if chunk.choices:
                print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
