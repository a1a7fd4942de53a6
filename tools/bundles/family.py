"""Shapes of the model family, the tensors of a model, and those tensors under every name and layout that files use.

Weights are a dict {canonical name: float32 array}. Canonical names are the Hugging Face names of Qwen3.5 without a prefix,
value heads grouped by key head, experts fused. Norm weights named in `is_centred` are stored as w - 1, as checkpoints do."""
import re
from dataclasses import dataclass, field
from typing import Callable, Optional

import numpy as np

from . import blocks
from .containers import Entry, float_entry

F = np.float32


@dataclass(frozen=True)
class Shape:
    """The numbers of a config. `family` is qwen3_5, qwen3_5_moe or qwen3_next."""
    family: str = "qwen3_5"
    vocab: int = 640
    hidden: int = 64
    layers: int = 8
    interval: int = 4
    intermediate: int = 96
    query_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rotary_dim: int = 16
    theta: float = 1e4
    sections: tuple = (3, 3, 2)
    key_heads: int = 2
    value_heads: int = 6
    key_dim: int = 32
    value_dim: int = 32
    kernel: int = 4
    experts: int = 0
    top_k: int = 0
    expert_width: int = 0
    shared_width: int = 0
    epsilon: float = 1e-6
    mtp_layers: int = 1
    tied: bool = False
    context: int = 4096
    output_gate: Optional[str] = None  # "sigmoid" changes the gated norm; None and "swish" are SiLU
    yarn: Optional[dict] = None        # {"factor", "original_max_position_embeddings"}
    image_token: int = -1

    @property
    def next(self):
        return self.family == "qwen3_next"

    @property
    def moe(self):
        return self.experts > 0

    @property
    def ratio(self):
        return self.value_heads // self.key_heads

    @property
    def key_columns(self):
        return self.key_heads * self.key_dim

    @property
    def value_columns(self):
        return self.value_heads * self.value_dim

    @property
    def channels(self):
        return 2 * self.key_columns + self.value_columns

    def is_full(self, layer):
        return (layer + 1) % self.interval == 0


# ---- canonical tensors

def _attention_tensors(s):
    d = s.head_dim
    return {"self_attn.q_proj.weight": (2 * s.query_heads * d, s.hidden), "self_attn.k_proj.weight": (s.kv_heads * d, s.hidden),
            "self_attn.v_proj.weight": (s.kv_heads * d, s.hidden), "self_attn.o_proj.weight": (s.hidden, s.query_heads * d),
            "self_attn.q_norm.weight": (d,), "self_attn.k_norm.weight": (d,)}


def _delta_tensors(s):
    p = "linear_attn."
    return {p + "in_proj_qkv.weight": (s.channels, s.hidden), p + "in_proj_z.weight": (s.value_columns, s.hidden),
            p + "in_proj_b.weight": (s.value_heads, s.hidden), p + "in_proj_a.weight": (s.value_heads, s.hidden),
            p + "conv1d.weight": (s.channels, 1, s.kernel), p + "dt_bias": (s.value_heads,), p + "A_log": (s.value_heads,),
            p + "norm.weight": (s.value_dim,), p + "out_proj.weight": (s.hidden, s.value_columns)}


def _feed_forward_tensors(s):
    def swiglu(prefix, width):
        return {prefix + "gate_proj.weight": (width, s.hidden), prefix + "up_proj.weight": (width, s.hidden),
                prefix + "down_proj.weight": (s.hidden, width)}
    if not s.moe:
        return swiglu("mlp.", s.intermediate)
    return {"mlp.gate.weight": (s.experts, s.hidden), "mlp.experts.gate_up_proj": (s.experts, 2 * s.expert_width, s.hidden),
            "mlp.experts.down_proj": (s.experts, s.hidden, s.expert_width), **swiglu("mlp.shared_expert.", s.shared_width),
            "mlp.shared_expert_gate.weight": (1, s.hidden)}


def layer_tensors(s, full):
    return {"input_layernorm.weight": (s.hidden,), **(_attention_tensors(s) if full else _delta_tensors(s)),
            "post_attention_layernorm.weight": (s.hidden,), **_feed_forward_tensors(s)}


def canonical_tensors(s):
    """{canonical name: dims} in the order of files."""
    result = {"embed_tokens.weight": (s.vocab, s.hidden)}
    for i in range(s.layers):
        result.update({f"layers.{i}.{name}": dims for name, dims in layer_tensors(s, s.is_full(i)).items()})
    result["norm.weight"] = (s.hidden,)
    if not s.tied:
        result["lm_head.weight"] = (s.vocab, s.hidden)
    for i in range(s.mtp_layers):
        result.update({f"mtp.layers.{i}.{name}": dims for name, dims in layer_tensors(s, True).items()})
    if s.mtp_layers:
        result.update({"mtp.fc.weight": (s.hidden, 2 * s.hidden), "mtp.pre_fc_norm_embedding.weight": (s.hidden,),
                       "mtp.pre_fc_norm_hidden.weight": (s.hidden,), "mtp.norm.weight": (s.hidden,)})
    return result


def is_centred(name):
    """Norm weights that files of Hugging Face store minus one."""
    return name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight") or "pre_fc_norm" in name


def random_weights(s, rng, known_tokens):
    """Values that F32, F16 and BF16 hold exactly, so that every float form of a bundle is the same model. Rows of the
    embedding and the head from `known_tokens` on are zero, as the padding of a real vocabulary never wins."""
    weights = {}
    for name, dims in canonical_tensors(s).items():
        noise = rng.standard_normal(dims)
        if is_centred(name):
            value = np.round(0.3 * noise * 256) / 256  # 1 + w stays exact
        elif name.endswith("linear_attn.norm.weight"):
            value = np.round((1 + 0.3 * noise) * 256) / 256
        elif name.endswith("A_log"):
            value = 0.6 * noise
        elif name.endswith("dt_bias") or name == "embed_tokens.weight":
            value = noise * (2 / np.sqrt(s.hidden) if s.tied and dims[0] == s.vocab else 1.0)
        else:
            gain = 2.0 if name.endswith(("mlp.gate.weight", "shared_expert_gate.weight")) else 1.0
            value = gain * noise / np.sqrt(dims[-1])
        if dims[0] == s.vocab:
            value[known_tokens:] = 0
        weights[name] = blocks.portable(value)
    return weights


# ---- Hugging Face form

@dataclass
class Tensor:
    """A tensor of a file: where it comes from is evaluated only when its values are wanted."""
    name: str
    dims: tuple
    values: Callable = field(repr=False)  # weights -> float32 array
    always_f32: bool = False
    source: str = ""  # canonical name behind a GGUF tensor, where there is one


def _same(source):
    return lambda weights: weights[source]


def _by_key_head(s, parts):
    """Rows interleaved per key head, as Qwen3-Next fuses projections: [part 0 of head 0 | part 1 of head 0 | ...]."""
    def values(weights):
        split = []
        for source, begin, end in parts:
            rows = weights[source][begin:end]
            split.append(rows.reshape(s.key_heads, -1, s.hidden))
        return np.concatenate(split, 1).reshape(-1, s.hidden)
    return values


def _expert_rows(source, expert, begin, end):
    return lambda weights: weights[source][expert, begin:end]


def hf_tensors(s, prefix="model.language_model.", separate_experts=False):
    """The tensors of a Hugging Face checkpoint. Qwen3-Next always has fused projections and separate experts."""
    result = []
    for name, dims in canonical_tensors(s).items():
        outer = "" if name.startswith("mtp.") else prefix
        if name == "lm_head.weight":
            outer = "language_model." if prefix.startswith("language_model.") else ""
        path, _, last = name.rpartition("linear_attn.")
        if s.next and last == "in_proj_qkv.weight":
            z, k = path + "linear_attn.in_proj_z.weight", s.key_columns
            parts = [(name, 0, k), (name, k, 2 * k), (name, 2 * k, s.channels), (z, 0, s.value_columns)]
            result.append(Tensor(outer + path + "linear_attn.in_proj_qkvz.weight", (s.channels + s.value_columns, s.hidden),
                                 _by_key_head(s, parts)))
        elif s.next and last == "in_proj_b.weight":
            parts = [(name, 0, s.value_heads), (path + "linear_attn.in_proj_a.weight", 0, s.value_heads)]
            result.append(Tensor(outer + path + "linear_attn.in_proj_ba.weight", (2 * s.value_heads, s.hidden),
                                 _by_key_head(s, parts)))
        elif s.next and last in ("in_proj_z.weight", "in_proj_a.weight"):
            continue
        elif ".experts." in name and (separate_experts or s.next):
            base, kind = name.rsplit(".", 1)
            for e in range(s.experts):
                if kind == "down_proj":
                    result.append(Tensor(f"{outer}{base}.{e}.down_proj.weight", dims[1:], _expert_rows(name, e, 0, dims[1])))
                else:
                    half = s.expert_width
                    for part, begin in (("gate_proj", 0), ("up_proj", half)):
                        result.append(Tensor(f"{outer}{base}.{e}.{part}.weight", (half, s.hidden),
                                             _expert_rows(name, e, begin, begin + half)))
        else:
            result.append(Tensor(outer + name, dims, _same(name), name.endswith(("A_log", "linear_attn.norm.weight"))))
    return result


def entries(tensors, weights, kind):
    """File entries of one float kind; what is always F32 in releases stays F32."""
    return [float_entry(t.name, "F32" if t.always_f32 else kind, t.values(weights)) for t in tensors]


def from_hf(s, tensors):
    """Canonical weights from the tensors of a checkpoint: the inverse of hf_tensors, for checks of foreign bundles."""
    stripped = {re.sub(r"^(model\.language_model\.|language_model\.model\.|language_model\.(?=lm_head)|model\.)", "", k): v
                for k, v in tensors.items() if ".visual." not in k}
    weights = {}
    for name, dims in canonical_tensors(s).items():
        if name in stripped:
            weights[name] = stripped[name].reshape(dims)
            continue
        path, _, last = name.rpartition("linear_attn.")
        if last.startswith("in_proj_"):
            k, v = s.key_dim, s.ratio * s.value_dim
            if last in ("in_proj_qkv.weight", "in_proj_z.weight"):
                fused = stripped[path + "linear_attn.in_proj_qkvz.weight"].reshape(s.key_heads, -1, s.hidden)
                cuts = [(0, k), (k, 2 * k), (2 * k, 2 * k + v)] if "qkv" in last else [(2 * k + v, 2 * k + 2 * v)]
            else:
                fused = stripped[path + "linear_attn.in_proj_ba.weight"].reshape(s.key_heads, -1, s.hidden)
                cuts = [(0, s.ratio)] if "_b." in last else [(s.ratio, 2 * s.ratio)]
            weights[name] = np.concatenate([fused[:, a:b].reshape(-1, s.hidden) for a, b in cuts])
        elif name.endswith("experts.gate_up_proj"):
            base = name.rsplit(".", 1)[0]
            weights[name] = np.stack([np.concatenate([stripped[f"{base}.{e}.{part}_proj.weight"] for part in ("gate", "up")])
                                      for e in range(s.experts)])
        elif name.endswith("experts.down_proj"):
            weights[name] = np.stack([stripped[f"{name.rsplit('.', 1)[0]}.{e}.down_proj.weight"] for e in range(s.experts)])
        else:
            raise KeyError(name)
    return weights


def hf_config(s, text_only=False, extra=None):
    text = {
        "model_type": {"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text", "qwen3_next": "qwen3_next"}[s.family],
        "vocab_size": s.vocab, "hidden_size": s.hidden, "num_hidden_layers": s.layers, "intermediate_size": s.intermediate,
        "num_attention_heads": s.query_heads, "num_key_value_heads": s.kv_heads, "head_dim": s.head_dim,
        "linear_num_key_heads": s.key_heads, "linear_num_value_heads": s.value_heads, "linear_key_head_dim": s.key_dim,
        "linear_value_head_dim": s.value_dim, "linear_conv_kernel_dim": s.kernel, "full_attention_interval": s.interval,
        "rms_norm_eps": s.epsilon, "hidden_act": "silu", "max_position_embeddings": s.context,
        "tie_word_embeddings": s.tied, "mamba_ssm_dtype": "float32", "attention_bias": False}
    if s.output_gate:
        text["output_gate_type"] = s.output_gate
    if s.moe:
        text.update(num_experts=s.experts, num_experts_per_tok=s.top_k, moe_intermediate_size=s.expert_width,
                    shared_expert_intermediate_size=s.shared_width)
    if s.next:
        text.update(norm_topk_prob=True, rope_theta=s.theta, partial_rotary_factor=s.rotary_dim / s.head_dim,
                    decoder_sparse_step=1, mlp_only_layers=[])
        return {"architectures": ["Qwen3NextForCausalLM"], **text, **(extra or {})}
    rope = {"rope_type": "default", "rope_theta": s.theta, "partial_rotary_factor": s.rotary_dim / s.head_dim,
            "mrope_section": list(s.sections), "mrope_interleaved": True}
    if s.yarn:
        rope.update(rope_type="yarn", **s.yarn)
    text.update(layer_types=["full_attention" if s.is_full(i) else "linear_attention" for i in range(s.layers)],
                mtp_num_hidden_layers=s.mtp_layers, rope_parameters=rope)
    name = "Qwen3_5Moe" if s.moe else "Qwen3_5"
    if text_only:
        return {"architectures": [name + "ForCausalLM"], **text, **(extra or {})}
    config = {"architectures": [name + "ForConditionalGeneration"], "model_type": s.family, "text_config": text,
              "tie_word_embeddings": s.tied, **(extra or {})}
    if s.image_token >= 0:
        config["image_token_id"] = s.image_token
    return config


def shape_from_config(config):
    """The Shape of a parsed config.json, nested or not."""
    text = config.get("text_config", config)
    rope = text.get("rope_parameters", text)
    kind = text["model_type"].removesuffix("_text")
    yarn = None
    if rope.get("rope_type") == "yarn":
        yarn = {key: rope[key] for key in ("factor", "original_max_position_embeddings")}
    return Shape(
        family=kind, vocab=text["vocab_size"], hidden=text["hidden_size"], layers=text["num_hidden_layers"],
        interval=text.get("full_attention_interval", 4), intermediate=text.get("intermediate_size", 0),
        query_heads=text["num_attention_heads"], kv_heads=text["num_key_value_heads"], head_dim=text["head_dim"],
        rotary_dim=int(text["head_dim"] * rope.get("partial_rotary_factor", text.get("partial_rotary_factor", 0.25))),
        theta=rope["rope_theta"], sections=tuple(rope.get("mrope_section", (11, 11, 10))),
        key_heads=text["linear_num_key_heads"], value_heads=text["linear_num_value_heads"],
        key_dim=text["linear_key_head_dim"], value_dim=text["linear_value_head_dim"], kernel=text["linear_conv_kernel_dim"],
        experts=text.get("num_experts", 0), top_k=text.get("num_experts_per_tok", 0),
        expert_width=text.get("moe_intermediate_size", 0), shared_width=text.get("shared_expert_intermediate_size", 0),
        epsilon=text["rms_norm_eps"], mtp_layers=text.get("mtp_num_hidden_layers", 0),
        tied=config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)),
        context=text["max_position_embeddings"], output_gate=text.get("output_gate_type"), yarn=yarn)


# ---- GGUF form

def tiled_order(s):
    """Value heads in the order of GGUF files: position j * key_heads + k holds the checkpoint's head k * ratio + j."""
    if s.next:
        return np.arange(s.value_heads)
    return np.arange(s.value_heads).reshape(s.key_heads, s.ratio).T.ravel()


def tile_heads(s, array, width, axis=0):
    """Reorders blocks of `width` along `axis`, one block per value head, from checkpoint order to GGUF order."""
    index = (tiled_order(s)[:, None] * width + np.arange(width)).ravel()
    return np.take(array, index, axis)


def tile_channels(s, array):
    """The same for rows q | k | v: only the v rows move."""
    keys = 2 * s.key_columns
    return np.concatenate([array[:keys], tile_heads(s, array[keys:], s.value_dim)])


def _gguf_layer(s, source, block):
    """Tensors of one block; `source` and `block` are the prefixes of canonical and GGUF names."""
    def add(name, canonical, change=lambda a: a, dims=None, f32=False):
        origin = source + canonical
        out.append(Tensor(f"{block}.{name}", tuple(dims or known[canonical]), lambda w: change(w[origin]), f32, origin))

    full = source.startswith("mtp.") or s.is_full(int(source.split(".")[1]))
    known, out = layer_tensors(s, full), []
    centred = lambda a: a + F(1)
    add("attn_norm.weight", "input_layernorm.weight", centred, f32=True)
    if full:
        for gguf, name in (("attn_q", "q_proj"), ("attn_k", "k_proj"), ("attn_v", "v_proj"), ("attn_output", "o_proj")):
            add(gguf + ".weight", f"self_attn.{name}.weight")
        add("attn_q_norm.weight", "self_attn.q_norm.weight", centred, f32=True)
        add("attn_k_norm.weight", "self_attn.k_norm.weight", centred, f32=True)
    else:
        p = "linear_attn."
        add("attn_qkv.weight", p + "in_proj_qkv.weight", lambda a: tile_channels(s, a))
        add("attn_gate.weight", p + "in_proj_z.weight", lambda a: tile_heads(s, a, s.value_dim))
        if s.next:
            parts = [(source + p + f"in_proj_{x}.weight", 0, s.value_heads) for x in "ba"]
            out.append(Tensor(f"{block}.ssm_ba.weight", (2 * s.value_heads, s.hidden), _by_key_head(s, parts)))
        else:
            add("ssm_beta.weight", p + "in_proj_b.weight", lambda a: tile_heads(s, a, 1))
            add("ssm_alpha.weight", p + "in_proj_a.weight", lambda a: tile_heads(s, a, 1))
        add("ssm_conv1d.weight", p + "conv1d.weight", lambda a: tile_channels(s, a[:, 0]), (s.channels, s.kernel), True)
        add("ssm_dt.bias", p + "dt_bias", lambda a: tile_heads(s, a, 1), f32=True)
        add("ssm_a", p + "A_log", lambda a: tile_heads(s, -np.exp(a.astype(np.float64)), 1).astype(F), f32=True)
        add("ssm_norm.weight", p + "norm.weight", f32=True)
        add("ssm_out.weight", p + "out_proj.weight", lambda a: tile_heads(s, a, s.value_dim, 1))
    add("post_attention_norm.weight", "post_attention_layernorm.weight", centred, f32=True)
    if not s.moe:
        for part in ("gate", "up", "down"):
            add(f"ffn_{part}.weight", f"mlp.{part}_proj.weight")
        return out
    half = s.expert_width
    add("ffn_gate_inp.weight", "mlp.gate.weight", f32=True)
    add("ffn_gate_exps.weight", "mlp.experts.gate_up_proj", lambda a: a[:, :half], (s.experts, half, s.hidden))
    add("ffn_up_exps.weight", "mlp.experts.gate_up_proj", lambda a: a[:, half:], (s.experts, half, s.hidden))
    add("ffn_down_exps.weight", "mlp.experts.down_proj")
    add("ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", lambda a: a[0], (s.hidden,), True)
    for part in ("gate", "up", "down"):
        add(f"ffn_{part}_shexp.weight", f"mlp.shared_expert.{part}_proj.weight")
    return out


def gguf_tensors(s):
    def plain(gguf, dims, source):
        return Tensor(gguf, dims, _same(source), source=source)

    centred = lambda name: lambda w: w[name] + F(1)
    result = [plain("token_embd.weight", (s.vocab, s.hidden), "embed_tokens.weight")]
    for i in range(s.layers):
        result += _gguf_layer(s, f"layers.{i}.", f"blk.{i}")
    result.append(Tensor("output_norm.weight", (s.hidden,), centred("norm.weight"), True))
    if not s.tied:
        result.append(plain("output.weight", (s.vocab, s.hidden), "lm_head.weight"))
    for i in range(s.mtp_layers):
        block = f"blk.{s.layers + i}"
        result += _gguf_layer(s, f"mtp.layers.{i}.", block)
        result.append(plain(f"{block}.nextn.eh_proj.weight", (s.hidden, 2 * s.hidden), "mtp.fc.weight"))
        for gguf, name in (("enorm", "pre_fc_norm_embedding"), ("hnorm", "pre_fc_norm_hidden"), ("shared_head_norm", "norm")):
            result.append(Tensor(f"{block}.nextn.{gguf}.weight", (s.hidden,), centred(f"mtp.{name}.weight"), True))
    return result


def gguf_metadata(s, name, file_type=0):
    a = {"qwen3_5": "qwen35", "qwen3_5_moe": "qwen35moe", "qwen3_next": "qwen3next"}[s.family]
    data = {"general.architecture": a, "general.name": name, "general.alignment": 32, "general.file_type": file_type,
            "general.quantization_version": 2}
    keys = {
        "block_count": s.layers + s.mtp_layers, "context_length": s.context, "embedding_length": s.hidden,
        "vocab_size": s.vocab, "attention.head_count": s.query_heads, "attention.head_count_kv": s.kv_heads,
        "attention.key_length": s.head_dim, "attention.value_length": s.head_dim,
        "attention.layer_norm_rms_epsilon": float(s.epsilon), "rope.freq_base": float(s.theta),
        "rope.dimension_count": s.rotary_dim, "full_attention_interval": s.interval, "ssm.conv_kernel": s.kernel,
        "ssm.state_size": s.key_dim, "ssm.group_count": s.key_heads, "ssm.time_step_rank": s.value_heads,
        "ssm.inner_size": s.value_columns}
    if not s.next:
        keys["rope.dimension_sections"] = list(s.sections) + [0]
    if s.yarn:
        keys.update({"rope.scaling.type": "yarn", "rope.scaling.factor": float(s.yarn["factor"]),
                     "rope.scaling.original_context_length": s.yarn["original_max_position_embeddings"]})
    if not s.moe or s.next:
        keys["feed_forward_length"] = s.intermediate
    if s.moe:
        keys.update({"expert_count": s.experts, "expert_used_count": s.top_k,
                     "expert_feed_forward_length": s.expert_width, "expert_shared_feed_forward_length": s.shared_width})
    if s.mtp_layers:
        keys["nextn_predict_layers"] = s.mtp_layers
    data.update({f"{a}.{key}": value for key, value in keys.items()})
    return data


def random_entry(tensor, kind, rng):
    """A streamed random tensor for benchmark bundles: the size and the distribution of a trained one, nothing more."""
    kind = "F32" if tensor.always_f32 else kind
    deviation = 1.0 / np.sqrt(tensor.dims[-1])
    short = tensor.name.rsplit(".", 2)[-2:]
    seed = int(rng.integers(1 << 62))

    def chunks():
        draw = np.random.default_rng(seed)
        if tensor.name.endswith("ssm_a"):
            yield (-np.exp(draw.uniform(-3, 1, tensor.dims))).astype(F).tobytes()
        elif tensor.name.endswith("A_log"):
            yield draw.uniform(-3, 1, tensor.dims).astype(F).tobytes()
        elif len(tensor.dims) == 1 or "norm" in short[0]:
            centre = 0.0 if tensor.name.startswith(("model.", "mtp.")) and is_centred(tensor.name) else 1.0
            yield blocks.encode_float(centre + 0.1 * draw.standard_normal(tensor.dims, F), kind)
        else:
            yield from _random_chunks(kind, tensor.dims, deviation, draw)
    return Entry(tensor.name, kind, tensor.dims, chunks)


def _random_chunks(kind, dims, deviation, draw):
    elements, size, _ = blocks.TYPES[kind]
    left = int(np.prod(dims, dtype=np.int64)) // elements
    # A pool of random blocks is reused with random offsets: generating fresh ones would be the slow part.
    pool_count = max(1, min(left, (8 << 20) // size))
    if kind in blocks.FLOATS:
        pool = np.frombuffer(blocks.encode_float(deviation * draw.standard_normal(pool_count, F), kind), np.uint8)
    else:
        pool = blocks.random_blocks(kind, pool_count, draw, deviation).reshape(-1)
    while left:
        shift = int(draw.integers(pool_count)) * size
        for part in (pool[shift:], pool[:shift]):
            count = min(left, len(part) // size)
            if count:
                yield part[:count * size].tobytes()
            left -= count

