#!/usr/bin/env python3
"""Writes seed inputs for the fuzzers of the text room: OUT/<fuzzer>/<name>. Standard library only.

usage: text_seeds.py OUT [FUZZER...]

Sound inputs come from tests/data/text; then one seed per kind of damage or per feature.
"""
import json
import pathlib
import random
import sys

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests/data/text"


def bytes_only(**changes):
    """The smallest sound tokenizer: 256 bytes and a few merges."""
    whole = json.loads((DATA / "small_tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = list(whole["model"]["vocab"])[:256]
    merges = []
    for left, right in whole["model"]["merges"]:
        if len(left) == 1 and len(right) == 1 and len(merges) < 12 and left + right not in vocabulary:
            merges.append([left, right])
            vocabulary.append(left + right)
    whole["model"]["vocab"] = {token: i for i, token in enumerate(vocabulary)}
    whole["model"]["merges"] = merges
    whole["added_tokens"] = [dict(token, id=300 + i) for i, token in enumerate(whole["added_tokens"][:4])]
    whole.update(changes)
    return whole


def tokenizer_json():
    def pack(value, config=None):
        body = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        if config is not None:
            body += "\n#config\n" + (config if isinstance(config, str) else json.dumps(config))
        return body.encode()

    base = bytes_only()
    yield "small", pack(base)
    yield "config", pack(
        base,
        {
            "added_tokens_decoder": {
                "320": {"content": "<x>", "special": True, "lstrip": True, "rstrip": True},
                "321": {"content": "a", "single_word": True, "normalized": True},
            },
            "eos_token": {"content": "<x>"},
            "bos_token": "a",
            "pad_token": None,
        },
    )
    level, split = base["pre_tokenizer"]["pretokenizers"][1], base["pre_tokenizer"]["pretokenizers"][0]
    variants = {
        "gpt2": {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}},
        "literal": {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    dict(split, pattern={"String": "-é"}),
                    {"type": "Digits", "individual_digits": True},
                    level,
                ],
            }
        },
        "digits": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, level]}},
        "regex": {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [dict(split, pattern={"Regex": "\\p{L}+|(?=1)|\\s"}), level],
            }
        },
        "qwen2": {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    dict(
                        split,
                        pattern={
                            "Regex": split["pattern"]["Regex"].replace("[\\p{L}\\p{M}]", "\\p{L}").replace("\\p{M}", "")
                        },
                    ),
                    level,
                ],
            }
        },
        "sequences": {
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
            "post_processor": {"type": "Sequence", "processors": [level]},
        },
        "no_normalizer": {"normalizer": None, "post_processor": None, "decoder": None, "added_tokens": None},
        "spaced": {
            "model": dict(
                base["model"], merges=[" ".join(merge) for merge in base["model"]["merges"]], ignore_merges=True
            )
        },
        "many_added": {
            "added_tokens": [
                {
                    "id": 300 + i,
                    "content": c,
                    "special": i % 2 == 0,
                    "normalized": i % 3 == 0,
                    "lstrip": i % 4 == 0,
                    "rstrip": i % 5 == 0,
                    "single_word": i % 7 == 0,
                }
                for i, c in enumerate(["H", "He", "<|im_end|>", "é", "wörld", " ", "\n", "e\u0301", "<think>", "a"])
            ]
        },
        "bad_model": {"model": None},
        "bad_type": {"model": dict(base["model"], type="Unigram")},
        "bad_affix": {"model": dict(base["model"], end_of_word_suffix="w")},
        "bad_dropout": {"model": dict(base["model"], dropout=0.5)},
        "bad_vocab": {"model": dict(base["model"], vocab=[])},
        "bad_id": {"model": dict(base["model"], vocab={"a": "b"})},
        "bad_range": {"model": dict(base["model"], vocab={"a": -1})},
        "bad_twice": {"model": dict(base["model"], vocab={"a": 1, "b": 1})},
        "bad_long": {"model": dict(base["model"], vocab={"a" * 5000: 1})},
        "bad_bytes": {"model": dict(base["model"], vocab={"a": 1}, merges=[])},
        "bad_merges": {"model": dict(base["model"], merges={})},
        "bad_merge": {"model": dict(base["model"], merges=[1])},
        "bad_merge2": {"model": dict(base["model"], merges=[["a"]])},
        "bad_merge3": {"model": dict(base["model"], merges=[["a", 1]])},
        "bad_merge4": {"model": dict(base["model"], merges=["ab"])},
        "bad_merge5": {"model": dict(base["model"], merges=[["a", "~~"]])},
        "odd_merge": {"model": dict(base["model"], merges=[["a", "日"]])},
        "bad_normalizer": {"normalizer": {"type": "NFKC"}},
        "bad_pre": {"pre_tokenizer": {"type": "Whitespace"}},
        "no_pre": {"pre_tokenizer": None},
        "bad_behavior": {"pre_tokenizer": dict(split, behavior="Removed")},
        "bad_invert": {"pre_tokenizer": dict(split, invert=True)},
        "bad_pattern": {"pre_tokenizer": dict(split, pattern={})},
        "bad_prefix": {"pre_tokenizer": dict(level, add_prefix_space=True)},
        "bad_regex": {
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [dict(split, pattern={"Regex": "(("}), level]}
        },
        "bad_order": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [level, split]}},
        "bad_post": {"post_processor": {"type": "TemplateProcessing"}},
        "bad_post2": {"post_processor": {"type": "Sequence", "processors": [{"type": "X"}]}},
        "bad_decoder": {"decoder": {"type": "WordPiece"}},
        "bad_added": {"added_tokens": {}},
        "bad_added2": {"added_tokens": [{"content": "x"}]},
        "bad_added3": {"added_tokens": [{"id": 300}]},
        "bad_added4": {"added_tokens": [{"id": 1 << 40, "content": "x"}]},
        "bad_added5": {"added_tokens": [{"id": 3, "content": "x"}]},
        "bad_added6": {"added_tokens": [{"id": 300, "content": "x"}, {"id": 301, "content": "x"}]},
        "bad_added7": {"added_tokens": [{"id": 300, "content": ""}]},
        "same_added": {"added_tokens": [{"id": base["model"]["vocab"]["a"], "content": "a", "special": True}]},
    }
    for name, change in variants.items():
        yield name, pack(bytes_only(**change))
    for name, config in {
        "json": "{",
        "kind": "[]",
        "decoder": {"added_tokens_decoder": 1},
        "key": {"added_tokens_decoder": {"x": {"content": "y"}}},
        "content": {"added_tokens_decoder": {"400": {}}},
    }.items():
        yield "config_bad_" + name, pack(base, config)
    for i, body in enumerate([b"", b"{", b"[]", b"{}", b"\xff"]):
        yield f"tiny_{i}", body

    spellings = list(base["model"]["vocab"])
    lines = ["1" + spelling for spelling in spellings] + ["3<|im_end|>", "4<think>", "5[PAD]", "2<unk>", "6<0x00>"]
    merges = ["m" + " ".join(merge) for merge in base["model"]["merges"]]
    yield "gguf", "\n".join(["GGUF"] + lines + merges).encode()
    yield "gguf_qwen2", "\n".join(["GGUF", "pqwen2", "eeee"] + lines[:256]).encode()
    yield "gguf_gpt2", "\n".join(["GGUF", "pgpt-2"] + lines[:256] + ["1x"] * 3).encode()
    yield "gguf_bad_pre", b"GGUF\npllama\n1a"
    yield "gguf_bad_type", b"GGUF\n9a"
    yield "gguf_bad_merge", "\n".join(["GGUF"] + lines[:257] + ["mabc"]).encode()
    yield "gguf_bad_eos", "\n".join(["GGUF", "e" + "e" * 400] + lines[:257]).encode()
    yield "gguf_empty", b"GGUF\n"


def chat_template():
    for path in sorted(DATA.glob("*.jinja")):
        yield path.stem, path.read_bytes()
    for i, snippet in enumerate((DATA / "snippets.txt").read_text(encoding="utf-8").split("\n====\n")):
        yield f"snippet_{i}", snippet.replace("\\r", "\r").encode()
    more = [
        "{{ strftime_now('%Y') }}",
        "{% generation %}x{% endgeneration %}",
        "{{ l.append(4) }}{{ l }}",
        "{{ l.pop() }}{{ l.pop(0) }}{{ l.pop(9) }}",
        "{{ l.copy() }}{{ d.copy() }}",
        "{{ (d.get)('a') }}{{ d.items }}",
        "{{ namespace(a=1) }}{{ range }}",
        "{% for x in l %}{{ loop }}{% endfor %}",
        "{{ 2 ** 200 }}{{ 9 ** 9 ** 9 }}",
        "{{ 0x1F + 0o17 + 0b11 }}",
        "{{ '\\x41\\u00e9\\U0001F600\\101\\\na\\q' }}",
        "{{ big * big }}{{ big|int }}{{ big|tojson }}",
        "{{ f|round(-1) }}{{ f|round(1,'ceil') }}",
        "{{ '%5.1f|%-5s|%05d|%+d|%x|%o|%e|%r|%(a)s'|format(f,s,n,n,n,n,f,s,a=1) }}",
        "{{ '%(s)s' % d }}{{ '%(a)s' % d }}",
        "{{ '{:5.1f}{0!r}{a}{{}}'.format(f,a=s) }}",
        "{{ l|batch(2)|list }}{{ ms|groupby('role') }}{{ ls|max }}{{ ms|min(attribute='n') }}",
        "{{ u|center(40) }}{{ s|wordcount }}{{ html|forceescape }}",
        "{% macro m(a,b=1) %}{{ a }}{{ varargs }}{{ kwargs }}{{ caller() if caller }}{% endmacro %}"
        "{% call(x) m(1,2,3,z=4) %}c{% endcall %}{{ m(caller=m) }}{{ m.name }}",
    ]
    more += ["{{ {true: 1, 2.5: 2, 2.0: 4, (1, (2, 'a')): 3, none: 5} }}", "{{ {(1, (2,)): 1}[(1, (2,))] }}", "{{ {[1]: 2} }}", "{{ {([1],): 2} }}"]
    for value in ("true", "1.5", "s.upper", "range", "none", "x", "(1,)", "l", "d", "m", "ns"):
        more.append("{% macro m() %}{% endmacro %}{% set ns = namespace() %}{{ 'a' + " + value + " }}")
        more.append("{% macro m() %}{% endmacro %}{% set ns = namespace() %}{{ [] < " + value + " }}{{ " + value + "() }}")
    more.append("{% for y in l %}{{ 'a' + loop }}{% endfor %}")
    for i, source in enumerate(more):
        yield f"more_{i}", source.encode()
    named = [{"name": "tools", "template": "t"}, {"name": "default", "template": "{{ messages|length }}"}]
    configs = [{"chat_template": "{{ s }}"}, {"chat_template": named}, {"chat_template": named[:1]}, {"chat_template": None},
               {"chat_template": 1}, {"chat_template": [1, {"name": "default"}, {"name": "default", "template": 2}]}, {}, []]
    for i, config in enumerate(configs):
        yield f"config_{i}", b"#config\n" + json.dumps(config).encode()
    yield "config_text", b"#config\n{"
    source = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}{{ tools|tojson if tools }}{{ enable_thinking }}{{ bos_token }}"
    contexts = [{"messages": [{"role": "user", "content": "hé"}], "tools": [], "extra": {"a": [1, -1, 2**63, 1.5, None, True]}, "thinking": True},
                {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "thinking": False},
                {"messages": {}}, {"messages": [], "tools": 1}, {"messages": [], "extra": []}, {"messages": [1]}, []]
    for i, context in enumerate(contexts):
        yield f"context_{i}", b"#context\n" + json.dumps(context).encode() + b"\n" + source.encode()


def pretokenizer():
    rng = random.Random(2)
    parts = ["a", "Word", " ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u2003", "1", "42", "\u0663", "\u00bd", "'s", "'LL", "'\u017f", "'re", "'x", "'", "...", " !?",
             "_", "\u00e9", "e\u0301", "\u0928\u094d", "\u65e5\u672c", "\U0001f600", "\u200d", "\u00ad", "-\n\n", "<|im_end|>", "\x00", "\x7f"]
    for i in range(60):
        yield f"mix_{i}", "".join(rng.choice(parts) for _ in range(rng.randint(1, 14))).encode()
    for i, broken in enumerate([b"a\xff b", b"\xe2\x82 ", b"\xed\xa0\x80x", b"\xf4\x90\x80\x80"]):
        yield f"broken_{i}", broken
    patterns = [r"/\p{L}+/\d", r"/\s+", r"/x*", r"/(?=a)|b", r"/((", r"/[", r"/(?i:'s)|\p{N}{1,3}|\s+(?!\S)", r"//", r"/(a+)+$", r"/(?:a|aa)+b",
                r"/(?<n>a)\k<n>/b/c/d", r"/(*UTF)a", r"/\C", r"/\C/\B", "/\u00e9+"]
    for i, pattern in enumerate(patterns):
        yield f"pattern_{i}", pattern.encode() + b"\n" + "aab 12 h\u00e9\u00e9 aaaaaaaa\n".encode()
    # More nesting than the compiled matcher's stack takes, and more steps than a match may have.
    yield "deep", r"/(?:(x)|(y)|(a))*b".encode() + b"\n" + b"a" * 20000
    yield "steps", rb"/(?:a?){40}a{40}$" + b"\n" + b"a" * 60 + b"b"
    # The alphabet of bytes: all spellings, and characters that are none.
    yield "spellings", "".join(chr(c) for c in [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)]).encode()
    yield "no_spelling", "a\u0144".encode()
    yield "all_bytes", bytes(range(256))
    yield "empty", b""


def detokenizer():
    rng = random.Random(1)
    parts = [
        b"a",
        b"ab",
        "é€😀e\u0301\u1100\u1161\u11a8\u0344".encode(),
        b"\xff",
        b"\xc3",
        b"\xe2\x82",
        b"\xf0\x9f\x98",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"stop",
        b"st",
        b"\n\n",
    ]
    for i in range(40):
        stops = b"\t".join(
            rng.choice([b"", b"stop", b"ab", b"aba", b"\n\n", "é".encode()]) for _ in range(rng.randint(1, 3))
        )
        yield f"mix_{i}", stops + b"\n" + b"".join(rng.choice(parts) for _ in range(rng.randint(0, 12)))


def output_parser():
    call = "<tool_call>\n<function=f>\n<parameter=s>\nOslo\n</parameter>\n<parameter=i>\n3\n</parameter>\n</function>\n</tool_call>"
    json_call = '<tool_call>\n{"name": "f", "arguments": {"s": "}</tool_call>\\"", "i": [1]}}\n</tool_call>'
    for name, text in {
        "call": "text\n\n" + call,
        "calls": call + "\n" + call + "\n",
        "json": json_call + json_call,
        "json_text": '<tool_call>{"name": "f", "arguments": "{\\"s\\": null}"}</tool_call>',
        "json_list": '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        "json_broken": '<tool_call>{"name": "f\n"}</tool_call>' + call,
        "json_open": '<tool_call>{"name": "f", "arguments": {"s": "x',
        "json_none": '<tool_call>{"x": 1} </tool_call>',
        "reasoning": "\x01\nwhy " + call + "\n\x02\n\n" + call,
        "marks": "a\x02b\x01c\x02d\x01e",
        "values": "".join(
            f"<tool_call><function=f><parameter={key}>{value}</parameter></function></tool_call>"
            for key, value in [("i", "7"), ("i", "x"), ("i", "7.5"), ("n", "1e3"), ("b", "True"), ("b", "false"), ("z", "None"), ("z", "null"), ("a", "[1, {}]"), ("o", "{"), ("?", "5"), ("s", '\\"\t\x1b')]
        ),
        "tags_in_value": "<tool_call><function=f><parameter=s>\n</parameter> <parameter=\n</function></parameter></function>",
        "unfinished": "<tool_call><function=f><parameter=s>\nOslo\n</para",
        "unfinished_tag": "<tool_call><function=f><parameter=s>\nOslo\n</parameter>\n</fun",
        "text_inside": "<tool_call><function=f>no<parameter=s>",
        "two_functions": "<tool_call><function=f></function><function=g></function></tool_call> end",
        "not_a_call": "<tool_call> no </tool_call> <tool_cal <tool_call><function=\n>",
        "characters": "é€😀\x01é\x02€<tool_call><function=é><parameter=€>😀</parameter></function>",
        "blanks": "<tool_call>" + " " * 40 + "<function=f>\n\n<parameter=s>x</parameter>" + "\n" * 300 + "</function>",
    }.items():
        for flags in (0, 3, 7):
            yield f"{name}_{flags}", bytes([flags]) + text.encode()
    yield "bytes_0", b"\x00a\xff\xe2\x98<tool_call><function=\xc3><parameter=\xf0\x9f>\xed\xa0\x80</parameter></function>"


def json_schema():
    for i, case in enumerate(json.loads((DATA / "schema_cases.json").read_text(encoding="utf-8"))):
        yield f"case{i}", json.dumps(case["schema"], ensure_ascii=False, separators=(",", ":")).encode()
        pattern = case["schema"].get("pattern") if isinstance(case["schema"], dict) else None
        if isinstance(pattern, str):
            yield f"pattern{i}", b"#regex\n" + pattern.encode()
    for i, pattern in enumerate(["a{2,", "[z-a]", "(?:x", "\\q", "[", "a{3,1}", "\\cJ[\\b\\cZ]", "\\u{1F600}?", "(?!a)", "*", "(?P<n>x)", "\\p{L}", "x{100001}", "\\01", "[\\d-z]", "a)"]):
        yield f"broken_pattern{i}", b"#regex\n" + pattern.encode()


FUZZERS = {"json_schema": json_schema, "tokenizer_json": tokenizer_json, "chat_template": chat_template, "detokenizer": detokenizer, "pretokenizer": pretokenizer, "output_parser": output_parser}


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    unknown = [name for name in sys.argv[2:] if name not in FUZZERS]
    if unknown:
        sys.exit(f"text_seeds.py: no seeds for {', '.join(unknown)}: known are {', '.join(FUZZERS)}")
    for fuzzer in sys.argv[2:] or FUZZERS:
        folder = pathlib.Path(sys.argv[1]) / fuzzer
        folder.mkdir(parents=True, exist_ok=True)
        count = 0
        for name, body in FUZZERS[fuzzer]():
            (folder / name).write_bytes(body)
            count += 1
        print(f"{fuzzer}: {count} seeds in {folder}")


if __name__ == "__main__":
    main()
