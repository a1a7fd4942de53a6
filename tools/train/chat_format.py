"""The chat format of the demo models in Python: what the training text is rendered with. It equals chat_template.jinja beside
it byte for byte (check.py compares them where jinja2 is installed).

A turn is <|im_start|>role, a newline, the content, <|im_end|>, a newline. Thinking stands in <think> before the final answer and
only after the last user turn; tools are described in the system turn; calls are <tool_call><function=..><parameter=..> blocks;
results of tools come inside a user turn."""
import json
import pathlib

TEMPLATE = pathlib.Path(__file__).with_name("chat_template.jinja")

TOOLS_HEAD = "# Tools\n\nYou may call these functions:\n\n<tools>"
TOOLS_TAIL = ("\n</tools>\n\nTo call a function, answer with this form and nothing after it:\n\n"
              "<tool_call>\n<function=function_name>\n<parameter=parameter_name>\nvalue\n</parameter>\n"
              "</function>\n</tool_call>")


def _call(name, arguments):
    text = f"<tool_call>\n<function={name}>\n"
    for key, value in arguments.items():
        if not isinstance(value, str):
            value = json.dumps(value, ensure_ascii=False)
        text += f"<parameter={key}>\n{value}\n</parameter>\n"
    return text + "</function>\n</tool_call>"


def _turn(role, content):
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


def _assistant(message, with_thinking):
    text = f"<think>\n{message.get('reasoning_content', '')}\n</think>\n\n" if with_thinking else ""
    text += message.get("content", "")
    for index, call in enumerate(message.get("tool_calls", ())):
        text += "\n" if index else "\n\n" if message.get("content") else ""
        text += _call(call["name"], call["arguments"])
    return _turn("assistant", text)


def render(messages, tools=None, add_generation_prompt=False, enable_thinking=True):
    """messages: list of {role, content, [reasoning_content], [tool_calls: [{name, arguments}]]}."""
    system = messages[0]["content"] if messages and messages[0]["role"] == "system" else None
    rest = messages[1:] if system is not None else messages
    out = []
    if tools:
        text = TOOLS_HEAD + "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools) + TOOLS_TAIL
        out.append(_turn("system", text + ("\n\n" + system if system else "")))
    elif system is not None:
        out.append(_turn("system", system))
    last_user = max((i for i, message in enumerate(rest) if message["role"] == "user"), default=-1)
    for i, message in enumerate(rest):
        if message["role"] == "tool":
            first = i == 0 or rest[i - 1]["role"] != "tool"
            last = i + 1 == len(rest) or rest[i + 1]["role"] != "tool"
            out.append("<|im_start|>user" * first + f"\n<tool_response>\n{message['content']}\n</tool_response>" +
                       "<|im_end|>\n" * last)
        elif message["role"] == "assistant":
            out.append(_assistant(message, with_thinking=i > last_user))
        else:
            out.append(_turn(message["role"], message["content"]))
    if add_generation_prompt:
        out.append("<|im_start|>assistant\n" + ("<think>\n" if enable_thinking else "<think>\n\n</think>\n\n"))
    return "".join(out)


def prompt_of(messages):
    """The turns before the first answer."""
    return messages[:next((i for i, m in enumerate(messages) if m["role"] == "assistant"), len(messages))]
