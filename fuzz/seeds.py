#!/usr/bin/env python3
"""Writes seed inputs for the fuzzers: OUT/<fuzzer>/<name>. Standard library only.

usage: seeds.py OUT [FUZZER...]

Seeds are small files that each reach another branch: sound ones first, then one per kind of damage. The function named
after a fuzzer makes its seeds.
"""
import json
import pathlib
import struct
import sys

GGUF_TYPES = [(0, 1, 4), (1, 1, 2), (2, 32, 18), (3, 32, 20), (6, 32, 22), (7, 32, 24), (8, 32, 34), (10, 256, 84),
              (12, 256, 144), (14, 256, 210), (20, 32, 18), (23, 256, 136), (24, 1, 1), (30, 1, 2), (39, 32, 17),
              (40, 64, 36), (41, 128, 18)]


def text(value):
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def array(kind, count, body):
    return struct.pack("<IQ", kind, count) + body


def gguf_file(values=(), infos=(), data=b"", version=3, magic=b"GGUF", alignment=32, counts=None):
    """values: (key, type, bytes); infos: (name, [ne], type, offset)."""
    tensors, entries = counts or (len(infos), len(values))
    out = magic + struct.pack("<IQQ", version, tensors, entries)
    for key, kind, body in values:
        out += text(key) + struct.pack("<I", kind) + body
    for name, ne, kind, offset in infos:
        out += text(name) + struct.pack("<I", len(ne)) + b"".join(struct.pack("<Q", n) for n in ne)
        out += struct.pack("<IQ", kind, offset)
    return out + b"\0" * (-len(out) % alignment) + data


def gguf():
    scalars = [("u8", 0, b"\xff"), ("i8", 1, b"\x80"), ("u16", 2, b"\xff\xff"), ("i16", 3, b"\0\x80"),
               ("u32", 4, b"\xff" * 4), ("i32", 5, b"\0\0\0\x80"), ("f32", 6, struct.pack("<f", 0.1)),
               ("bool", 7, b"\1"), ("text", 8, text("h\u00e9\n")), ("u64", 10, b"\xff" * 8),
               ("i64", 11, b"\0" * 7 + b"\x80"),
               ("f64", 12, struct.pack("<d", 0.1))]
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    arrays = [(f"a{kind}", 9, array(kind, 2, b"\1" * (2 * size))) for kind, size in sizes.items()]
    arrays += [("texts", 9, array(8, 3, text("a") + text("") + text("\u00e9"))), ("none", 9, array(8, 0, b""))]
    yield "scalars", gguf_file(scalars)
    yield "arrays", gguf_file(arrays)
    names = ["\u00e9\u20ac\U0001F600\u0085\x7f", "n" * 200,
             b"\xc3(\xed\xa0\x80\xe0\x80\x80\xf0\x80\x80\x80\xf4\x90\x80\x80\xe2\x82"]
    yield "names", gguf_file([(name, 0, b"\0") for name in names])
    yield "version2", gguf_file(scalars[:3], version=2)
    infos, data = [], b""
    for kind, elements, size in GGUF_TYPES:
        data += b"\0" * (-len(data) % 32)
        infos.append((f"t{kind}", [elements, 2], kind, len(data)))
        data += bytes(i % 251 for i in range(2 * size))
    yield "tensors", gguf_file(scalars[:2], infos, data)
    yield "aligned64", gguf_file([("general.alignment", 4, struct.pack("<I", 64))], [("t", [3, 1, 2, 1], 24, 64)],
                                 b"x" * 70, alignment=64)
    yield "shapes", gguf_file((), [("s", [], 27, 0), ("z", [0, 9], 24, 32), ("v", [5], 0, 32)], b"y" * 52)
    yield "split", gguf_file([("split.no", 2, b"\0\0"), ("split.count", 2, b"\2\0"),
                              ("split.tensors.count", 5, b"\4\0\0\0")], [("t", [4], 24, 0)], b"abcd")
    # One kind of damage each.
    yield "bad_magic", gguf_file(magic=b"GGML")
    for version in (0, 1, 4, 0x03000000):
        yield f"bad_version_{version}", gguf_file(version=version)
    yield "bad_counts", gguf_file(counts=(2**63, 2**63))
    yield "bad_tensor_count", gguf_file(counts=(2**40, 0))
    yield "bad_key_length", gguf_file(counts=(0, 1), data=b"\xff" * 40, alignment=1)
    yield "bad_key_long", gguf_file([("k" * 65536, 4, b"\0" * 4)])
    yield "bad_key_twice", gguf_file([("k", 0, b"\0"), ("k", 0, b"\0")])
    yield "bad_value_type", gguf_file([("k", 13, b"\0" * 8)])
    yield "bad_text_length", gguf_file([("k", 8, b"\xff" * 8)])
    yield "bad_bool", gguf_file([("k", 7, b"\2")])
    yield "bad_bools", gguf_file([("k", 9, array(7, 2, b"\1\3"))])
    yield "bad_nested", gguf_file([("k", 9, array(9, 1, array(0, 1, b"x")))])
    yield "bad_element_type", gguf_file([("k", 9, array(77, 1, b"x"))])
    yield "bad_element_count", gguf_file([("k", 9, array(8, 2**61, b"x"))])
    yield "bad_element_text", gguf_file([("k", 9, array(8, 2, text("a") + b"\x63" + b"\0" * 7))])
    yield "bad_u64s", gguf_file([("k", 9, array(10, 1, b"\xff" * 8))])
    yield "bad_alignment", gguf_file([("general.alignment", 4, struct.pack("<I", 48))])
    yield "bad_alignment_type", gguf_file([("general.alignment", 8, text("32"))])
    yield "bad_name_empty", gguf_file((), [("", [1], 24, 0)], b"x")
    yield "bad_name_long", gguf_file((), [("n" * 65536, [1], 24, 0)], b"x")
    yield "bad_name_twice", gguf_file((), [("n", [1], 24, 0), ("n", [1], 24, 32)], b"x" * 33)
    yield "bad_rank", gguf_file((), [("n", [1] * 5, 24, 0)], b"x")
    yield "bad_type", gguf_file((), [("n", [1], 4, 0)], b"x")
    yield "bad_row", gguf_file((), [("n", [255, 2], 12, 0)], b"x" * 300)
    yield "bad_size", gguf_file((), [("n", [2**40, 2**40], 24, 0)], b"x")
    yield "bad_offset", gguf_file((), [("n", [1], 24, 16)], b"x" * 32)
    yield "bad_reach", gguf_file((), [("n", [40], 24, 32)], b"x" * 64)
    yield "bad_overlap", gguf_file((), [("a", [40], 24, 0), ("b", [4], 24, 32)], b"x" * 64)
    whole = gguf_file(scalars + arrays[:3], [("t", [32, 2], 8, 0)], b"q" * 68)
    for cut in (3, 7, 20, 28, 40, len(whole) // 2, len(whole) - 75, len(whole) - 1):
        yield f"cut_{cut}", whole[:cut]
    short = gguf_file((), [("t", [0], 24, 0)])
    yield "cut_padding", short[:-1]
    infos_end = gguf_file((), [("name", [1, 1], 24, 0)], alignment=1)
    for cut in (9, 14, 30):
        yield f"cut_info_{cut}", infos_end[:-cut] + b"\0" * max(0, 16 - cut)
    long_name = gguf_file((), [("n" * 40, [1], 24, 0)], alignment=1, counts=(2, 0))
    yield "cut_second_info", long_name + b"1234567"


def safetensors():
    def pack(header, data=b""):
        raw = header if isinstance(header, bytes) else header.encode()
        return struct.pack("<Q", len(raw)) + raw + data

    def entry(dtype, shape, begin, end):
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    types = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2,
             "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8}
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, size in types.items():
        header["t." + name] = entry(name, [1, 3], len(data), len(data) + 3 * size)
        data += b"x" * (3 * size)
    yield "all", pack(json.dumps(header) + "   ", data)
    yield "empty", pack("{}")
    yield "shapes", pack(json.dumps({"s": entry("F32", [], 0, 4), "z": entry("F32", [0, 3], 4, 4)}), b"abcd")
    t = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    damage = {
        "json": "{", "root": "[1]", "entry": '{"t":1}', "unnamed": json.dumps({"": t}),
        "no_dtype": json.dumps({"t": {"shape": [1], "data_offsets": [0, 1]}}),
        "no_shape": json.dumps({"t": {"dtype": "U8", "data_offsets": [0, 1]}}),
        "no_offsets": json.dumps({"t": {"dtype": "U8", "shape": [1]}}),
        "twice_field": '{"t":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        "dtype_kind": json.dumps({"t": dict(t, dtype=3)}), "shape_kind": json.dumps({"t": dict(t, shape=1)}),
        "offsets_kind": json.dumps({"t": dict(t, data_offsets="x")}),
        "unknown_dtype": json.dumps({"t": dict(t, dtype="F4")}),
        "rank": json.dumps({"t": dict(t, shape=[1] * 9)}), "negative": json.dumps({"t": dict(t, shape=[-1])}),
        "fraction": json.dumps({"t": dict(t, shape=[1.0])}),
        "overflow": json.dumps({"t": dict(t, shape=[2**32, 2**32])}),
        "offsets_count": json.dumps({"t": dict(t, data_offsets=[0])}),
        "offsets_negative": json.dumps({"t": dict(t, data_offsets=[-1, 0])}),
        "backwards": json.dumps({"t": dict(t, data_offsets=[1, 0])}),
        "mismatch": json.dumps({"t": dict(t, data_offsets=[0, 2])}),
        "outside": json.dumps({"t": entry("U8", [9], 0, 9)}),
        "overlap": json.dumps({"a": t, "b": t}), "hole": json.dumps({"a": entry("U8", [1], 1, 2)}),
        "behind": json.dumps({}), "twice": '{"a":%s,"a":%s}' % (json.dumps(t), json.dumps(entry("U8", [1], 1, 2))),
        "metadata_kind": '{"__metadata__":1}', "metadata_value": '{"__metadata__":{"a":1}}',
        "metadata_twice": '{"__metadata__":{},"__metadata__":{}}', "control": '{"\\u0001\\n\\u0080":1}',
        "long_name": json.dumps({"n" * 65536: t}), "unknown_field": json.dumps({"t": dict(t, more={"a": [1]})}),
    }
    for name, head in damage.items():
        yield "bad_" + name, pack(head, b"xy")
    yield "bad_length", b"\xff" * 8 + b"{}"
    yield "bad_reach", struct.pack("<Q", 9) + b"{}"
    yield "bad_short", b"1234567"
    index = {"metadata": {"total_size": 1}, "weight_map": {"b": "2.safetensors", "a": "sub/1.safetensors"}}
    yield "index", json.dumps(index).encode()
    for name, body in {"kind": "7", "no_map": "{}", "map_kind": '{"weight_map":[]}', "no_tensors": '{"weight_map":{}}',
                       "file_kind": '{"weight_map":{"a":1}}', "twice": '{"weight_map":{"a":"x","a":"y"}}',
                       "up": '{"weight_map":{"a":"../x"}}', "root": '{"weight_map":{"a":"/x"}}',
                       "nothing": '{"weight_map":{"a":""}}', "zero": '{"weight_map":{"a":"x\\u0000"}}'}.items():
        yield "index_bad_" + name, body.encode()


def json_():
    config = {"architectures": ["Toy"], "model_type": "toy", "num_hidden_layers": 8,
              "rope": {"theta": 1e7, "mrope": [3, 3, 2]}, "tie": True, "bos": None, "eps": 1e-6, "big": 2**63,
              "negative": -2**63, "text": "h\u00e9 \U0001F600 \n\t\\ \""}
    yield "config", json.dumps(config, indent=1).encode()
    yield "ascii", json.dumps(config, ensure_ascii=True).encode()
    yield "utf8", json.dumps(config, ensure_ascii=False).encode()
    yield "index", json.dumps({"weight_map": {f"t{i}": "m.safetensors" for i in range(20)}}).encode()
    yield "messages", json.dumps([{"role": "user", "content": [{"type": "text", "text": "[{\"]}"}]}]).encode()
    for i, body in enumerate(["1", "-0", "1.5e-30", "3.5e38", "1e999", "true", "null", '"x"', "[]", "{}", "", "{",
                              "[1,]", '{"a":1,"a":2}', "nul", "\"\\ud800\"", "\"\\u0000\"", "01", "[" * 33 + "]" * 33,
                              '"' + "[" * 40 + '"', '"\\"' + "{" * 40 + '"', "\ufeff{}"]):
        yield f"small_{i}", body.encode()
    yield "bad_utf8", b'"\xff\xc3"'
    yield "large", b'"' + b"x" * 70000 + b'"'


FUZZERS = {"gguf": gguf, "safetensors": safetensors, "json": json_}


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    unknown = [name for name in sys.argv[2:] if name not in FUZZERS]
    if unknown:
        sys.exit(f"seeds.py: no seeds for {', '.join(unknown)}: known are {', '.join(FUZZERS)}")
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
