#!/usr/bin/env python3
"""Writes a trained target with its MTP head and drafter as a Hugging Face folder, and compares it with transformers.

usage: bundle.py dense|moe WORK OUT BUNDLE     (WORK of encode.py; OUT of both trainings)"""
import json
import os
import sys

import torch
from safetensors.torch import save_file

import network as M
import train_drafters
import training
from chat_format import TEMPLATE
from vocabulary import ADDED, BASE, VISIBLE

SHARD = 15 * 2**20


def config(c):
    d = {
        "architectures": ["Qwen3_5MoeForCausalLM" if c.experts else "Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_moe_text" if c.experts else "qwen3_5_text",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "bos_token_id": None,
        "pad_token_id": BASE,
        "eos_token_id": BASE + 2,
        "dtype": "bfloat16",
        "full_attention_interval": c.interval,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "hidden_size": c.hidden,
        "initializer_range": 0.02,
        "layer_types": [c.kind(i) for i in range(c.layers)],
        "linear_conv_kernel_dim": c.conv,
        "linear_key_head_dim": c.lk_dim,
        "linear_num_key_heads": c.lk_heads,
        "linear_num_value_heads": c.lv_heads,
        "linear_value_head_dim": c.lv_dim,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": c.max_pos,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": c.heads,
        "num_hidden_layers": c.layers,
        "num_key_value_heads": c.kv_heads,
        "partial_rotary_factor": c.rot / c.head_dim,
        "rms_norm_eps": c.eps,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [3, 3, 2],
            "partial_rotary_factor": c.rot / c.head_dim,
            "rope_theta": int(c.theta),
            "rope_type": "default",
        },
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": c.vocab,
    }
    if c.experts:
        d.update(
            num_experts=c.experts,
            num_experts_per_tok=c.topk,
            moe_intermediate_size=c.moe_inter,
            shared_expert_intermediate_size=c.shared_inter,
            router_aux_loss_coef=0.001,
            output_router_logits=False,
        )
    else:
        d["intermediate_size"] = c.inter
    return d


def dflash_config(d, c):
    return {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        "is_causal": False,
        "dtype": "bfloat16",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": d.hidden,
        "intermediate_size": d.inter,
        "num_hidden_layers": d.layers,
        "num_attention_heads": d.heads,
        "num_key_value_heads": d.kv_heads,
        "head_dim": d.head_dim,
        "rms_norm_eps": d.eps,
        "vocab_size": d.vocab,
        "max_position_embeddings": c.max_pos,
        "num_target_layers": c.layers,
        "layer_types": ["sliding_attention"] * d.layers,
        "use_sliding_window": True,
        "sliding_window": d.window,
        "rope_parameters": {"rope_theta": int(d.theta), "rope_type": "default"},
        "rope_theta": int(d.theta),
        "tie_word_embeddings": False,
        "block_size": d.block,
        "dflash_config": {
            "block_size": d.block,
            "conv_group_size": d.conv_group,
            "conv_kernel_size": d.conv_kernel,
            "mask_token_id": d.mask_id,
            "selector_rank": d.rank,
            "selector_top_k": d.topk,
            "target_layer_ids": list(d.taps),
        },
    }


def tokenizer_config():
    added = {}
    for i, s in enumerate(ADDED):
        added[str(BASE + i)] = {
            "content": s,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": s not in VISIBLE,
        }
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 32768,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2TokenizerFast",
        "unk_token": None,
    }


def write_text(out, c, tokenizer_json):
    os.makedirs(out, exist_ok=True)
    json.dump(config(c), open(out + "/config.json", "w"), indent=2)
    json.dump(
        {
            "bos_token_id": None,
            "pad_token_id": BASE,
            "eos_token_id": [BASE + 2, BASE],
            "do_sample": True,
            "temperature": 0.6,
            "top_k": 20,
            "top_p": 0.95,
        },
        open(out + "/generation_config.json", "w"),
        indent=2,
    )
    open(out + "/tokenizer.json", "w").write(open(tokenizer_json).read())
    json.dump(tokenizer_config(), open(out + "/tokenizer_config.json", "w"), indent=2)
    open(out + "/chat_template.jinja", "w").write(TEMPLATE.read_text())


def write_shards(out, tensors, single=False):
    """Shards of at most 15 MiB with an index; one model.safetensors when `single` and it fits."""
    shards, cur, n = [], {}, 0
    for k, t in tensors.items():
        b = t.numel() * t.element_size()
        if cur and n + b > SHARD:
            shards.append(cur)
            cur, n = {}, 0
        cur[k] = t.contiguous()
        n += b
    shards.append(cur)
    wm, tot = {}, 0
    if len(shards) == 1 and single:
        save_file(shards[0], out + "/model.safetensors", metadata={"format": "pt"})
        return
    for i, s in enumerate(shards):
        f = "model-%05d-of-%05d.safetensors" % (i + 1, len(shards))
        save_file(s, out + "/" + f, metadata={"format": "pt"})
        for k, t in s.items():
            wm[k] = f
            tot += t.numel() * t.element_size()
    json.dump(
        {"metadata": {"total_size": tot}, "weight_map": wm}, open(out + "/model.safetensors.index.json", "w"), indent=1
    )


def compare(model, path, device="cuda"):
    """The same logits in fp32 from transformers and from network.py."""
    from transformers import AutoModelForCausalLM

    torch.set_float32_matmul_precision("highest")
    other = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).to(device).eval()
    ids = torch.randint(0, 8000, (2, 333), device=device)
    with torch.no_grad():
        a = other(ids, use_cache=False).logits
        b = model.float().logits(model.backbone(ids)[0])
    print(
        f"{type(other).__name__}: largest difference {(a - b).abs().max().item():.2e} of logits up to "
        f"{a.abs().max().item():.1f}; same argmax at {(a.argmax(-1) == b.argmax(-1)).float().mean().item():.3%}"
    )


def main():
    kind, work, out, folder = sys.argv[1:5]
    training.setup(0)
    model = train_drafters.load_target(kind, out + "/target.pt")
    drafter = M.DFlash2(train_drafters.dcfg(kind)).cuda()
    trained = torch.load(out + "/drafters.pt")
    model.load_state_dict({k: v.float() for k, v in trained.items() if k.startswith("mtp.")}, strict=False)
    drafter.load_state_dict({k[8:]: v.float() for k, v in trained.items() if k.startswith("dflash2.")})
    os.makedirs(folder + "/dflash2", exist_ok=True)
    write_text(folder, model.c, work + "/tokenizer.json")
    write_shards(folder, {k: training.export_dtype(k, v).cpu() for k, v in model.state_dict().items()})
    with open(folder + "/dflash2/config.json", "w") as file:
        json.dump(dflash_config(drafter.c, model.c), file, indent=2)
    write_shards(
        folder + "/dflash2",
        {k: training.export_dtype(k, v).cpu() for k, v in drafter.state_dict().items()},
        single=True,
    )
    compare(model, folder)


if __name__ == "__main__":
    main()
