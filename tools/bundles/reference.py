"""The forward pass in float64: slow, obvious and independent of the C++ sources. Works on canonical weights (family.py).

Formulas: docs/model.md. Nothing here rounds to float32; callers do when they store results."""
import math

import numpy as np

from . import family


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rms_norm(x, weight, epsilon):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + epsilon) * weight


def swiglu(x, gate, up, down):
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


def rotate(x, angle, magnitude=1.0):
    """x [rows, heads, dim]; angle [rows, half]: pairs (j, j + half) of the first 2 * half dimensions."""
    half = angle.shape[-1]
    cos, sin = magnitude * np.cos(angle)[:, None], magnitude * np.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half:2 * half]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half:]], -1)


def grouped_attention(q, k, v, visible):
    """q [rows, heads, dim]; k, v [slots, kv_heads, dim]; visible [rows, slots]. Returns [rows, heads * dim]."""
    group = q.shape[1] // k.shape[1]
    scores = np.einsum("rhd,shd->hrs", q, np.repeat(k, group, 1)) / math.sqrt(q.shape[-1])
    weight = softmax(np.where(visible[None], scores, -np.inf))
    return np.einsum("hrs,shd->rhd", weight, np.repeat(v, group, 1)).reshape(len(q), -1)


def text_positions(begin, rows):
    """(t, h, w) of text: all three count the tokens."""
    return np.repeat(begin + np.arange(rows)[:, None], 3, 1)


class Rotary:
    """Angles of interleaved M-RoPE: frequency j turns with axis h when j % 3 == 1, w when j % 3 == 2, t otherwise, as far
    as the sections of h and w reach. YaRN blends each frequency with its stretched one and scales both sin and cos."""

    def __init__(self, s):
        j = np.arange(s.rotary_dim // 2)
        self.frequency = s.theta ** (-2.0 * j / s.rotary_dim)
        self.magnitude = 1.0
        self.axis = np.zeros(len(j), int)
        if not s.next:
            self.axis[(j % 3 == 1) & (j < 3 * s.sections[1])] = 1
            self.axis[(j % 3 == 2) & (j < 3 * s.sections[2])] = 2
        if s.yarn:
            factor, original = s.yarn["factor"], s.yarn["original_max_position_embeddings"]

            def turns_at(n):  # the (real-valued) frequency index that makes n turns over the original context
                return s.rotary_dim * math.log(original / (2 * math.pi * n)) / (2 * math.log(s.theta))
            low, high = max(0, math.floor(turns_at(32))), min(s.rotary_dim - 1, math.ceil(turns_at(1)))
            ramp = np.clip((j - low) / max(0.001, high - low), 0, 1)
            self.frequency = (1 - ramp) * self.frequency + ramp * self.frequency / factor
            self.magnitude = 0.1 * math.log(factor) + 1

    def angles(self, positions):
        return positions[:, self.axis] * self.frequency


class Target:
    """The trunk and its MTP head. `weights` are canonical, float32."""

    def __init__(self, shape, weights):
        self.s, self.rotary = shape, Rotary(shape)
        self.w = {name: a.astype(np.float64) for name, a in weights.items()}
        for name in self.w:
            if family.is_centred(name):
                self.w[name] = self.w[name] + 1
        self.head = self.w["embed_tokens.weight" if shape.tied else "lm_head.weight"]

    def embed(self, tokens):
        return self.w["embed_tokens.weight"][tokens]

    def norm(self, x, name):
        return rms_norm(x, self.w[name], self.s.epsilon)

    def logits(self, hidden):
        return hidden @ self.head.T

    def trunk(self, x, positions=None, memory=None):
        """x [rows, hidden]: embeddings. Returns logits, hidden (after the final norm), the output of every layer, and the
        memory after the last row: per attention layer its keys and values, per delta layer the recurrent state and the
        convolution tail. Given the memory of earlier rows, continues after them."""
        memory = dict(memory or {})
        if positions is None:
            seen = next((len(m[0]) for layer, m in memory.items() if self.s.is_full(layer)), 0)
            positions = text_positions(seen, len(x))
        outputs = []
        for layer in range(self.s.layers):
            prefix = f"layers.{layer}."
            h = self.norm(x, prefix + "input_layernorm.weight")
            if self.s.is_full(layer):
                mixed, memory[layer] = self.attention(h, prefix + "self_attn.", positions, memory.get(layer))
            else:
                mixed, memory[layer] = self.delta_net(h, prefix + "linear_attn.", memory.get(layer))
            x = x + mixed
            x = x + self.feed_forward(self.norm(x, prefix + "post_attention_layernorm.weight"), prefix + "mlp.")
            outputs.append(x)
        hidden = self.norm(x, "norm.weight")
        return {"logits": self.logits(hidden), "hidden": hidden, "outputs": outputs, "memory": memory}

    def attention(self, x, p, positions, memory=None):
        s, rows = self.s, len(x)
        packed = (x @ self.w[p + "q_proj.weight"].T).reshape(rows, s.query_heads, 2 * s.head_dim)
        query, gate = packed[..., :s.head_dim], packed[..., s.head_dim:]
        key = (x @ self.w[p + "k_proj.weight"].T).reshape(rows, s.kv_heads, s.head_dim)
        value = (x @ self.w[p + "v_proj.weight"].T).reshape(rows, s.kv_heads, s.head_dim)
        angles = self.rotary.angles(positions)
        query = rotate(self.norm(query, p + "q_norm.weight"), angles, self.rotary.magnitude)
        key = rotate(self.norm(key, p + "k_norm.weight"), angles, self.rotary.magnitude)
        if memory:
            key, value = np.concatenate([memory[0], key]), np.concatenate([memory[1], value])
        out = grouped_attention(query, key, value, np.tri(rows, len(key), len(key) - rows, dtype=bool))
        return (out * sigmoid(gate.reshape(rows, -1))) @ self.w[p + "o_proj.weight"].T, (key, value)

    def delta_net(self, x, p, memory=None):
        """Token by token: decay the state, predict v from k, correct by beta times the error, read with q."""
        s, rows, keys = self.s, len(x), self.s.key_columns
        state, tail = memory or (np.zeros((s.value_heads, s.key_dim, s.value_dim)), np.zeros((s.kernel - 1, s.channels)))
        padded = np.concatenate([tail, x @ self.w[p + "in_proj_qkv.weight"].T])
        taps = self.w[p + "conv1d.weight"][:, 0]
        mixed = silu(sum(taps[:, j] * padded[j:j + rows] for j in range(s.kernel)))

        def unit(part):
            return part / np.sqrt(np.sum(part * part, -1, keepdims=True) + 1e-6)
        heads = np.arange(s.value_heads) // s.ratio  # the key head of each value head, checkpoint order
        query = unit(mixed[:, :keys].reshape(rows, -1, s.key_dim))[:, heads] / math.sqrt(s.key_dim)
        key = unit(mixed[:, keys:2 * keys].reshape(rows, -1, s.key_dim))[:, heads]
        value = mixed[:, 2 * keys:].reshape(rows, s.value_heads, s.value_dim)
        beta = sigmoid(x @ self.w[p + "in_proj_b.weight"].T)
        rate = np.logaddexp(0, x @ self.w[p + "in_proj_a.weight"].T + self.w[p + "dt_bias"])
        decay = np.exp(-np.exp(self.w[p + "A_log"]) * rate)

        core = np.empty_like(value)
        for t in range(rows):
            state = decay[t, :, None, None] * state
            error = beta[t, :, None] * (value[t] - (key[t, :, None] @ state)[:, 0])
            state = state + key[t, :, :, None] * error[:, None]
            core[t] = (query[t, :, None] @ state)[:, 0]
        z = (x @ self.w[p + "in_proj_z.weight"].T).reshape(core.shape)
        act = sigmoid if s.output_gate == "sigmoid" else silu
        normed = rms_norm(core, self.w[p + "norm.weight"], s.epsilon) * act(z)
        return normed.reshape(rows, -1) @ self.w[p + "out_proj.weight"].T, (state, padded[rows:])

    def feed_forward(self, x, p):
        part = lambda name: self.w[p + name]
        if not self.s.moe:
            return swiglu(x, part("gate_proj.weight"), part("up_proj.weight"), part("down_proj.weight"))
        shared = p + "shared_expert."
        out = sigmoid(x @ part("shared_expert_gate.weight").T) * swiglu(
            x, *(self.w[f"{shared}{name}_proj.weight"] for name in ("gate", "up", "down")))
        probability = softmax(x @ part("gate.weight").T)
        order = np.argsort(-probability, -1, kind="stable")[:, :self.s.top_k]
        total = np.take_along_axis(probability, order, -1).sum(-1)
        for expert in range(self.s.experts):
            rows = np.flatnonzero((order == expert).any(-1))
            gate, up = np.split(part("experts.gate_up_proj")[expert], 2)
            weight = (probability[rows, expert] / total[rows])[:, None]
            out[rows] += weight * swiglu(x[rows], gate, up, part("experts.down_proj")[expert])
        return out

    def mtp(self, hidden, next_tokens, layer=0):
        """One pass over pairs (hidden of position p after the final norm, token p + 1), p = 0, 1, ...; entry p rotates with
        position p. Returns logits for token p + 2 and the normed output, which deeper steps feed back as `hidden`."""
        p = f"mtp.layers.{layer}."
        pair = np.concatenate([self.norm(self.embed(next_tokens), "mtp.pre_fc_norm_embedding.weight"),
                               self.norm(hidden, "mtp.pre_fc_norm_hidden.weight")], -1)
        x = pair @ self.w["mtp.fc.weight"].T
        h = self.norm(x, p + "input_layernorm.weight")
        x = x + self.attention(h, p + "self_attn.", text_positions(0, len(x)))[0]
        x = x + self.feed_forward(self.norm(x, p + "post_attention_layernorm.weight"), p + "mlp.")
        y = self.norm(x, "mtp.norm.weight")
        return self.logits(y), y

    def mtp_chain(self, hidden, tokens, depth):
        """Greedy recursive drafts after `tokens`, whose trunk outputs are `hidden`, given the token that follows them (its
        argmax). Returns the drafted tokens and their logits [depth, vocab]."""
        follow = np.append(tokens[1:], int(np.argmax(self.logits(hidden[-1]))))
        entries, drafts, rows = hidden, [], []
        for _ in range(depth):
            logits, y = self.mtp(entries, follow)
            rows.append(logits[-1])
            drafts.append(int(np.argmax(logits[-1])))
            entries, follow = np.concatenate([entries, y[-1:]]), np.append(follow, drafts[-1])
        return np.array(drafts), np.array(rows)
