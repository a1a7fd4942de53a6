"""DFlash 1, DSpark and DFlash 2 drafters with random weights: their files and their reference results for a target.

All norms have plain weights. Embedding and head are the target's."""
import json
import pathlib

import numpy as np

from . import blocks
from .containers import float_entry, write_gguf, write_safetensors_folder
from .reference import grouped_attention, rms_norm, rotate, sigmoid, swiglu

CONTEXT_ROWS = 40

# canonical name within a layer: GGUF name within a block
LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight", "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight", "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight", "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight", "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight", "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight", "attention_conv.base_kernel": "attn_conv_base",
    "attention_conv.kernel_projection.weight": "attn_conv_proj.weight", "mlp_conv.base_kernel": "ffn_conv_base",
    "mlp_conv.kernel_projection.weight": "ffn_conv_proj.weight"}
TOP_NAMES = {
    "fc.weight": "fc.weight", "hidden_norm.weight": "enc.output_norm.weight", "norm.weight": "output_norm.weight",
    "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight", "markov_head.markov_w1.weight": "markov_w1.weight",
    "markov_head.markov_w2.weight": "markov_w2.weight", "confidence_head.proj.weight": "conf_proj.weight",
    "confidence_head.proj.bias": "conf_proj.bias"}


class Drafter:
    """`block_rows` counts the anchor and its masks in one pass: 6, or 5 for DSpark, whose anchor row predicts too."""

    def __init__(self, kind, target_shape, rng, mask_token, taps=(1, 4, 6), layers=2, query_heads=4, kv_heads=2, head_dim=32,
                 width=80, theta=5e4, window=16, conv_taps=2, group=16, rank=8, top_k=4):
        self.kind, self.target, self.mask_token, self.taps, self.layers = kind, target_shape, mask_token, taps, layers
        self.query_heads, self.kv_heads, self.head_dim, self.width, self.theta = query_heads, kv_heads, head_dim, width, theta
        self.window, self.conv_taps, self.group, self.rank, self.top_k = window, conv_taps, group, rank, top_k
        self.block_rows = 5 if kind == "dspark" else 6
        self.epsilon = 1e-6
        hidden, vocab = target_shape.hidden, target_shape.vocab
        groups = hidden // group

        def matrix(*dims, gain=1.0):
            return blocks.portable(gain * rng.standard_normal(dims) / np.sqrt(dims[-1]))

        def around(dims, mean, deviation):
            return blocks.portable(mean + deviation * rng.standard_normal(dims))
        w = {"fc.weight": matrix(hidden, len(taps) * hidden), "hidden_norm.weight": around(hidden, 1, 0.3),
             "norm.weight": around(hidden, 1, 0.3)}
        for i in range(layers):
            p = f"layers.{i}."
            for name, dims in (("q", (query_heads * head_dim, hidden)), ("k", (kv_heads * head_dim, hidden)),
                               ("v", (kv_heads * head_dim, hidden)), ("o", (hidden, query_heads * head_dim))):
                w[f"{p}self_attn.{name}_proj.weight"] = matrix(*dims)
            for name, size in (("input_layernorm", hidden), ("post_attention_layernorm", hidden),
                               ("self_attn.q_norm", head_dim), ("self_attn.k_norm", head_dim)):
                w[f"{p}{name}.weight"] = around(size, 1, 0.3)
            for name, dims in (("gate", (width, hidden)), ("up", (width, hidden)), ("down", (hidden, width))):
                w[f"{p}mlp.{name}_proj.weight"] = matrix(*dims)
            if self.v2:
                for name in ("attention_conv", "mlp_conv"):  # base [side, tap, channel]: near the identity
                    base = around((2, conv_taps, hidden), 0, 0.2)
                    base[:, 0] = around((2, hidden), 1, 0.1)
                    w[f"{p}{name}.base_kernel"] = base
                    w[f"{p}{name}.kernel_projection.weight"] = matrix(2 * conv_taps * groups, hidden, gain=0.3)
        if self.v2:
            w["candidate_selector.hidden_projection.weight"] = matrix(rank, hidden)
            w["candidate_selector.predecessor_codebook"] = matrix(vocab, rank, gain=2)
            w["candidate_selector.successor_codebook"] = matrix(vocab, rank, gain=2)
        if kind == "dspark":
            w["markov_head.markov_w1.weight"] = blocks.portable(rng.standard_normal((vocab, rank)))
            w["markov_head.markov_w2.weight"] = matrix(vocab, rank, gain=2)
            w["confidence_head.proj.weight"] = matrix(1, hidden + rank)
            w["confidence_head.proj.bias"] = around(1, 0, 0.3)
        self.weights = w

    @property
    def v2(self):
        return self.kind == "dflash2"

    # ---- files

    def config(self):
        t = self.target
        dflash = {"target_layer_ids": list(self.taps), "mask_token_id": self.mask_token}
        config = {
            "architectures": ["DFlash2DraftModel" if self.v2 else "DFlashDraftModel"], "model_type": "qwen3",
            "hidden_size": t.hidden, "intermediate_size": self.width, "num_hidden_layers": self.layers,
            "num_attention_heads": self.query_heads, "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim,
            "rms_norm_eps": self.epsilon, "rope_theta": self.theta, "vocab_size": t.vocab, "num_target_layers": t.layers,
            "is_causal": False, "hidden_act": "silu", "attention_bias": False, "max_position_embeddings": t.context,
            "layer_types": ["full_attention"] * self.layers, "dflash_config": dflash}
        if self.v2:
            dflash.update(block_size=self.block_rows, conv_kernel_size=self.conv_taps, conv_group_size=self.group,
                          selector_rank=self.rank, selector_top_k=self.top_k)
            config.update(layer_types=["sliding_attention"] * self.layers, sliding_window=self.window, use_sliding_window=True)
        else:
            config["block_size"] = self.block_rows
        if self.kind == "dspark":
            config["markov_rank"] = self.rank
        return config

    def write_hf(self, folder, kind):
        write_safetensors_folder(folder, [float_entry(n, kind, a) for n, a in self.weights.items()])
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(self.config(), indent=1) + "\n")

    def write_gguf(self, path):
        a, t = "dflash.", self.target
        metadata = {
            "general.architecture": "dflash", "general.name": "tiny", "general.alignment": 32, a + "block_count": self.layers,
            a + "context_length": t.context, a + "vocab_size": t.vocab, a + "embedding_length": t.hidden,
            a + "feed_forward_length": self.width, a + "attention.head_count": self.query_heads,
            a + "attention.head_count_kv": self.kv_heads, a + "attention.key_length": self.head_dim,
            a + "attention.value_length": self.head_dim, a + "attention.layer_norm_rms_epsilon": self.epsilon,
            a + "rope.freq_base": self.theta, a + "block_size": self.block_rows,
            a + "target_layers": [tap + 1 for tap in self.taps],  # GGUF names the layer whose input is tapped
            "tokenizer.ggml.model": "none", "tokenizer.ggml.mask_token_id": self.mask_token}
        if self.v2:
            metadata.update({a + "attention.causal": False, a + "attention.sliding_window": self.window,
                             a + "attention.sliding_window_pattern": [True] * self.layers,
                             a + "conv_kernel_size": self.conv_taps, a + "conv_group_size": self.group,
                             a + "selector_rank": self.rank, a + "selector_top_k": self.top_k})
        entries = []
        for name, array in self.weights.items():
            if name.startswith("layers."):
                _, number, inner = name.split(".", 2)
                entries.append(float_entry(f"blk.{number}.{LAYER_NAMES[inner]}", "F32", array))
            else:
                entries.append(float_entry(TOP_NAMES[name], "F32", array))
        write_gguf(path, metadata, entries)

    # ---- reference

    def results(self, target, rng, tokens_below):
        """Drafts after CONTEXT_ROWS random tokens: the anchor is the target's greedy next token."""
        w = {name: array.astype(np.float64) for name, array in self.weights.items()}
        tokens = rng.integers(0, tokens_below, CONTEXT_ROWS)
        run = target.trunk(target.embed(tokens))
        features = np.concatenate([run["outputs"][tap] for tap in self.taps], 1)
        anchor = int(np.argmax(run["logits"][-1]))
        context = rms_norm(features @ w["fc.weight"].T, w["hidden_norm.weight"], self.epsilon)
        rows = [anchor] + [self.mask_token] * (self.block_rows - 1)
        hidden = self.block(w, target.embed(rows), context)
        logits = target.logits(hidden)
        common = {"tokens": tokens, "features": features, "context": context, "rows": rows, "hidden": hidden}
        if self.kind == "dflash1":
            return {**common, "logits": logits[1:], "draft": np.argmax(logits[1:], -1)}
        if self.kind == "dspark":
            return {**common, "base_logits": logits, **self.markov_walk(w, hidden, logits, anchor)}
        return {**common, "logits": logits[1:], **self.candidate_walk(w, hidden[1:], logits[1:], anchor)}

    def block(self, w, x, context):
        count, seen = len(x), len(context)
        positions = seen + np.arange(count)
        frequency = self.theta ** (-2.0 * np.arange(self.head_dim // 2) / self.head_dim)
        own, all_angles = positions[:, None] * frequency, np.arange(seen + count)[:, None] * frequency
        visible = np.ones((count, seen + count), bool)
        if self.v2:  # the window bounds the context only; inside the block every row sees every row
            visible[:, :seen] = positions[:, None] - np.arange(seen) < self.window
        heads = lambda y, n: y.reshape(len(y), n, self.head_dim)
        for i in range(self.layers):
            part = lambda name: w[f"layers.{i}.{name}"]

            def attention(h):
                q = heads(h @ part("self_attn.q_proj.weight").T, self.query_heads)
                source = np.concatenate([context, h])  # the context skips the layer's input norm
                k = heads(source @ part("self_attn.k_proj.weight").T, self.kv_heads)
                v = heads(source @ part("self_attn.v_proj.weight").T, self.kv_heads)
                q = rotate(rms_norm(q, part("self_attn.q_norm.weight"), self.epsilon), own)
                k = rotate(rms_norm(k, part("self_attn.k_norm.weight"), self.epsilon), all_angles)
                return grouped_attention(q, k, v, visible) @ part("self_attn.o_proj.weight").T

            def feed_forward(h):
                return swiglu(h, *(part(f"mlp.{name}_proj.weight") for name in ("gate", "up", "down")))
            for norm, conv, sublayer in (("input_layernorm", "attention_conv", attention),
                                         ("post_attention_layernorm", "mlp_conv", feed_forward)):
                h = rms_norm(x, part(norm + ".weight"), self.epsilon)
                if self.v2:
                    before, after = self.kernels(part(conv + ".base_kernel"), part(conv + ".kernel_projection.weight"), h)
                    x = x + convolve(after, sublayer(convolve(before, h)))
                else:
                    x = x + sublayer(h)
        return rms_norm(x, w["norm.weight"], self.epsilon)

    def kernels(self, base, projection, h):
        """Kernels [rows, taps, channels] of both sides; both are computed from the rows before the sublayer."""
        delta = (h @ projection.T).reshape(len(h), 2, self.conv_taps, -1)
        both = base[None] + np.repeat(delta, self.group, -1)
        return both[:, 0], both[:, 1]

    def markov_walk(self, w, hidden, logits, anchor):
        first, second = w["markov_head.markov_w1.weight"], w["markov_head.markov_w2.weight"]
        adjusted, confidence, draft, previous = [], [], [], anchor
        for i in range(len(hidden)):
            adjusted.append(logits[i] + second @ first[previous])
            score = w["confidence_head.proj.weight"] @ np.concatenate([hidden[i], first[previous]])
            confidence.append(sigmoid(score + w["confidence_head.proj.bias"])[0])
            previous = int(np.argmax(adjusted[-1]))
            draft.append(previous)
        return {"logits": adjusted, "confidence": confidence, "draft": draft}

    def candidate_walk(self, w, hidden, logits, anchor):
        """The top candidates of each slot, then left to right the best by own logit plus edge from the chosen one before."""
        candidates = np.argsort(-logits, axis=-1, kind="stable")[:, :self.top_k]
        unary = np.take_along_axis(logits, candidates, 1)
        projected = hidden @ w["candidate_selector.hidden_projection.weight"].T
        before, after = w["candidate_selector.predecessor_codebook"], w["candidate_selector.successor_codebook"]
        scores, draft, previous = [], [], anchor
        for i in range(len(hidden)):
            scores.append(unary[i] + after[candidates[i]] @ (before[previous] * projected[i]))
            previous = int(candidates[i][np.argmax(scores[-1])])
            draft.append(previous)
        return {"candidates": candidates, "unary": unary, "scores": scores, "draft": draft}


def convolve(kernel, rows):
    """kernel [rows, taps, channels]: tap j meets the row j before; rows before the block are zero."""
    out = kernel[:, 0] * rows
    for j in range(1, kernel.shape[1]):
        out[j:] += kernel[j:, j] * rows[:-j]
    return out
