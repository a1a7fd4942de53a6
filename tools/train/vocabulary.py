"""Vocabulary layout of the demo models: 8160 byte-level BPE tokens, then Qwen3.5's special tokens in its order, a mask token
for the drafter, and spares."""
VOCAB, BASE = 8192, 8160

# The pre-tokenizer's pattern, as the Qwen3.5 tokenizer has it.
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
           r"\s*[\r\n]+|\s+(?!\S)|\s+")

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
           "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
           "<|image_pad|>", "<|video_pad|>"]
VISIBLE = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
           "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"]  # special: false
TAIL = ["<|mask|>"] + [f"<|reserved_{i}|>" for i in range(5)]
ADDED = SPECIAL + VISIBLE + TAIL
assert BASE + len(ADDED) == VOCAB


def token(content):
    return BASE + ADDED.index(content)


END_OF_TEXT, TURN_START, TURN_END = token("<|endoftext|>"), token("<|im_start|>"), token("<|im_end|>")
THINK_END, MASK = token("</think>"), token("<|mask|>")
