"""The image tower of the family with random weights: its files and its reference result for one image."""
import math

import numpy as np

from . import blocks
from .containers import float_entry, write_gguf
from .reference import grouped_attention, rotate

PATCH, MERGE = 16, 2


def layer_norm(x, weight, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-6) * weight + bias


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


gelu_erf = np.vectorize(lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))))


def merge_order(rows, columns):
    """(row, column) of every patch, 2 x 2 blocks first: the order of patches in the input and of tokens in the output."""
    return np.array([(MERGE * a + i, MERGE * b + j) for a in range(rows // MERGE) for b in range(columns // MERGE)
                     for i in range(MERGE) for j in range(MERGE)])


class Tower:
    def __init__(self, out_hidden, rng, hidden=64, heads=4, width=96, depth=3, side=8):
        self.hidden, self.heads, self.width, self.depth, self.side, self.out_hidden = hidden, heads, width, depth, side, out_hidden
        merged = MERGE * MERGE * hidden

        def matrix(*dims, gain=1.0):
            return blocks.portable(gain * rng.standard_normal(dims) / math.sqrt(dims[-1]))

        def vector(size, mean=0.0):
            return blocks.portable(mean + 0.3 * rng.standard_normal(size))
        self.weights = {
            "patch_embed.proj.weight": matrix(hidden, 3, 2, PATCH, PATCH, gain=0.1), "patch_embed.proj.bias": vector(hidden),
            "pos_embed.weight": blocks.portable(0.5 * rng.standard_normal((side * side, hidden))),
            "merger.norm.weight": vector(hidden, 1), "merger.norm.bias": vector(hidden),
            "merger.linear_fc1.weight": matrix(merged, merged), "merger.linear_fc1.bias": vector(merged),
            "merger.linear_fc2.weight": matrix(out_hidden, merged), "merger.linear_fc2.bias": vector(out_hidden)}
        for b in range(depth):
            for name, dims in (("attn.qkv", (3 * hidden, hidden)), ("attn.proj", (hidden, hidden)),
                               ("mlp.linear_fc1", (width, hidden)), ("mlp.linear_fc2", (hidden, width))):
                self.weights[f"blocks.{b}.{name}.weight"] = matrix(*dims)
                self.weights[f"blocks.{b}.{name}.bias"] = vector(dims[0])
            for name in ("norm1", "norm2"):
                self.weights[f"blocks.{b}.{name}.weight"] = vector(hidden, 1)
                self.weights[f"blocks.{b}.{name}.bias"] = vector(hidden)

    def config(self):
        return {"depth": self.depth, "hidden_size": self.hidden, "intermediate_size": self.width, "num_heads": self.heads,
                "in_channels": 3, "patch_size": PATCH, "temporal_patch_size": 2, "spatial_merge_size": MERGE,
                "out_hidden_size": self.out_hidden, "num_position_embeddings": self.side ** 2,
                "hidden_act": "gelu_pytorch_tanh", "deepstack_visual_indexes": []}

    def hf_entries(self, kind):
        return [float_entry("model.visual." + name, kind, array) for name, array in self.weights.items()]

    def write_gguf(self, path):
        names = {"pos_embed.weight": "v.position_embd.weight", "patch_embed.proj.bias": "v.patch_embd.bias",
                 "merger.norm": "v.post_ln", "merger.linear_fc1": "mm.0", "merger.linear_fc2": "mm.2"}
        in_block = {"norm1": "ln1", "norm2": "ln2", "attn.qkv": "attn_qkv", "attn.proj": "attn_out",
                    "mlp.linear_fc1": "ffn_up", "mlp.linear_fc2": "ffn_down"}
        tensors = {}
        for name, array in self.weights.items():
            base, part = name.rsplit(".", 1)
            if name == "patch_embed.proj.weight":  # the two frames of the three-dimensional kernel lie apart
                tensors["v.patch_embd.weight"], tensors["v.patch_embd.weight.1"] = array[:, :, 0], array[:, :, 1]
            elif base.startswith("blocks."):
                _, number, inner = base.split(".", 2)
                tensors[f"v.blk.{number}.{in_block[inner]}.{part}"] = array
            else:
                tensors[names.get(name) or f"{names[base]}.{part}"] = array
        key = "clip.vision."
        metadata = {"general.architecture": "clip", "general.name": "tiny", "clip.projector_type": "qwen3vl_merger",
                    "clip.has_vision_encoder": True, "clip.use_gelu": True, key + "image_size": self.side * PATCH,
                    key + "patch_size": PATCH, key + "embedding_length": self.hidden, key + "feed_forward_length": self.width,
                    key + "block_count": self.depth, key + "attention.head_count": self.heads,
                    key + "attention.layer_norm_epsilon": 1e-6, key + "spatial_merge_size": MERGE,
                    key + "projection_dim": self.out_hidden, key + "image_mean": [0.5] * 3, key + "image_std": [0.5] * 3}
        write_gguf(path, metadata, [float_entry(name, "F32", np.ascontiguousarray(a)) for name, a in tensors.items()])

    def position_embedding(self, row, column, rows, columns):
        """Bilinear in the learned grid; the corners of the image meet the corners of the grid."""
        grid = self.weights["pos_embed.weight"].astype(np.float64).reshape(self.side, self.side, -1)
        y = row * (self.side - 1) / (rows - 1) if rows > 1 else 0.0
        x = column * (self.side - 1) / (columns - 1) if columns > 1 else 0.0
        y0, x0 = int(y), int(x)
        y1, x1 = min(y0 + 1, self.side - 1), min(x0 + 1, self.side - 1)
        top = (1 - (x - x0)) * grid[y0, x0] + (x - x0) * grid[y0, x1]
        bottom = (1 - (x - x0)) * grid[y1, x0] + (x - x0) * grid[y1, x1]
        return (1 - (y - y0)) * top + (y - y0) * bottom

    def patches(self, image):
        """image [3, height, width], normalised: one row per patch, (channel, frame, row, column), the frame twice."""
        order = merge_order(image.shape[1] // PATCH, image.shape[2] // PATCH)
        cut = [image[:, r * PATCH:(r + 1) * PATCH, c * PATCH:(c + 1) * PATCH] for r, c in order]
        return np.stack([np.stack([piece, piece], 1).reshape(-1) for piece in cut])

    def forward(self, patches, rows, columns):
        w = {name: array.astype(np.float64) for name, array in self.weights.items()}
        linear = lambda x, name: x @ w[name + ".weight"].reshape(len(w[name + ".bias"]), -1).T + w[name + ".bias"]
        norm = lambda x, name: layer_norm(x, w[name + ".weight"], w[name + ".bias"])
        order, dim = merge_order(rows, columns), self.hidden // self.heads
        x = linear(patches, "patch_embed.proj") + np.stack([self.position_embedding(r, c, rows, columns) for r, c in order])
        frequency = 1e4 ** (-2.0 * np.arange(dim // 4) / (dim // 2))
        angles = np.concatenate([order[:, :1] * frequency, order[:, 1:] * frequency], 1)
        everything = np.ones((len(x), len(x)), bool)
        for b in range(self.depth):
            p = f"blocks.{b}."
            q, k, v = (part.reshape(len(x), self.heads, dim) for part in np.split(linear(norm(x, p + "norm1"), p + "attn.qkv"), 3, 1))
            x = x + linear(grouped_attention(rotate(q, angles), rotate(k, angles), v, everything), p + "attn.proj")
            x = x + linear(gelu_tanh(linear(norm(x, p + "norm2"), p + "mlp.linear_fc1")), p + "mlp.linear_fc2")
        merged = norm(x, "merger.norm").reshape(len(x) // MERGE ** 2, -1)
        return linear(gelu_erf(linear(merged, "merger.linear_fc1")), "merger.linear_fc2")

    def results(self, rng, rows=6, columns=10):
        image = blocks.portable(rng.standard_normal((3, rows * PATCH, columns * PATCH)))
        patches = self.patches(image)
        return {"image_hwc": image.transpose(1, 2, 0), "patches": patches, "grid_thw": [1, rows, columns],
                "embeddings": self.forward(patches.astype(np.float64), rows, columns)}
