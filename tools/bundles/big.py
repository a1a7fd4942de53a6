"""Benchmark bundles: random weights in the shape of a released model or any other, streamed tensor after tensor.

The values only look like a trained model's in size; nothing sensible comes out of them. GGUF files take every storage type,
folders of safetensors the float types."""
import json
import pathlib
import time
from dataclasses import fields, replace

import numpy as np

from . import blocks, family, text
from .containers import write_gguf, write_safetensors_folder

RELEASED = dict(head_dim=256, rotary_dim=64, theta=1e7, sections=(11, 11, 10), key_heads=16, key_dim=128, value_dim=128,
                vocab=248320, context=262144)
SHAPES = {
    "1.44b": family.Shape(**{**RELEASED, "vocab": 32768}, hidden=2048, layers=24, intermediate=6144, query_heads=8,
                          kv_heads=2, value_heads=16, tied=True, mtp_layers=0),
    "4b": family.Shape(**RELEASED, hidden=2560, layers=32, intermediate=9216, query_heads=16, kv_heads=4, value_heads=32,
                       tied=True),
    "9b": family.Shape(**RELEASED, hidden=4096, layers=32, intermediate=12288, query_heads=16, kv_heads=4, value_heads=32),
    "27b": family.Shape(**RELEASED, hidden=5120, layers=64, intermediate=17408, query_heads=24, kv_heads=4, value_heads=48),
    "35b-a3b": family.Shape(**RELEASED, family="qwen3_5_moe", hidden=2048, layers=40, query_heads=16, kv_heads=2,
                            value_heads=32, experts=256, top_k=8, expert_width=512, shared_width=512, intermediate=0),
    "next-80b": family.Shape(**{**RELEASED, "vocab": 151936}, family="qwen3_next", hidden=2048, layers=48, query_heads=16,
                             kv_heads=2, value_heads=32, experts=512, top_k=10, expert_width=512, shared_width=512,
                             intermediate=0, mtp_layers=0),
}
_INTEGERS = [f.name for f in fields(family.Shape) if f.type in (int, "int") and f.name != "image_token"]


def add_arguments(parser):
    parser.add_argument("output", help="FILE.gguf, or a folder for safetensors")
    parser.add_argument("--shape", choices=SHAPES, default="1.44b")
    parser.add_argument("--type", default="F16", type=str.upper,
                        help=f"{', '.join(blocks.TYPES)} or Q4_K_M (Q4_K with some Q6_K); default F16")
    parser.add_argument("--shards", type=int, default=1, help="safetensors files")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokenizer", action="store_true", help="add the tiny tokenizer, so that the bundle runs text")
    for name in _INTEGERS:
        parser.add_argument("--" + name.replace("_", "-"), type=int, help="replaces the shape's number")


def kind_of(tensor, wanted, layers):
    """The storage type of one matrix. Q4_K_M gives half of the layers' value and down projections, and the head, Q6_K."""
    if wanted != "Q4_K_M":
        return wanted
    parts = tensor.name.split(".")
    if parts[0] == "output" or (parts[0] == "token_embd"):
        return "Q6_K"
    if len(parts) > 2 and parts[2] in ("attn_v", "ffn_down", "ffn_down_exps", "attn_qkv"):
        layer = int(parts[1])
        if layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2:
            return "Q6_K"
    return "Q4_K"


def write(options):
    """Writes the bundle and returns a sentence about it."""
    begin = time.monotonic()
    changes = {name: getattr(options, name) for name in _INTEGERS if getattr(options, name) is not None}
    shape = replace(SHAPES[options.shape], **changes)
    if options.type not in blocks.TYPES and options.type != "Q4_K_M":
        raise SystemExit(f"make_bundle: unknown type {options.type}; one of {', '.join(blocks.TYPES)}, Q4_K_M")
    rng, path = np.random.default_rng(options.seed), pathlib.Path(options.output)
    tokenizer = text.Tokenizer() if options.tokenizer else None
    name = f"random {options.shape} {options.type}"
    if path.suffix == ".gguf":
        entries = []
        for tensor in family.gguf_tensors(shape):
            kind = kind_of(tensor, options.type, shape.layers)
            elements = blocks.TYPES[kind][0]
            if not tensor.always_f32 and tensor.dims[-1] % elements:  # rows that no block fits, as converters do
                kind = "Q8_0" if tensor.dims[-1] % 32 == 0 else "F16"
            entries.append(family.random_entry(tensor, kind, rng))
        file_type = {"F32": 0, "F16": 1, "Q8_0": 7, "Q4_K": 14, "Q4_K_M": 15, "Q5_K": 17, "Q6_K": 18, "BF16": 32}
        metadata = family.gguf_metadata(shape, name, file_type.get(options.type, 0))
        metadata.update(tokenizer.gguf_metadata(shape.vocab) if tokenizer else {"tokenizer.ggml.model": "none"})
        write_gguf(path, metadata, entries)
    else:
        if options.type not in blocks.FLOATS:
            raise SystemExit(f"make_bundle: a folder of safetensors holds F32, F16 or BF16, not {options.type}; "
                             "name a .gguf file for quantised weights")
        prefix = "model." if shape.next else "model.language_model."
        entries = [family.random_entry(tensor, options.type, rng) for tensor in family.hf_tensors(shape, prefix)]
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(json.dumps(family.hf_config(shape), indent=1))
        if tokenizer:
            (path / "tokenizer.json").write_text(json.dumps(tokenizer.tokenizer_json(), ensure_ascii=False))
            (path / "tokenizer_config.json").write_text(json.dumps(tokenizer.tokenizer_config()))
            (path / "chat_template.jinja").write_text(text.CHAT_TEMPLATE)
        write_safetensors_folder(path, entries, options.shards)
    count = sum(int(np.prod(entry.dims, dtype=np.int64)) for entry in entries)
    size = sum(entry.bytes() for entry in entries)
    return (f"{path}: {count / 1e9:.3f} B parameters, {size / 1e9:.2f} GB, {8 * size / count:.2f} bits per weight, "
            f"{time.monotonic() - begin:.0f} s")
