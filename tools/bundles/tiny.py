"""The golden set: tiny random models in every form that files take, each with reference results in float64.

Writer: tools/make_bundle.py tiny DIR. Readers: the tests. README below describes the files for both."""
import json
import pathlib
import shutil
from dataclasses import replace

import numpy as np

from . import blocks, drafters, family, reference, text, vision
from .containers import Entry, float_entry, write_gguf, write_gguf_split, write_safetensors_folder

SEED = 20310
ROWS, LONG_ROWS, GREEDY = 83, 600, 24  # across pages of 32 positions; across a span of 512
FILE_TYPE = {"F32": 0, "F16": 1, "BF16": 32}

README = """# Golden bundles

Written by `tools/make_bundle.py tiny`; do not edit. Weights are random; every float form of a case (F32, F16, BF16,
safetensors, GGUF, whole, sharded, split) holds exactly the same values, so one set of results serves all.

Results are computed in float64 from those values and stored little-endian as float32 (`.f32`) or int32 (`.i32`), row-major.
`golden.json` in each folder gives the shape of each file.

| folder | holds |
|---|---|
| qwen35 | dense: hf (F32, names `model.language_model.*`, with the vision tower), hf-bf16 (three shards, text only, names `model.*`, a `dflash2/` drafter inside), hf-f16 (names `language_model.model.*`), hf-yarn, hf-sigmoid (other configs over the same weights), model-{f32,f16,bf16}.gguf, model-yarn.gguf, split/ (GGUF in three files) |
| qwen35moe | experts fused in hf and separate in hf-bf16; tied embeddings |
| qwen3next | the older layout: fused interleaved projections, separate experts, grouped value heads, no MTP |
| quant, quantmoe | hidden 256, a GGUF file whose matrices take every storage type in turn; results from the decoded values |
| blocks | per block type: random blocks (`TYPE.u8`) and their decoded values (`TYPE.f32`), to be met bit for bit |
| vision | mmproj.gguf and one image: patches, embeddings |
| dflash1, dspark, dflash2 | drafters of the qwen35 target: hf/, drafter.gguf |
| tokenizer_cases.json | `[text, ids]` pairs for the tokenizer in every hf folder and GGUF file |

| result | shape | meaning |
|---|---|---|
| tokens | [rows] | the prompt |
| logits, hidden | [rows, vocab], [rows, hidden] | head output; trunk output after the final norm |
| outputs | [layers, rows, hidden] | residual stream after each layer |
| states | [delta layers, value_heads, key_dim, value_dim] | recurrent state after the last row |
| tails | [delta layers, kernel - 1, channels] | convolution inputs before the next row, oldest first, channels q, k, v |
| greedy, greedy_gap | [24] | greedy continuation; logit gap between the best two at each step |
| long_tokens, long_logits | [600], [8, vocab] | a long prompt and the logits of its last rows |
| mrope_embeddings, mrope_positions, mrope_logits | [20, hidden], [20, 3], [20, vocab] | rows fed as embeddings with (t, h, w) positions |
| mtp_logits | [rows - 1, vocab] | the MTP head on pairs (hidden of p, token p + 1) |
| mtp_chain, mtp_chain_logits | [4], [4, vocab] | recursive drafts after the prompt and its greedy next token |
| yarn_logits, sigmoid_logits | [rows, vocab] | logits under the configs of hf-yarn and hf-sigmoid |

Rows of the embedding and the head beyond the tokenizer's size are zero, so that no such id is ever the best. Value heads in
`states` and `tails` are in the order that GGUF files and the engine use: position j * key_heads + k holds head k * ratio + j
of a checkpoint (grouped order, unchanged, for qwen3next)."""


def save_golden(folder, results):
    """Each array as raw .f32 or .i32 beside golden.json, which names the shapes."""
    folder = pathlib.Path(folder)
    shapes = {}
    for name, array in results.items():
        array = np.asarray(array)
        kind, dtype = ("i32", np.int32) if array.dtype.kind in "iu" else ("f32", np.float32)
        np.ascontiguousarray(array, dtype).tofile(folder / f"{name}.{kind}")
        shapes[f"{name}.{kind}"] = list(array.shape)
    (folder / "golden.json").write_text(json.dumps(shapes, indent=1) + "\n")


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_hf(folder, config, entries, tokenizer, shards=1):
    write_safetensors_folder(folder, entries, shards)
    write_json(folder / "config.json", config)
    write_json(folder / "tokenizer.json", tokenizer.tokenizer_json())
    write_json(folder / "tokenizer_config.json", tokenizer.tokenizer_config())
    write_json(folder / "generation_config.json", tokenizer.generation_config())
    (folder / "chat_template.jinja").write_text(text.CHAT_TEMPLATE)


def gguf_metadata(shape, name, tokenizer, kind="F32"):
    return {**family.gguf_metadata(shape, name, FILE_TYPE[kind]), **tokenizer.gguf_metadata(shape.vocab)}


def target_results(target, rng, tokens_below):
    """Everything in README for one target; all but logits, states and the like only where the family has it."""
    s = target.s
    tokens = rng.integers(0, tokens_below, ROWS)
    run = target.trunk(target.embed(tokens))
    states, tails = zip(*(memory for layer, memory in sorted(run["memory"].items()) if not s.is_full(layer)))
    results = {
        "tokens": tokens, "logits": run["logits"], "hidden": run["hidden"], "outputs": run["outputs"],
        "states": [family.tile_heads(s, state, 1) for state in states],
        "tails": [family.tile_channels(s, tail.T).T for tail in tails]}

    greedy, gaps, step = [], [], run
    for _ in range(GREEDY):
        second, best = np.sort(step["logits"][-1])[-2:]
        gaps.append(best - second)
        greedy.append(int(np.argmax(step["logits"][-1])))
        step = target.trunk(target.embed(greedy[-1:]), memory=step["memory"])
    results.update(greedy=greedy, greedy_gap=gaps)
    if s.next:
        return results
    embeddings = blocks.portable(rng.standard_normal((20, s.hidden)))
    positions = np.stack([np.arange(20) + 5, rng.integers(0, 9, 20), rng.integers(0, 9, 20)], 1)
    chain, chain_logits = target.mtp_chain(run["hidden"], tokens, 4)
    results.update(
        mrope_embeddings=embeddings, mrope_positions=positions,
        mrope_logits=target.trunk(embeddings.astype(np.float64), positions)["logits"],
        mtp_logits=target.mtp(run["hidden"][:-1], tokens[1:])[0], mtp_chain=chain, mtp_chain_logits=chain_logits)
    return results


def dense_case(out, rng, tokenizer):
    folder = out / "qwen35"
    s = family.Shape(image_token=tokenizer.added["<|image_pad|>"])
    weights = family.random_weights(s, rng, tokenizer.size)
    tower = vision.Tower(s.hidden, rng)
    extra = {"vision_config": tower.config()}
    target = reference.Target(s, weights)
    results = target_results(target, rng, tokenizer.size)
    long_tokens = rng.integers(0, tokenizer.size, LONG_ROWS)
    results.update(long_tokens=long_tokens, long_logits=target.trunk(target.embed(long_tokens))["logits"][-8:])

    hf = family.hf_tensors(s)
    write_hf(folder / "hf", family.hf_config(s, extra=extra), family.entries(hf, weights, "F32") + tower.hf_entries("F32"),
             tokenizer)
    write_hf(folder / "hf-bf16", family.hf_config(s, text_only=True),
             family.entries(family.hf_tensors(s, "model."), weights, "BF16"), tokenizer, shards=3)
    write_hf(folder / "hf-f16", family.hf_config(s),
             family.entries(family.hf_tensors(s, "language_model.model."), weights, "F16"), tokenizer)
    gguf = family.gguf_tensors(s)
    for kind in blocks.FLOATS:
        write_gguf(folder / f"model-{kind.lower()}.gguf", gguf_metadata(s, "tiny dense", tokenizer, kind),
                   family.entries(gguf, weights, kind))
    (folder / "split").mkdir()
    write_gguf_split(folder / "split" / "model", gguf_metadata(s, "tiny dense", tokenizer),
                     family.entries(gguf, weights, "F32"), 3)

    variants = {"yarn": replace(s, yarn={"factor": 4.0, "original_max_position_embeddings": 64}),
                "sigmoid": replace(s, output_gate="sigmoid")}
    for name, other in variants.items():
        write_hf(folder / f"hf-{name}", family.hf_config(other), family.entries(hf, weights, "F32"), tokenizer)
        other_target = reference.Target(other, weights)
        results[f"{name}_logits"] = other_target.trunk(other_target.embed(results["tokens"]))["logits"]
    write_gguf(folder / "model-yarn.gguf", gguf_metadata(variants["yarn"], "tiny yarn", tokenizer),
               family.entries(gguf, weights, "F32"))
    save_golden(folder, results)

    (out / "vision").mkdir()
    tower.write_gguf(out / "vision" / "mmproj.gguf")
    save_golden(out / "vision", tower.results(rng))
    for kind in ("dflash1", "dspark", "dflash2"):
        drafter = drafters.Drafter(kind, s, rng, mask_token=tokenizer.added["<|audio_start|>"])
        case = out / kind
        drafter.write_hf(case / "hf", "F32")
        drafter.write_gguf(case / "drafter.gguf")
        save_golden(case, drafter.results(target, rng, tokenizer.size))
        if kind == "dflash2":
            drafter.write_hf(folder / "hf-bf16" / "dflash2", "BF16")


def sparse_case(out, rng, tokenizer, name, shape):
    folder = out / name
    weights = family.random_weights(shape, rng, tokenizer.size)
    save_after = target_results(reference.Target(shape, weights), rng, tokenizer.size)
    prefix = "model." if shape.next else "model.language_model."
    write_hf(folder / "hf", family.hf_config(shape), family.entries(family.hf_tensors(shape, prefix), weights, "F32"), tokenizer)
    write_hf(folder / "hf-bf16", family.hf_config(shape, text_only=True),
             family.entries(family.hf_tensors(shape, "model.", separate_experts=True), weights, "BF16"), tokenizer, shards=2)
    for kind in ("F32", "BF16"):
        write_gguf(folder / f"model-{kind.lower()}.gguf", gguf_metadata(shape, f"tiny {name}", tokenizer, kind),
                   family.entries(family.gguf_tensors(shape), weights, kind))
    save_golden(folder, save_after)


def quantised_case(out, rng, tokenizer, name, shape):
    """A GGUF file whose matrices take the storage types in turn. Value heads equal key heads, so that the order of heads
    is the same in both forms and decoded tensors are canonical weights."""
    assert shape.ratio == 1
    folder = out / name
    folder.mkdir()
    weights = family.random_weights(shape, rng, tokenizer.size)
    entries, turn = [], 0
    kinds = [*blocks.BLOCK_TYPES, "F16", "BF16"]
    for tensor in family.gguf_tensors(shape):
        if tensor.always_f32:
            entries.append(float_entry(tensor.name, "F32", tensor.values(weights)))
            continue
        kind, turn = kinds[turn % len(kinds)], turn + 1
        if kind in blocks.FLOATS:
            entries.append(float_entry(tensor.name, kind, tensor.values(weights)))
            continue
        deviation = 1.0 if tensor.name == "token_embd.weight" else 1 / np.sqrt(tensor.dims[-1])
        count = int(np.prod(tensor.dims)) // blocks.TYPES[kind][0]
        raw = blocks.random_blocks(kind, count, rng, deviation)
        if tensor.dims[0] == shape.vocab:  # d = 0 in the rows beyond the vocabulary: their logits are 0
            raw[count // shape.vocab * tokenizer.size:] = 0
        raw = raw.tobytes()
        entries.append(Entry(tensor.name, kind, tensor.dims, lambda raw=raw: [raw]))
        values, half = blocks.decode(raw, kind, tensor.dims), shape.expert_width
        place = slice(half, None) if "ffn_up_exps" in tensor.name else slice(None, half)
        if "gate_up_proj" in tensor.source:
            weights[tensor.source][:, place] = values
        else:
            weights[tensor.source][...] = values
    write_gguf(folder / "model.gguf", gguf_metadata(shape, f"tiny {name}", tokenizer), entries)
    save_golden(folder, target_results(reference.Target(shape, weights), rng, tokenizer.size))


def block_cases(out, rng):
    folder = out / "blocks"
    folder.mkdir()
    shapes = {}
    for kind in blocks.BLOCK_TYPES:
        elements, size, _ = blocks.TYPES[kind]
        raw = blocks.random_blocks(kind, 64, rng)
        raw[0], raw[1] = 0, blocks.random_blocks(kind, 1, np.random.default_rng(0), 1.0)[0]
        raw.tofile(folder / f"{kind}.u8")
        values = blocks.decode(raw.tobytes(), kind, (64, elements))
        assert np.isfinite(values).all()
        values.tofile(folder / f"{kind}.f32")
        shapes[f"{kind}.u8"], shapes[f"{kind}.f32"] = [64, size], [64, elements]
    write_json(folder / "golden.json", shapes)


def write(out):
    out = pathlib.Path(out)
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    tokenizer = text.Tokenizer()
    # Each case has its own stream of random numbers: changing one leaves the others' bytes alone.
    streams = iter(np.random.SeedSequence(SEED).spawn(8))
    stream = lambda: np.random.default_rng(next(streams))
    sparse = dict(family="qwen3_5_moe", experts=6, top_k=3, expert_width=32, shared_width=48, value_heads=4)
    wide = dict(hidden=256, layers=4, intermediate=512, key_heads=4, value_heads=4, key_dim=64, value_dim=64)
    dense_case(out, stream(), tokenizer)
    sparse_case(out, stream(), tokenizer, "qwen35moe", family.Shape(tied=True, **sparse))
    sparse_case(out, stream(), tokenizer, "qwen3next", family.Shape(**{**sparse, "family": "qwen3_next"}, mtp_layers=0))
    quantised_case(out, stream(), tokenizer, "quant", family.Shape(**wide))
    quantised_case(out, stream(), tokenizer, "quantmoe",
                   family.Shape(**{**sparse, **wide, "experts": 4, "top_k": 2, "expert_width": 256, "shared_width": 256}))
    block_cases(out, stream())
    write_json(out / "tokenizer_cases.json", [[case, tokenizer.encode(case)] for case in text.CASES])
    (out / "README.md").write_text(README + "\n")
