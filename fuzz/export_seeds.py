#!/usr/bin/env python3
"""Seeds of fuzz_gguf_export and fuzz_config: configurations that fit the small weight files of the fuzzers, tokenizers, and near misses.

Usage: export_seeds.py OUT. Writes OUT/FUZZER/NAME. Standard library only."""
import json
import pathlib
import struct
import sys

from seeds import array, gguf_file, text

CONFIG = {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_size": 8, "num_hidden_layers": 1, "vocab_size": 4,
          "intermediate_size": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "linear_num_key_heads": 1,
          "linear_num_value_heads": 2, "linear_key_head_dim": 4, "linear_value_head_dim": 4, "linear_conv_kernel_dim": 2, "rms_norm_eps": 1e-6,
          "layer_types": ["linear_attention"], "tie_word_embeddings": True, "eos_token_id": 3, "max_position_embeddings": 64,
          "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.5, "mrope_section": [1, 0, 0]}}
TOKENIZER = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
             "normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "ByteLevel"},
             "added_tokens": [{"id": 3, "content": "<|im_end|>", "special": True}]}
TOKENIZER_CONFIG = {"eos_token": "<|im_end|>", "pad_token": "<|im_end|>", "chat_template": "{{ messages[0].content }}",
                    "added_tokens_decoder": {"3": {"content": "<|im_end|>", "special": True}}}


def seed(config=None, tokenizer=None, tokenizer_config=None, weights=None):
    files = ({**CONFIG, **(config or {})}, {**TOKENIZER, **(tokenizer or {})}, {**TOKENIZER_CONFIG, **(tokenizer_config or {})})
    parts = [json.dumps(f).encode() for f in files]
    return b"\0".join(parts + ([listing(weights)] if weights else []))


def listing(weights):
    """A list of tensors as the fuzzers read it."""
    return "".join(" ".join(map(str, (name, *shape))) + "\n" for name, shape in weights.items()).encode()


def under(prefix, weights):
    return {prefix + name: shape for name, shape in weights.items()}


NORMS = {"input_layernorm.weight": (8,), "post_attention_layernorm.weight": (8,)}
DENSE = {"mlp.gate_proj.weight": (4, 8), "mlp.up_proj.weight": (4, 8), "mlp.down_proj.weight": (8, 4)}
# Two query heads and one K/V head of 4; q is twice as wide in a target, whose heads have gates.
ATTENTION = {"self_attn.q_proj.weight": (16, 8), "self_attn.k_proj.weight": (4, 8), "self_attn.v_proj.weight": (4, 8),
             "self_attn.o_proj.weight": (8, 8), "self_attn.q_norm.weight": (4,), "self_attn.k_norm.weight": (4,)}
DELTA = {"linear_attn.in_proj_qkv.weight": (16, 8), "linear_attn.in_proj_z.weight": (8, 8), "linear_attn.in_proj_a.weight": (2, 8),
         "linear_attn.in_proj_b.weight": (2, 8), "linear_attn.conv1d.weight": (16, 1, 2), "linear_attn.dt_bias": (2,), "linear_attn.A_log": (2,),
         "linear_attn.norm.weight": (4,), "linear_attn.out_proj.weight": (8, 8)}
NEXT = {**{name: shape for name, shape in DELTA.items() if "in_proj" not in name}, "linear_attn.in_proj_qkvz.weight": (24, 8),
        "linear_attn.in_proj_ba.weight": (4, 8)}
ROUTER = {"mlp.gate.weight": (2, 8), "mlp.shared_expert_gate.weight": (1, 8), **under("mlp.shared_expert.", {
    "gate_proj.weight": (4, 8), "up_proj.weight": (4, 8), "down_proj.weight": (8, 4)})}
EXPERTS = {
    "fused": {"mlp.experts.gate_up_proj": (2, 8, 8), "mlp.experts.down_proj": (2, 8, 4)},
    "banks": under("mlp.switch_mlp.", {"gate_proj.weight": (2, 4, 8), "up_proj.weight": (2, 4, 8), "down_proj.weight": (2, 8, 4)}),
    "apart": {f"mlp.experts.{e}.{name}.weight": shape for e in (0, 1)
              for name, shape in (("gate_proj", (4, 8)), ("up_proj", (4, 8)), ("down_proj", (8, 4)))},
}
SPARSE = {"model_type": "qwen3_5_moe_text", "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 4,
          "shared_expert_intermediate_size": 4}


def trunk(*layers, prefix="model.", **more):
    weights = {prefix + "embed_tokens.weight": (4, 8), prefix + "norm.weight": (8,)}
    for i, layer in enumerate(layers):
        weights.update(under(f"{prefix}layers.{i}.", {**NORMS, **layer}))
    return {**weights, **more}


MTP = {"mtp.fc.weight": (8, 16), "mtp.pre_fc_norm_embedding.weight": (8,), "mtp.pre_fc_norm_hidden.weight": (8,), "mtp.norm.weight": (8,),
       **under("mtp.layers.0.", {**NORMS, **ATTENTION, **DENSE})}


def block_weights(layers=2, second=False, markov=False):
    weights = {"fc.weight": (8, 16), "hidden_norm.weight": (8,), "norm.weight": (8,)}
    for i in range(layers):
        layer = {**NORMS, **ATTENTION, **DENSE, "self_attn.q_proj.weight": (8, 8)}
        if second:
            for side in ("attention_conv", "mlp_conv"):
                layer.update({f"{side}.base_kernel": (2, 2, 8), f"{side}.kernel_projection.weight": (16, 8)})
        weights.update(under(f"layers.{i}.", layer))
    if second:
        weights.update(under("candidate_selector.", {"hidden_projection.weight": (2, 8), "predecessor_codebook": (4, 2), "successor_codebook": (4, 2)}))
    if markov:
        weights.update({"markov_head.markov_w1.weight": (4, 2), "markov_head.markov_w2.weight": (4, 2), "confidence_head.proj.weight": (1, 10),
                        "confidence_head.proj.bias": (1,), "d2t": (4,)})
    return weights


def whole_models():
    """Name, changes of CONFIG, weights that fit them."""
    full = {"layer_types": ["full_attention"]}
    yield "attention", full, trunk({**ATTENTION, **DENSE})
    yield "head", {"tie_word_embeddings": False}, trunk({**DELTA, **DENSE}, **{"lm_head.weight": (4, 8)})
    yield "tied_head", {}, trunk({**DELTA, **DENSE}, **{"lm_head.weight": (4, 8)})
    yield "mtp_head", {**full, "mtp_num_hidden_layers": 1}, trunk({**ATTENTION, **DENSE}, **MTP)
    yield "irregular", {"num_hidden_layers": 2, "layer_types": ["full_attention", "linear_attention"], "mtp_num_hidden_layers": 1}, trunk(
        {**ATTENTION, **DENSE}, {**DELTA, **DENSE}, **MTP)
    for name, experts in EXPERTS.items():
        yield f"experts_{name}", SPARSE, trunk({**DELTA, **ROUTER, **experts})
    yield "next_whole", {**SPARSE, "model_type": "qwen3_next"}, trunk({**NEXT, **ROUTER, **EXPERTS["apart"]})
    yield "converted", {}, trunk({**DELTA, **DENSE, "linear_attn.conv1d.weight": (16, 2, 1)}, prefix="language_model.model.")
    yield "no_embedding", {}, {"model.norm.weight": (8,)}
    yield "sigmoid", {"output_gate_type": "sigmoid"}, trunk({**DELTA, **DENSE})
    yield "heads_do_not_divide", {"linear_num_value_heads": 3, "linear_num_key_heads": 2}, trunk({**DELTA, **DENSE})
    yield "yarn_whole", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e7,
                                             "beta_fast": 32.0, "beta_slow": 1.0}}, trunk({**DELTA, **DENSE})


def whole_drafters():
    """Name, configuration, weights that fit it."""
    windows = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
    first = {"conv_kernel_size": 0, "selector_rank": 0}
    yield "second", drafter(), block_weights(second=True)
    yield "second_windows", drafter(**windows), block_weights(second=True)
    yield "all_windows", drafter(layer_types=["sliding_attention"] * 2, sliding_window=8), block_weights(second=True)
    yield "first", drafter(architectures=["DFlashDraftModel"], inner=first), block_weights()
    yield "first_layer", drafter(architectures=["DFlashDraftModel"], num_hidden_layers=1, inner={**first, "target_layer_ids": None}), block_weights(1)
    yield "first_default", drafter(architectures=["DFlashDraftModel"], inner={**first, "target_layer_ids": None}), block_weights()
    markov = {"architectures": ["DSparkDraftModel"], "inner": first, "markov_rank": 2}
    yield "markov", drafter(**markov), block_weights(markov=True)
    yield "markov_capped", drafter(**{**markov, "inner": {**first, "final_logit_softcapping": 30.0}}), block_weights(markov=True)
    yield "scaled", drafter(inner={"input_embedding_scale": 2.0, "output_multiplier": 0.5, "final_logit_softcapping": 30.0}), block_weights(second=True)
    yield "short_types", drafter(layer_types=["full_attention"]), block_weights(second=True)


def seeds():
    yield "fits", seed()
    yield "nested", seed({"text_config": CONFIG, "model_type": "qwen3_5"})
    yield "sparse", seed({"model_type": "qwen3_5_moe_text", "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 4,
                          "shared_expert_intermediate_size": 4})
    yield "next", seed({"model_type": "qwen3_next", "num_experts": 2, "num_experts_per_tok": 1})
    yield "yarn", seed({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e7}})
    yield "mtp", seed({"mtp_num_hidden_layers": 1})
    yield "drafter", seed({"architectures": ["DFlash2DraftModel"], "model_type": "qwen3", "block_size": 4, "num_target_layers": 1,
                           "dflash_config": {"target_layer_ids": [0], "mask_token_id": 2, "block_size": 4, "conv_kernel_size": 2,
                                             "conv_group_size": 2, "selector_rank": 2, "selector_top_k": 2}})
    yield "merges_as_text", seed(tokenizer={"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})
    for i, change in enumerate(({"hidden_size": 2**62}, {"vocab_size": -1}, {"num_hidden_layers": "1"}, {"layer_types": ["other"]},
                                {"linear_num_value_heads": 3}, {"model_type": "llama"}, {"eos_token_id": [3, -1, 2**40]}, {"rms_norm_eps": None})):
        yield f"odd_config_{i}", seed(change)
    for i, change in enumerate(({"model": []}, {"added_tokens": [{"id": -1, "content": "x"}]}, {"added_tokens": [{"id": 2**40, "content": "x"}]},
                                {"model": {"type": "BPE", "vocab": {"a": 7}, "merges": [["a"]]}}, {"pre_tokenizer": None})):
        yield f"odd_tokenizer_{i}", seed(tokenizer=change)
    for name, change, weights in whole_models():
        yield "whole_" + name, seed(change, weights=weights)
    yield "no_tokenizer", json.dumps(CONFIG).encode() + b"\0\0\0" + listing(trunk({**DELTA, **DENSE}))
    yield "named_templates", seed(tokenizer_config={"chat_template": [{"name": "x", "template": "x"}, {"name": "default", "template": "d"}]})
    yield "other_templates", seed(tokenizer_config={"chat_template": [{"name": "x", "template": "x"}, 1]})
    for name, config, weights in whole_drafters():
        yield "whole_drafter_" + name, json.dumps(config).encode() + b"\0\0\0" + listing(weights)
    for name, body in gguf_configs():
        yield "gguf_" + name, body
    yield "only_config", json.dumps(CONFIG).encode()
    yield "empty", b""


def drafter(**changes):
    inner = {"target_layer_ids": [0, 2], "mask_token_id": 2, "block_size": 4, "conv_kernel_size": 2, "conv_group_size": 2, "selector_rank": 2,
             "selector_top_k": 2}
    inner.update(changes.pop("inner", {}))
    config = {"architectures": ["DFlash2DraftModel"], "model_type": "qwen3", "hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 4,
              "intermediate_size": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
              "num_target_layers": 4, "dflash_config": inner}
    return {**config, **changes}


def json_configs():
    yield "fits", CONFIG
    yield "nested", {"text_config": CONFIG, "model_type": "qwen3_5", "mtp_num_hidden_layers": 1}
    sparse = {**CONFIG, "model_type": "qwen3_5_moe_text", "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 4,
              "shared_expert_intermediate_size": 4}
    yield "sparse", sparse
    yield "next", {**sparse, "model_type": "qwen3_next", "num_hidden_layers": 4, "layer_types": None, "mlp_only_layers": [1, -1, 9, "x"],
                   "decoder_sparse_step": 2}
    rope = CONFIG["rope_parameters"]
    for i, change in enumerate(({"rope_type": "yarn", "factor": 4.0}, {"rope_type": "linear"}, {"mrope_section": [1, 2, 3]}, {"mrope_section": 3},
                                {"mrope_section": [9999, -1, "x"]}, {"mrope_section": [0] * 5}, {"rope_theta": 0.5}, {"rope_theta": "x"},
                                {"partial_rotary_factor": 0}, {"partial_rotary_factor": 1e30}, {"rope_type": "yarn", "factor": -1e300,
                                "original_max_position_embeddings": 0, "beta_fast": 0})):
        yield f"rope_{i}", {**CONFIG, "rope_parameters": {**rope, **change}}
    yield "rope_not_object", {**CONFIG, "rope_parameters": 1}
    yield "rope_scaling", {**CONFIG, "rope_parameters": None, "rope_scaling": {"type": "yarn", "factor": 2}}
    yield "no_rope", {key: value for key, value in CONFIG.items() if key != "rope_parameters"}
    for i, change in enumerate(({"hidden_size": 2**62}, {"vocab_size": -1}, {"num_hidden_layers": "1"}, {"num_hidden_layers": 0},
                                {"layer_types": ["other"]}, {"layer_types": []}, {"layer_types": None, "full_attention_interval": 0},
                                {"layer_types": None, "full_attention_interval": 1}, {"linear_num_value_heads": 3, "linear_num_key_heads": 2},
                                {"model_type": "llama"}, {"eos_token_id": [3, -1, 2**40, 3]}, {"rms_norm_eps": None}, {"rms_norm_eps": 2.0},
                                {"rms_norm_eps": "x"}, {"output_gate_type": "sigmoid"}, {"output_gate_type": "relu"}, {"hidden_act": "gelu"},
                                {"attention_bias": True}, {"attention_bias": 1}, {"head_dim": 0}, {"head_dim": 512}, {"num_attention_heads": 3,
                                "num_key_value_heads": 2}, {"text_config": 1}, {"tie_word_embeddings": 1}, {"hidden_size": None},
                                {"linear_key_head_dim": 1024}, {"max_position_embeddings": 0}, {"model_type": 3}, {"num_hidden_layers": 5000})):
        yield f"odd_{i}", {**CONFIG, **change}
    yield "no_norm_topk", {**sparse, "norm_topk_prob": False}
    yield "not_object", []
    yield "drafter", drafter()
    yield "drafter_first", drafter(architectures=["DFlashDraftModel"], inner={"conv_kernel_size": 0, "selector_rank": 0})
    yield "drafter_no_taps", drafter(inner={"target_layer_ids": None})
    yield "drafter_one_layer", drafter(num_hidden_layers=1, inner={"target_layer_ids": None})
    for i, change in enumerate(({"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}, {"layer_types": ["x", "y"]},
                                {"layer_types": []}, {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 2**40},
                                {"use_sliding_window": True, "sliding_window": 0, "max_window_layers": 0}, {"is_causal": True},
                                {"inner": {"causal": True}}, {"inner": {"target_layer_ids": [0, "x"]}}, {"inner": {"target_layer_ids": [99]}},
                                {"inner": {"target_layer_ids": []}}, {"inner": {"block_size": 1}}, {"inner": {"block_size": 10**9}},
                                {"inner": {"mask_token_id": 99}}, {"inner": {"conv_group_size": 3}}, {"inner": {"selector_top_k": 0}},
                                {"inner": {"selector_rank": -1}}, {"hidden_size": 16}, {"vocab_size": 9}, {"num_hidden_layers": 0},
                                {"num_target_layers": 7}, {"hidden_act": "relu"}, {"attention_bias": True}, {"rope_scaling": {"type": "yarn"}},
                                {"rope_parameters": {"rope_theta": "x"}}, {"rope_theta": -1}, {"head_dim": 3}, {"head_dim": None},
                                {"num_attention_heads": 0}, {"num_key_value_heads": 3}, {"intermediate_size": 0}, {"rms_norm_eps": 0},
                                {"final_logit_softcapping": 30.0}, {"embedding_multiplier": 2.0, "logits_scaling": 0.5}, {"dflash_config": 1},
                                {"architectures": ["Llama"], "dflash_config": None}, {"architectures": [1, "DSparkDraftModel"]})):
        yield f"drafter_odd_{i}", drafter(**change)


def gguf_configs():
    def u32(value):
        return 4, struct.pack("<I", value)

    def f32(value):
        return 6, struct.pack("<f", value)

    def i32s(values):
        return 9, array(5, len(values), struct.pack(f"<{len(values)}i", *values))

    def texts(values):
        return 9, array(8, len(values), b"".join(map(text, values)))

    def trunk(architecture, **changes):
        keys = {"block_count": u32(1), "embedding_length": u32(8), "context_length": u32(64), "attention.layer_norm_rms_epsilon": f32(1e-6),
                "attention.head_count": u32(2), "attention.head_count_kv": u32(1), "attention.key_length": u32(4), "attention.value_length": u32(4),
                "ssm.conv_kernel": u32(2), "ssm.state_size": u32(4), "ssm.group_count": u32(1), "ssm.time_step_rank": u32(2), "ssm.inner_size": u32(8),
                "feed_forward_length": u32(4), "expert_count": u32(2), "expert_used_count": u32(1), "expert_feed_forward_length": u32(4),
                "expert_shared_feed_forward_length": u32(4), "rope.freq_base": f32(1e7), "rope.dimension_count": u32(2),
                "rope.dimension_sections": i32s([1, 0, 0, 0])}
        keys.update({key.replace("__", "."): value for key, value in changes.items()})
        values = [("general.architecture", 8, text(architecture))]
        values += [(f"{architecture}.{key}", *value) for key, value in keys.items() if value]
        values += [("tokenizer.ggml.eos_token_id", *u32(3)), ("tokenizer.ggml.eot_token_id", *u32(9)),
                   ("tokenizer.ggml.tokens", *texts(["a", "<|endoftext|>", "<|im_end|>", "x"]))]
        infos = [("token_embd.weight", [8, 4], 0, 0), ("output_norm.weight", [8], 0, 128), ("fc.weight", [8, 8], 0, 160)]
        return gguf_file(values, infos, bytes(160 + 256))

    for architecture in ("qwen35", "qwen35moe", "qwen3next", "llama", "dflash"):
        yield architecture, trunk(architecture)
    block = {"block_count": u32(2), "block_size": u32(4), "target_layers": i32s([0, 2]), "attention.sliding_window": u32(8), "selector_rank": u32(2),
             "attention.sliding_window_pattern": (9, array(7, 2, b"\1\0")), "attention.causal": (7, b"\1"), "conv_kernel_size": u32(2),
             "conv_group_size": u32(2), "final_logit_softcapping": f32(30.0), "sample_from_anchor": (7, b"\1")}
    least = (9, array(11, 1, struct.pack("<q", -2**63)))
    for i, change in enumerate(({}, {"target_layers": least}, {"target_layers": (8, text("x"))}, {"target_layers": None}, {"attention.sliding_window_pattern": u32(2)},
                                {"attention.sliding_window_pattern": (9, array(7, 1, b"\1"))}, {"attention.causal": None}, {"block_size": u32(0)})):
        yield f"block_{i}", trunk("dflash", **{**block, **change})
    for i, change in enumerate(({"rope__scaling__type": (8, text("yarn")), "rope__scaling__factor": f32(4.0)}, {"rope__scaling__type": (8, text("none"))},
                                {"rope__scaling__type": (8, text("linear"))}, {"rope__dimension_sections": i32s([2**30, 2**30, 2**30])},
                                {"rope__dimension_sections": i32s([-1, 0, 0])}, {"rope__dimension_count": u32(1)}, {"rope__dimension_count": u32(8)},
                                {"rope__freq_base": f32(0.0)}, {"block_count": u32(0)}, {"block_count": u32(4), "nextn_predict_layers": u32(1)},
                                {"full_attention_interval": u32(0)}, {"attention__recurrent_layers": (9, array(7, 1, b"\1"))},
                                {"attention__value_length": u32(5)}, {"ssm__inner_size": u32(7)}, {"attention__head_count": i32s([0, 2])},
                                {"attention__head_count": (8, text("x"))}, {"attention__layer_norm_rms_epsilon": (8, text("x"))},
                                {"embedding_length": None}, {"attention__key_length": u32(0)}, {"rope__freq_base": None})):
        yield f"odd_{i}", trunk("qwen35", **change)
    yield "no_architecture", gguf_file([("general.name", 8, text("x"))])
    yield "no_embedding", gguf_file([("general.architecture", 8, text("qwen35"))])


def configs():
    for name, config in json_configs():
        yield name, json.dumps(config).encode() + b"\0" + b'{"eos_token_id": [1, 2, 2]}'
    for name, change, weights in whole_models():
        yield "whole_" + name, json.dumps({**CONFIG, **change}).encode() + b"\0\0" + listing(weights)
    for name, config, weights in whole_drafters():
        yield "whole_drafter_" + name, json.dumps(config).encode() + b"\0\0" + listing(weights)
    for name, body in gguf_configs():
        yield "gguf_" + name, body


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for fuzzer, made in (("gguf_export", seeds()), ("config", configs())):
        folder = pathlib.Path(sys.argv[1]) / fuzzer
        folder.mkdir(parents=True, exist_ok=True)
        count = 0
        for name, body in made:
            (folder / name).write_bytes(body)
            count += 1
        print(f"{fuzzer}: {count} seeds in {folder}")


if __name__ == "__main__":
    main()
