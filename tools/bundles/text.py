"""A tiny byte-level BPE tokenizer in the Qwen style: trained here, written as tokenizer.json and as GGUF metadata, with an
encoder of its own to check against. Also the chat template of the tiny bundles. Knows no tensors."""
import unicodedata
from collections import Counter

# What the merges are learnt from: written for this purpose, with the kinds of text that tests feed in.
CORPUS = """
The quick answer is not always the right answer, but the right answer is often quick to check. A model reads one token
after another token; it keeps a small state and a growing list of keys and values, and from both it guesses the next token.
When the guess is checked by the model itself, nothing that was guessed wrongly can reach the reader. That is the whole
idea: draft, verify, accept, repeat. There are many ways to draft, there is one way to verify.
def sum_of_squares(values):
    total = 0
    for value in values:
        total += value * value
    return total
for (int i = 0; i < count; ++i) { if (result[i] != expected[i]) return false; }
{"name": "get_weather", "arguments": {"city": "Oslo", "unit": "celsius"}}, {"id": 1, "items": [1, 2, 3], "ok": true}
What is the weather in Oslo today? I'll look it up. It's 12 degrees, and it doesn't rain; we've seen worse, they'd say.
Der Fluss ist größer als der Bach, aber schöner ist das Meer. Où est la bibliothèque ? Élève, forêt, naïve, garçon.
東京の天気は晴れです。 今日はいい天気ですね。 Привет, мир! Как дела? Хорошо, спасибо.
"""
MERGES = 330

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
           "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
           "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>",
           "</think>", "<|audio_start|>"]
VISIBLE = {"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"}  # special: false

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
           r"\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_alphabet():
    """The character that stands for each byte: itself when printable in Latin-1, else U+0100 and up in order."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in kept else chr(next(others)) for b in range(256)]


# ---- pre-tokenizer: PATTERN as a scanner over Unicode categories

def _letter(c):
    return unicodedata.category(c)[0] == "L"


def _word(c):
    return unicodedata.category(c)[0] in "LM"


def _number(c):
    return unicodedata.category(c)[0] == "N"


def _space(c):
    return c in "\t\n\v\f\r\x85" or unicodedata.category(c) in ("Zs", "Zl", "Zp")


def _symbol(c):
    return not (_space(c) or _word(c) or _number(c))


def _run(text, at, test):
    while at < len(text) and test(text[at]):
        at += 1
    return at


def _piece_end(text, at):
    if text[at] == "'":
        for ending in ("s", "t", "re", "ve", "m", "ll", "d"):
            if text[at + 1:at + 1 + len(ending)].lower() == ending and text[at + 1:at + 1 + len(ending)].isascii():
                return at + 1 + len(ending)
    lead = at + (text[at] not in "\r\n" and not _letter(text[at]) and not _number(text[at]))
    for begin in dict.fromkeys((lead, at)):  # the optional first character is taken when a word follows it
        if begin < len(text) and _word(text[begin]):
            return _run(text, begin, _word)
    if _number(text[at]):
        return at + 1
    begin = at + (text[at] == " ")
    if begin < len(text) and _symbol(text[begin]):
        return _run(text, _run(text, begin, _symbol), lambda c: c in "\r\n")
    end = _run(text, at, _space)
    breaks = [i for i in range(at, end) if text[i] in "\r\n"]
    if breaks:
        return breaks[-1] + 1
    return end if end == len(text) or end == at + 1 else end - 1  # the last space goes to what follows


def pieces(text):
    at = 0
    while at < len(text):
        end = _piece_end(text, at)
        yield text[at:end]
        at = end


# ---- byte pair encoding

def _merged(symbols, pair):
    result, i = [], 0
    while i < len(symbols):
        if i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == pair:
            result.append(symbols[i] + symbols[i + 1])
            i += 2
        else:
            result.append(symbols[i])
            i += 1
    return tuple(result)


def _train(corpus, count):
    letters = byte_alphabet()
    words = Counter(tuple(letters[b] for b in piece.encode()) for piece in pieces(unicodedata.normalize("NFC", corpus)))
    merges, known = [], set(letters)
    while len(merges) < count:
        pairs = Counter()
        for symbols, times in words.items():
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] += times
        # Most frequent first; ties by text, so that training is a function of the corpus. Two pairs may spell one token.
        pair = min((p for p in pairs if p[0] + p[1] not in known), key=lambda p: (-pairs[p], p))
        merges.append(pair)
        known.add(pair[0] + pair[1])
        words = Counter({_merged(symbols, pair): times for symbols, times in words.items()})
    return merges


class Tokenizer:
    def __init__(self, merges=MERGES):
        self.merges = _train(CORPUS, merges)
        tokens = sorted(byte_alphabet()) + [a + b for a, b in self.merges]
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.rank = {pair: i for i, pair in enumerate(self.merges)}
        self.added = {content: len(tokens) + i for i, content in enumerate(SPECIAL)}
        self.size = len(tokens) + len(SPECIAL)

    def encode(self, text):
        """Ids of `text`, special tokens recognised."""
        result, at = [], 0
        while at < len(text):
            found = [(text.find(content, at), -len(content), content) for content in self.added]
            found = [f for f in found if f[0] >= 0]
            start, _, content = min(found) if found else (len(text), 0, None)
            for piece in pieces(unicodedata.normalize("NFC", text[at:start])):
                result += self._encode_piece(piece)
            at = start
            if content:
                result.append(self.added[content])
                at += len(content)
        return result

    def _encode_piece(self, piece):
        letters = byte_alphabet()
        symbols = tuple(letters[b] for b in piece.encode())
        while len(symbols) > 1:
            pair = min(zip(symbols, symbols[1:]), key=lambda p: self.rank.get(p, len(self.rank)))
            if pair not in self.rank:
                break
            symbols = _merged(symbols, pair)
        return [self.ids[symbol] for symbol in symbols]

    # ---- files

    def tokenizer_json(self):
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
        added = [{"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                  "special": content not in VISIBLE} for content, i in self.added.items()]
        return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
                "normalizer": {"type": "NFC"},
                "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
                "post_processor": None, "decoder": byte_level,
                "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                          "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                          "vocab": self.ids, "merges": [list(pair) for pair in self.merges]}}

    def tokenizer_config(self):
        return {"add_bos_token": False, "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
                "model_max_length": 4096, "tokenizer_class": "Qwen2TokenizerFast", "unk_token": None}

    def generation_config(self):
        return {"bos_token_id": self.added["<|endoftext|>"], "do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8,
                "eos_token_id": [self.added["<|im_end|>"], self.added["<|endoftext|>"]],
                "pad_token_id": self.added["<|endoftext|>"]}

    def gguf_metadata(self, rows):
        """Keys of tokenizer.ggml.*; rows of the embedding beyond the vocabulary get placeholder tokens."""
        tokens = [*self.ids, *self.added] + [f"[PAD{i}]" for i in range(self.size, rows)]
        kinds = [1] * len(self.ids) + [4 if c in VISIBLE else 3 for c in self.added] + [5] * (rows - self.size)
        return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen35", "tokenizer.ggml.tokens": tokens,
                "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.merges": [f"{a} {b}" for a, b in self.merges],
                "tokenizer.ggml.eos_token_id": self.added["<|im_end|>"], "tokenizer.ggml.add_bos_token": False,
                "tokenizer.ggml.padding_token_id": self.added["<|endoftext|>"], "tokenizer.chat_template": CHAT_TEMPLATE}


# Texts that meet every alternative of the pattern and every special case of the encoder.
CASES = [
    "", " ", "  ", "\n", "\r\n\r\n", " \n ", "a", "A model reads one token.", "I'll say it's what they'd WE'VE DON'T n't's",
    "x  y   z    ", "tabs\tand\t\tmore", "line one\nline two\n\n\nline five", "1234567890 3.14159 ½ ٣", "naïve naïve e\u0301 é",
    "def f(x):\n    return x*x  # square\n", "{\"a\": [1, 2, {\"b\": null}]}", "größer schöner Straße", "東京の天気は晴れです。",
    "Привет, мир!", "👩\u200d👩\u200d👧 🇩🇪 ✋🏽", "\u0301combining first", "a\u00a0b\u2003c\u3000d", "!!!\n???\r\n...",
    "<|im_start|>user\nHello<|im_end|>\n", "<think>\n\n</think>\n\nYes.", "<|im_start|", "<|im_end|><|im_end|>",
    "mixed東京abcПриветdef", "\x00\x01\x7f", "\u202eright to left\u202c", "'s 'S 'Re 'LL '", "a'b'c", "----====>>>>", " !x", "  !x",
    "\u2028line separator\u2029", "a" * 200, "the the the the", "ſ's 'ſ", "क्षि नमस्ते", "ἀρχή", "\ufb01ligature \u212b angstrom",
]

CHAT_TEMPLATE = """{%- if tools %}
{{- '<|im_start|>system\\n# Tools\\n\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools>' }}
{%- if messages[0].role == 'system' %}{{- '\\n\\n' + messages[0].content | trim }}{%- endif %}
{{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content | trim + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'system' %}
{%- if not loop.first %}{{- raise_exception('The system message must come first.') }}{%- endif %}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{- message.content | trim }}
{%- elif message.content %}
{%- for part in message.content %}
{%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}{%- else %}{{- part.text }}{%- endif %}
{%- endfor %}
{%- endif %}
{%- for call in message.tool_calls or [] %}
{%- set function = call.function if call.function is defined else call %}
{{- '\\n<tool_call>\\n<function=' + function.name + '>\\n' }}
{%- for name, value in function.arguments.items() %}
{{- '<parameter=' + name + '>\\n' + (value if value is string else value | tojson) + '\\n</parameter>\\n' }}
{%- endfor %}
{{- '</function>\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- else %}
{{- '<think>\\n' }}{%- endif %}
{%- endif %}
"""
