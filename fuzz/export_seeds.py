#!/usr/bin/env python3
"""Seeds of fuzz_gguf_export: configurations that fit the small weight file of the fuzzer, tokenizers, and near misses.

Usage: export_seeds.py OUT. Writes OUT/gguf_export/NAME. Standard library only."""
import json
import pathlib
import sys

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


def seed(config=None, tokenizer=None, tokenizer_config=None):
    files = ({**CONFIG, **(config or {})}, {**TOKENIZER, **(tokenizer or {})}, {**TOKENIZER_CONFIG, **(tokenizer_config or {})})
    return b"\0".join(json.dumps(f).encode() for f in files)


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
    yield "only_config", json.dumps(CONFIG).encode()
    yield "empty", b""


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1]) / "gguf_export"
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for name, body in seeds():
        (folder / name).write_bytes(body)
        count += 1
    print(f"gguf_export: {count} seeds in {folder}")


if __name__ == "__main__":
    main()
