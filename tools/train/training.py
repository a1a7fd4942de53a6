"""What both trainings share: token windows on the GPU, Muon with AdamW, the schedule, batched generation, validation."""
import glob
import math
import os

import numpy as np
import torch
import torch.nn.functional as F
import network as M


def setup(seed=0):
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")  # tf32 for the fp32 parts while training
    import torch._dynamo as d

    for k in ("cache_size_limit", "recompile_limit", "accumulated_cache_size_limit", "accumulated_recompile_limit"):
        if hasattr(d.config, k):
            setattr(d.config, k, 128)


class Data:
    """The token stream on the GPU; windows walk a permuted grid, half of them snapped to a document start."""

    def __init__(self, work, dev="cuda", seed=0):
        self.tok = torch.from_numpy(np.load(work + "/tokens.npy").astype(np.int32)).to(dev)
        self.docs = torch.from_numpy(np.load(work + "/docs.npy")).to(dev)
        self.n = self.tok.numel()
        self.g = torch.Generator(device=dev).manual_seed(seed)
        self.dev, self.perm, self.i, self.epoch = dev, None, 0, -1

    def batch(self, B, L):
        if self.perm is None or self.L != L or self.i + B > self.perm.numel():
            self.L, self.i, self.epoch = L, 0, self.epoch + 1
            k = (self.n - 2 * L - 2) // L
            self.off = int(torch.randint(0, L, (1,), device=self.dev, generator=self.g))
            self.perm = torch.randperm(k, device=self.dev, generator=self.g)
        p = self.perm[self.i : self.i + B] * L + self.off
        self.i += B
        j = torch.searchsorted(self.docs, p).clamp(max=self.docs.numel() - 1)
        d = self.docs[j]
        snap = (torch.rand(B, device=self.dev, generator=self.g) < 0.5) & (d - p < L // 2) & (d + L + 1 < self.n)
        p = torch.where(snap, d, p)
        return self.tok[p[:, None] + torch.arange(L + 1, device=self.dev)].long()


def ns5(G):
    X = G.bfloat16()
    tr = X.shape[-2] > X.shape[-1]
    if tr:
        X = X.transpose(-1, -2)
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        A = X @ X.transpose(-1, -2)
        X = 3.4445 * X + (-4.7750 * A + 2.0315 * (A @ A)) @ X
    return X.transpose(-1, -2) if tr else X


class Opt:
    """Muon (rms-matched, decoupled decay) for hidden matrices, AdamW for everything else."""

    def __init__(self, named, lr, wd=0.05, adam_lr=None, mom=0.95):
        self.lr, self.wd, self.mom = lr, wd, mom
        mats, rest = {}, []
        for n, p in named:
            if not p.requires_grad:
                continue
            if p.dim() in (2, 3) and not any(
                s in n
                for s in (
                    "embed",
                    "codebook",
                    "conv",
                    "base_kernel",
                    "in_proj_a",
                    "in_proj_b",
                    "mlp.gate.",
                    "shared_expert_gate",
                )
            ):
                mats.setdefault(tuple(p.shape), []).append(p)
            else:
                rest.append(p)
        self.groups = [(ps, [torch.zeros_like(p) for p in ps]) for ps in mats.values()]
        self.adam = torch.optim.AdamW(
            rest, lr=adam_lr or lr, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0, fused=rest[0].is_cuda
        )
        self.adam_lr = adam_lr or lr
        self.ns = torch.compile(ns5, dynamic=False) if rest[0].is_cuda else ns5
        print(
            "muon: %d matrices in %d shapes; adam: %d tensors"
            % (sum(len(g[0]) for g in self.groups), len(self.groups), len(rest)),
            flush=True,
        )

    @torch.no_grad()
    def step(self, scale):
        for ps, ms in self.groups:
            gs = [p.grad for p in ps]
            torch._foreach_lerp_(ms, gs, 1 - self.mom)
            up = torch._foreach_lerp(gs, ms, self.mom)
            U = self.ns(torch.stack(up))
            r, c = ps[0].shape[-2:]
            k = 0.2 * max(r, c) ** 0.5 * self.lr * scale
            torch._foreach_mul_(ps, 1 - self.lr * scale * self.wd)
            torch._foreach_add_(ps, [u.to(ps[0].dtype) for u in U.unbind(0)], alpha=-k)
        for g in self.adam.param_groups:
            g["lr"] = self.adam_lr * scale
        self.adam.step()

    def reset(self):
        for _, ms in self.groups:
            torch._foreach_zero_(ms)
        self.adam.state.clear()

    def zero(self):
        for ps, _ in self.groups:
            for p in ps:
                p.grad = None
        self.adam.zero_grad(set_to_none=True)


def lr_scale(f, warm=0.02, floor=0.03):
    if f < warm:
        return max(f / warm, 0.02)
    f = min((f - warm) / (1 - warm), 1.0)
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * f))


@torch.no_grad()
def generate(m, prompts, total, dev="cuda", temp=None, autocast=True, kv_dtype=torch.bfloat16, stop=None, seed=0):
    """prompts: list of token lists. Feeds every sequence from position 0, forced inside its prompt, then greedy
    (temp[i] == 0) or sampled. Returns int32 [B,total]."""
    B = len(prompts)
    plen = torch.tensor([len(p) for p in prompts], device=dev)
    x = torch.zeros(B, total, dtype=torch.long)
    for i, p in enumerate(prompts):
        x[i, : len(p)] = torch.tensor(p[:total])
    x = x.to(dev)
    tm = torch.zeros(B, device=dev) if temp is None else temp.to(dev)
    g = torch.Generator(device=dev).manual_seed(seed)
    with torch.autocast("cuda", dtype=torch.bfloat16) if autocast else M.no_autocast():
        st = m.new_cache(B, total, dev, kv_dtype, torch.bfloat16 if autocast else torch.float32)
        for t in range(total - 1):
            tt = torch.tensor([t], device=dev)
            lg = m.step(x[:, t], st, tt, total).float()
            nxt = lg.argmax(-1)
            if temp is not None:
                u = torch.rand(lg.shape, device=dev, generator=g).clamp_min_(1e-20)
                sm = (lg / tm.clamp_min(1e-3).unsqueeze(-1) - torch.log(-torch.log(u))).argmax(-1)
                nxt = torch.where(tm > 0, sm, nxt)
            x[:, t + 1] = torch.where(t + 1 < plen, x[:, t + 1], nxt)
    return x


@torch.no_grad()
def val_losses(m, work, L=1024, maxtok=200_000, dev="cuda"):
    """Nats per token of each held-out domain, in windows of L."""
    out = {}
    for p in sorted(glob.glob(work + "/val_*.npy")):
        v = torch.from_numpy(np.load(p).astype(np.int64)[:maxtok]).to(dev)
        n = (v.numel() - 1) // L
        if n == 0:
            continue
        x = v[: n * L + 1]
        s = 0.0
        for i in range(0, n, 32):
            a = torch.stack([x[j * L : (j + 1) * L + 1] for j in range(i, min(n, i + 32))])
            with torch.autocast("cuda", dtype=torch.bfloat16):
                h = m.backbone(a[:, :-1])[0]
                s += F.cross_entropy(m.logits(h).float().flatten(0, 1), a[:, 1:].flatten(), reduction="sum").item()
        out[os.path.basename(p)[4:-4]] = round(s / (n * L), 4)
    return out


F32 = ("A_log", "linear_attn.norm.weight")


def export_dtype(name, t):
    return t.detach().float() if name.endswith(F32) else t.detach().to(torch.bfloat16)


def round_bf16_(m):
    """The exported weights are bf16: make the live model equal to them."""
    with torch.no_grad():
        for n, p in m.named_parameters():
            p.copy_(export_dtype(n, p).to(p.dtype))
