"""The networks: the Qwen3.5-style hybrid decoder (gated delta net and gated attention, dense or sparse), its native MTP head and
the DFlash 2 drafter, written for fast training with torch.compile. Parameter names equal the Hugging Face ones.

Norm weights of the target are zero-centred (1 + w), that of the delta net's output norm is not. The delta rule runs in chunks of 64
with a unit-triangular inverse; the states at the starts of chunks come from a scan of logarithmic depth over affine maps, not from a
sequential loop. For decoding there is a step of one token."""
from dataclasses import dataclass
import torch
import torch.nn as nn
import torch.nn.functional as F


if not hasattr(F, "scaled_dot_product_attention"):  # torch 1.13, for the checks on a CPU

    def _attention(q, k, v, attn_mask=None, is_causal=False):
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if is_causal:
            attn_mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, float("-inf"))
        return scores.softmax(-1) @ v

    F.scaled_dot_product_attention = _attention


@dataclass
class Cfg:
    vocab: int = 8192
    hidden: int = 512
    layers: int = 8
    inter: int = 1536
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    rot: int = 16  # head_dim * partial_rotary_factor
    theta: float = 1e7
    eps: float = 1e-6
    lk_heads: int = 4
    lv_heads: int = 8
    lk_dim: int = 64
    lv_dim: int = 64
    conv: int = 4
    interval: int = 4
    experts: int = 0  # 0: dense
    topk: int = 0
    moe_inter: int = 0
    shared_inter: int = 0
    max_pos: int = 32768

    def kind(self, i):
        return "full_attention" if (i + 1) % self.interval == 0 else "linear_attention"


DENSE = Cfg()
MOE = Cfg(
    hidden=256,
    inter=0,
    heads=4,
    kv_heads=2,
    lk_heads=2,
    lv_heads=4,
    experts=16,
    topk=4,
    moe_inter=256,
    shared_inter=256,
)
TINY = Cfg(  # for check.py
    vocab=8192,
    hidden=64,
    layers=4,
    inter=128,
    heads=4,
    kv_heads=2,
    head_dim=16,
    rot=4,
    lk_heads=2,
    lv_heads=4,
    lk_dim=16,
    lv_dim=16,
)
TINYMOE = Cfg(
    vocab=8192,
    hidden=64,
    layers=4,
    inter=0,
    heads=4,
    kv_heads=2,
    head_dim=16,
    rot=4,
    lk_heads=2,
    lv_heads=4,
    lk_dim=16,
    lv_dim=16,
    experts=4,
    topk=2,
    moe_inter=32,
    shared_inter=32,
)


class RMSNorm(nn.Module):
    """Zero-centred weight, fp32 inside (target layers)."""

    def __init__(self, d, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(d))
        self.eps = eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (1.0 + self.weight.float())).type_as(x)


class RMSNorm1(nn.Module):
    """Plain weight (drafter layers, gated norm)."""

    def __init__(self, d, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * self.weight.float()).type_as(x)


class GatedNorm(RMSNorm1):
    def forward(self, x, z):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.weight.float() * y * F.silu(z.float())).type_as(z)


# ---------------------------------------------------------------- unit lower-triangular inverse
def tril_inv_blocks(A):
    """(I + A)^-1 for strictly lower A [..., n, n], n a power of two, by merging diagonal blocks (stable)."""
    n = A.shape[-1]
    lead = A.shape[:-2]
    T = torch.ones(*lead, n, 1, 1, dtype=A.dtype, device=A.device)
    s = 1
    while s < n:
        m = n // (2 * s)
        D = A.reshape(*lead, m, 2 * s, m, 2 * s).diagonal(dim1=-4, dim2=-2).movedim(-1, -3)  # [..., m, 2s, 2s]
        A21 = D[..., s:, :s]
        Tp = T.reshape(*lead, m, 2, s, s)
        T11, T22 = Tp[..., 0, :, :], Tp[..., 1, :, :]
        T21 = -(T22 @ (A21 @ T11))
        top = torch.cat([T11, torch.zeros_like(T11)], -1)
        bot = torch.cat([T21, T22], -1)
        T = torch.cat([top, bot], -2)
        s *= 2
    return T.reshape(*lead, n, n)


try:
    import triton
    import triton.language as tl

    @triton.jit
    def _tril_inv_kernel(a_ptr, t_ptr, N: tl.constexpr):
        pid = tl.program_id(0).to(tl.int64)
        r = tl.arange(0, N)
        off = pid * N * N + r[:, None] * N + r[None, :]
        T = tl.where(r[:, None] == r[None, :], 1.0, 0.0)
        for i in range(1, N):
            a = tl.load(a_ptr + pid * N * N + i * N + r)  # row i; its entries from i on are zero
            s = tl.sum(a[:, None] * T, axis=0)
            T = tl.where(r[:, None] == i, T - s[None, :], T)
        tl.store(t_ptr + off, T)

except ImportError:
    triton = None


def _inv(A):
    """Forward substitution in one GPU kernel where triton is present, else block merging."""
    if triton is None or not A.is_cuda:
        return tril_inv_blocks(A)
    A = A.contiguous()
    n = A.shape[-1]
    T = torch.empty_like(A)
    _tril_inv_kernel[(A.numel() // (n * n),)](A, T, N=n, num_warps=4)
    return T


def _inv_bwd(T, g):
    return -(T.transpose(-1, -2) @ g @ T.transpose(-1, -2)).tril(-1)


if hasattr(torch, "library") and hasattr(torch.library, "custom_op"):

    @torch.library.custom_op("foretoken_train::tril_inv", mutates_args=())
    def tril_inv(A: torch.Tensor) -> torch.Tensor:
        return _inv(A).contiguous()

    @tril_inv.register_fake
    def _(A):
        return torch.empty_like(A, memory_format=torch.contiguous_format)

    def _setup(ctx, inputs, output):
        ctx.save_for_backward(output)

    def _bwd(ctx, g):
        return _inv_bwd(ctx.saved_tensors[0], g)

    tril_inv.register_autograd(_bwd, setup_context=_setup)
else:

    class _TrilInv(torch.autograd.Function):
        @staticmethod
        def forward(ctx, A):
            T = _inv(A)
            ctx.save_for_backward(T)
            return T

        @staticmethod
        def backward(ctx, g):
            return _inv_bwd(ctx.saved_tensors[0], g)

    tril_inv = _TrilInv.apply


def delta_rule(q, k, v, g, beta, chunk=64):
    """q, k [B,L,H,dk] (already normalised, q scaled), v [B,L,H,dv], g/beta [B,L,H] fp32; zero start state.
    Returns o [B,L,H,dv] fp32 and the final state [B,H,dk,dv]."""
    B, L, H, dk = k.shape
    dv = v.shape[-1]
    pad = (-L) % chunk
    q, k, v = [F.pad(x.transpose(1, 2).float(), (0, 0, 0, pad)) for x in (q, k, v)]
    g, beta = [F.pad(x.transpose(1, 2).float(), (0, pad)) for x in (g, beta)]
    n = (L + pad) // chunk
    q, k, v = [x.reshape(B * H, n, chunk, x.shape[-1]) for x in (q, k, v)]
    g, beta = [x.reshape(B * H, n, chunk) for x in (g, beta)]
    c = g.cumsum(-1)
    ii = torch.arange(chunk, device=q.device)
    low = ii[:, None] >= ii[None, :]
    strict = ii[:, None] > ii[None, :]
    dec = (c.unsqueeze(-1) - c.unsqueeze(-2)).masked_fill(~low, float("-inf")).exp()
    kb = k * beta.unsqueeze(-1)
    kT = k.transpose(-1, -2)
    A = (kb @ kT) * dec
    A = A.masked_fill(~strict, 0.0)
    T = tril_inv(A)
    U = T @ (v * beta.unsqueeze(-1))
    W = T @ (kb * c.exp().unsqueeze(-1))
    attn = (q @ kT) * dec
    qd = q * c.exp().unsqueeze(-1)
    kd = (k * (c[..., -1:] - c).exp().unsqueeze(-1)).transpose(-1, -2)
    # S' = a S + kd (U - W S): affine map per chunk
    eye = torch.eye(dk, device=q.device, dtype=q.dtype)
    Am = c[..., -1].exp()[..., None, None] * eye - kd @ W
    Bm = kd @ U
    d = 1
    while d < n:
        Bn = torch.cat([Bm[:, :d], Bm[:, d:] + Am[:, d:] @ Bm[:, :-d]], 1)
        if 2 * d < n:
            Am = torch.cat([Am[:, :d], Am[:, d:] @ Am[:, :-d]], 1)
        Bm = Bn
        d *= 2
    S = torch.cat([torch.zeros_like(Bm[:, :1]), Bm[:, :-1]], 1)  # state at the start of each chunk
    o = qd @ S + attn @ (U - W @ S)
    o = o.reshape(B, H, n * chunk, dv)[:, :, :L].transpose(1, 2)
    return o, Bm[:, -1].reshape(B, H, dk, dv)


def no_autocast():
    return torch.autocast("cuda", enabled=False)


def l2(x):
    x = x.float()
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


class Lin(nn.Linear):
    def __init__(self, i, o):
        super().__init__(i, o, bias=False)


class LinearAttn(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.kd, self.vd = c.lk_heads * c.lk_dim, c.lv_heads * c.lv_dim
        self.in_proj_qkv = Lin(c.hidden, 2 * self.kd + self.vd)
        self.in_proj_z = Lin(c.hidden, self.vd)
        self.in_proj_b = Lin(c.hidden, c.lv_heads)
        self.in_proj_a = Lin(c.hidden, c.lv_heads)
        self.conv1d = nn.Conv1d(
            2 * self.kd + self.vd, 2 * self.kd + self.vd, c.conv, groups=2 * self.kd + self.vd, bias=False
        )
        self.dt_bias = nn.Parameter(torch.ones(c.lv_heads))
        self.A_log = nn.Parameter(torch.empty(c.lv_heads).uniform_(0.02, 8).log())
        self.norm = GatedNorm(c.lv_dim, c.eps)
        self.out_proj = Lin(self.vd, c.hidden)

    def _heads(self, qkv):
        c = self.c
        sh = qkv.shape[:-1]
        q, k, v = torch.split(qkv, [self.kd, self.kd, self.vd], -1)
        rep = c.lv_heads // c.lk_heads
        q = l2(q.reshape(*sh, c.lk_heads, c.lk_dim)) * c.lk_dim**-0.5
        k = l2(k.reshape(*sh, c.lk_heads, c.lk_dim))
        q, k = [
            x.unsqueeze(-2).expand(*sh, c.lk_heads, rep, c.lk_dim).reshape(*sh, c.lv_heads, c.lk_dim) for x in (q, k)
        ]
        return q, k, v.reshape(*sh, c.lv_heads, c.lv_dim)

    def _gates(self, x):
        beta = self.in_proj_b(x).float().sigmoid()
        g = -self.A_log.float().exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias.float())
        return g, beta

    def forward(self, x, want_state=False):
        B, L, _ = x.shape
        u = self.in_proj_qkv(x)
        w = self.conv1d.weight[:, 0].to(u.dtype)  # [C, K]
        K = w.shape[1]
        up = F.pad(u, (0, 0, K - 1, 0))
        y = sum(up[:, j : j + L] * w[:, j] for j in range(K))
        q, k, v = self._heads(F.silu(y))
        g, beta = self._gates(x)
        with no_autocast():  # fp32 (tf32 while training) inside
            o, S = delta_rule(q, k, v, g, beta)
        z = self.in_proj_z(x).reshape(B, L, -1, self.c.lv_dim)
        o = self.norm(o, z).reshape(B, L, -1)
        o = self.out_proj(o)
        return (o, (up[:, L:], S)) if want_state else o  # conv state: last K-1 inputs

    def step(self, x, conv, S):
        """x [B, H]; conv [B, K-1, C] and S [B,H,dk,dv] are updated in place."""
        u = self.in_proj_qkv(x)
        w = self.conv1d.weight[:, 0].to(u.dtype)
        full = torch.cat([conv, u.unsqueeze(1)], 1)
        conv.copy_(full[:, 1:])
        q, k, v = self._heads(F.silu((full * w.t()).sum(1)))
        g, beta = self._gates(x)
        v = v.float()
        with no_autocast():
            S.mul_(g.exp()[..., None, None])
            dlt = (v - (k.unsqueeze(-1) * S).sum(-2)) * beta.unsqueeze(-1)
            S.add_(k.unsqueeze(-1) * dlt.unsqueeze(-2))
            o = (q.unsqueeze(-1) * S).sum(-2)
        z = self.in_proj_z(x).reshape(*o.shape)
        return self.out_proj(self.norm(o, z).reshape(x.shape[0], -1))


def rope_tables(pos, rot, theta):
    inv = 1.0 / (theta ** (torch.arange(0, rot, 2, dtype=torch.float32, device=pos.device) / rot))
    f = pos.float().unsqueeze(-1) * inv
    f = torch.cat([f, f], -1)
    return f.cos(), f.sin()


def rope(x, cos, sin):
    """x [..., heads, hd]; cos/sin [..., rot] broadcast over heads."""
    r = cos.shape[-1]
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    a, b = x[..., :r].float(), x[..., r:]
    h = r // 2
    rotated = torch.cat([-a[..., h:], a[..., :h]], -1)
    return torch.cat([(a * cos + rotated * sin).type_as(x), b], -1)


class Attn(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj = Lin(c.hidden, c.heads * c.head_dim * 2)
        self.k_proj = Lin(c.hidden, c.kv_heads * c.head_dim)
        self.v_proj = Lin(c.hidden, c.kv_heads * c.head_dim)
        self.o_proj = Lin(c.heads * c.head_dim, c.hidden)
        self.q_norm = RMSNorm(c.head_dim, c.eps)
        self.k_norm = RMSNorm(c.head_dim, c.eps)

    def qkv(self, x, cos, sin):
        c = self.c
        sh = x.shape[:-1]
        q, gate = self.q_proj(x).reshape(*sh, c.heads, 2 * c.head_dim).chunk(2, -1)
        k = self.k_proj(x).reshape(*sh, c.kv_heads, c.head_dim)
        v = self.v_proj(x).reshape(*sh, c.kv_heads, c.head_dim)
        q, k = rope(self.q_norm(q), cos, sin), rope(self.k_norm(k), cos, sin)
        return q, k, v.type_as(q), gate.reshape(*sh, -1)

    def out(self, o, gate):
        return self.o_proj(o * torch.sigmoid(gate))

    def rep(self, k):
        r = self.c.heads // self.c.kv_heads
        return k.unsqueeze(-2).expand(*k.shape[:-1], r, k.shape[-1]).reshape(*k.shape[:-2], self.c.heads, k.shape[-1])

    def forward(self, x, cos, sin, want_state=False):
        B, L, _ = x.shape
        q, k, v, gate = self.qkv(x, cos, sin)
        o = F.scaled_dot_product_attention(
            q.transpose(1, 2), self.rep(k).transpose(1, 2), self.rep(v).transpose(1, 2), is_causal=True
        )
        o = self.out(o.transpose(1, 2).reshape(B, L, -1), gate)
        return (o, (k, v)) if want_state else o

    def step(self, x, cos, sin, kc, vc, t, mask):
        """x [B,H]; kc/vc [B,Lmax,kv,hd]; t [1] position tensor; mask [Lmax] additive (0 or -inf)."""
        B = x.shape[0]
        c = self.c
        q, k, v, gate = self.qkv(x, cos, sin)
        kc.index_copy_(1, t, k.unsqueeze(1).to(kc.dtype))
        vc.index_copy_(1, t, v.unsqueeze(1).to(vc.dtype))
        qg = q.reshape(B, c.kv_heads, -1, c.head_dim)
        s = torch.einsum("bgrd,blgd->bgrl", qg, kc.to(qg.dtype)).float() * c.head_dim**-0.5 + mask
        o = torch.einsum("bgrl,blgd->bgrd", s.softmax(-1).to(vc.dtype), vc)
        return self.out(o.reshape(B, -1).to(gate.dtype), gate)


class MLP(nn.Module):
    def __init__(self, h, i):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = Lin(h, i), Lin(h, i), Lin(i, h)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(c.experts, 2 * c.moe_inter, c.hidden) * 0.02)
        self.down_proj = nn.Parameter(torch.randn(c.experts, c.hidden, c.moe_inter) * 0.02)


class MoE(nn.Module):
    """Router softmax -> top-k -> renormalise; plus a sigmoid-gated shared expert. All experts are computed
    as one wide FFN and masked by the routing weights (cheap enough at 16 small experts)."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.gate = Lin(c.hidden, c.experts)
        self.experts = Experts(c)
        self.shared_expert = MLP(c.hidden, c.shared_inter)
        self.shared_expert_gate = Lin(c.hidden, 1)
        self.aux = None

    def forward(self, x):
        c = self.c
        sh = x.shape
        x = x.reshape(-1, c.hidden)
        with no_autocast():
            p = F.linear(x.float(), self.gate.weight.float()).softmax(-1)
        w, idx = p.topk(c.topk, -1)
        w = w / w.sum(-1, keepdim=True)
        full = torch.zeros_like(p).scatter(-1, idx, w)
        gu = F.linear(x, self.experts.gate_up_proj.reshape(-1, c.hidden).to(x.dtype)).reshape(
            -1, c.experts, 2 * c.moe_inter
        )
        a, b = gu.chunk(2, -1)
        h = F.silu(a) * b * full.unsqueeze(-1).to(x.dtype)
        W = self.experts.down_proj.permute(0, 2, 1).reshape(-1, c.hidden).to(x.dtype)
        y = h.reshape(-1, c.experts * c.moe_inter) @ W
        y = y + torch.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)
        f = (full > 0).float().mean(0) / c.topk
        aux = c.experts * (f * p.mean(0)).sum()
        return y.reshape(sh), aux


class Layer(nn.Module):
    def __init__(self, c, kind):
        super().__init__()
        self.kind = kind
        self.moe = c.experts > 0
        if kind == "linear_attention":
            self.linear_attn = LinearAttn(c)
        else:
            self.self_attn = Attn(c)
        self.mlp = MoE(c) if self.moe else MLP(c.hidden, c.inter)
        self.input_layernorm = RMSNorm(c.hidden, c.eps)
        self.post_attention_layernorm = RMSNorm(c.hidden, c.eps)

    def ffn(self, x):
        y = self.mlp(self.post_attention_layernorm(x))
        if self.moe:
            return x + y[0], y[1]
        return x + y, None

    def forward(self, x, cos, sin):
        h = self.input_layernorm(x)
        h = self.linear_attn(h) if self.kind == "linear_attention" else self.self_attn(h, cos, sin)
        return self.ffn(x + h)

    def prefill(self, x, cos, sin):
        h = self.input_layernorm(x)
        h, st = self.linear_attn(h, True) if self.kind == "linear_attention" else self.self_attn(h, cos, sin, True)
        return self.ffn(x + h)[0], st

    def step(self, x, cos, sin, st, t, mask):
        h = self.input_layernorm(x)
        if self.kind == "linear_attention":
            h = self.linear_attn.step(h, st[0], st[1])
        else:
            h = self.self_attn.step(h, cos, sin, st[0], st[1], t, mask)
        return self.ffn(x + h)[0]


class MTP(nn.Module):
    """Native multi-token-prediction head: mtp.fc over [norm(embedding), norm(hidden)], one gated full-attention
    decoder layer, mtp.norm; embeddings and output head are the target's."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.fc = Lin(2 * c.hidden, c.hidden)
        self.pre_fc_norm_embedding = RMSNorm(c.hidden, c.eps)
        self.pre_fc_norm_hidden = RMSNorm(c.hidden, c.eps)
        self.layers = nn.ModuleList([Layer(c, "full_attention")])
        self.norm = RMSNorm(c.hidden, c.eps)

    def unroll(self, emb, hid, depth):
        """emb [B,L,H]: embeddings of tokens 0..L-1; hid [B,L,H]: the target's final normed hidden states.
        Depth d at index j consumes token j+1 and predicts token j+2; hidden inputs beyond depth 1 are the
        head's own outputs shifted by one. Returns a list of (out [B,L-1,H]) per depth: at depth d, index j
        (meaningful for j >= d-1) predicts token j+2."""
        c = self.c
        a = self.layers[0].self_attn
        B, L, H = emb.shape
        n = L - 1
        e = self.pre_fc_norm_embedding(emb[:, 1:])
        cur = hid[:, :n]
        pos = torch.arange(n, device=emb.device)
        cos, sin = rope_tables(pos, c.rot, c.theta)
        ks, vs, outs, aux = [], [], [], 0.0
        for d in range(depth):
            x = self.fc(torch.cat([e, self.pre_fc_norm_hidden(cur)], -1))
            h = self.layers[0].input_layernorm(x)
            q, k, v, gate = a.qkv(h, cos, sin)
            k, v = a.rep(k), a.rep(v)
            ks.append(k)
            vs.append(v)
            # keys: depth-1 entries at positions <= j-d, then depth i entries at position j-d+i (i = 2..d+1)
            s1 = torch.einsum("bqhd,bkhd->bhqk", q, ks[0]).float() * c.head_dim**-0.5
            s1 = (
                s1.masked_fill((pos[None, :] > pos[:, None] - d), float("-inf"))
                if d
                else s1.masked_fill(pos[None, :] > pos[:, None], float("-inf"))
            )
            if d:
                ex, vx = [], []
                for i in range(1, d + 1):
                    sh = d - i
                    ki = F.pad(ks[i], (0, 0, 0, 0, sh, 0))[:, :n]
                    vi = F.pad(vs[i], (0, 0, 0, 0, sh, 0))[:, :n]
                    ok = (pos >= sh)[None, None, :]
                    ex.append(
                        ((q * ki).sum(-1).transpose(1, 2).float() * c.head_dim**-0.5).masked_fill(~ok, float("-inf"))
                    )
                    vx.append(vi)
                s = torch.cat([s1, torch.stack(ex, -1)], -1)
                p = s.softmax(-1).to(v.dtype)
                o = torch.einsum("bhqk,bkhd->bqhd", p[..., :n], vs[0])
                for i, vi in enumerate(vx):
                    o = o + p[..., n + i].transpose(1, 2).unsqueeze(-1) * vi
            else:
                o = torch.einsum("bhqk,bkhd->bqhd", s1.softmax(-1).to(v.dtype), vs[0])
            x = x + a.out(o.reshape(B, n, -1), gate)
            x, ax = self.layers[0].ffn(x)
            if ax is not None:
                aux = aux + ax
            out = self.norm(x)
            outs.append(out)
            cur = F.pad(out, (0, 0, 1, 0))[:, :n]  # index j now holds the output that predicted token j+1
        return outs, aux


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(c.vocab, c.hidden)
        self.model.layers = nn.ModuleList([Layer(c, c.kind(i)) for i in range(c.layers)])
        self.model.norm = RMSNorm(c.hidden, c.eps)
        self.mtp = MTP(c)
        for n, p in self.named_parameters():
            if p.dim() >= 2:
                if "conv1d" in n:
                    nn.init.normal_(p, std=0.3)
                elif n.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight", "down_proj")):
                    nn.init.normal_(p, std=0.02 / (2 * c.layers) ** 0.5)
                else:
                    nn.init.normal_(p, std=0.02)

    def backbone(self, ids, taps=None):
        """Returns final normed hidden [B,L,H], mean aux loss and, if asked, the outputs of layers `taps`."""
        c = self.c
        x = self.model.embed_tokens(ids)
        if torch.is_autocast_enabled():
            x = x.to(torch.bfloat16)
        cos, sin = rope_tables(torch.arange(ids.shape[1], device=ids.device), c.rot, c.theta)
        aux, tap = 0.0, []
        for i, l in enumerate(self.model.layers):
            x, a = l(x, cos, sin)
            if a is not None:
                aux = aux + a
            if taps and i in taps:
                tap.append(x)
        h = self.model.norm(x)
        return (h, aux, tap) if taps is not None else (h, aux)

    def logits(self, h):
        return F.linear(h, self.model.embed_tokens.weight.to(h.dtype))

    def new_cache(self, B, Lmax, dev, kv_dtype, x_dtype):
        c = self.c
        st = []
        for i in range(c.layers):
            if c.kind(i) == "linear_attention":
                C = 2 * c.lk_heads * c.lk_dim + c.lv_heads * c.lv_dim
                st.append(
                    (
                        torch.zeros(B, c.conv - 1, C, device=dev, dtype=x_dtype),
                        torch.zeros(B, c.lv_heads, c.lk_dim, c.lv_dim, device=dev),
                    )
                )
            else:
                st.append(
                    tuple(torch.zeros(B, Lmax, c.kv_heads, c.head_dim, device=dev, dtype=kv_dtype) for _ in range(2))
                )
        return st

    def step(self, ids, st, t, Lmax):
        """One token for every sequence. ids [B], t [1] long tensor (same position for all)."""
        c = self.c
        x = self.model.embed_tokens(ids)
        if torch.is_autocast_enabled():
            x = x.to(torch.bfloat16)
        cos, sin = rope_tables(t, c.rot, c.theta)
        mask = torch.where(torch.arange(Lmax, device=ids.device) <= t, 0.0, float("-inf"))
        for l, s in zip(self.model.layers, st):
            x = l.step(x, cos, sin, s, t, mask)
        return self.logits(self.model.norm(x))


# ---------------------------------------------------------------- DFlash 2 drafter
@dataclass
class DCfg:
    hidden: int = 512
    layers: int = 3
    inter: int = 1024
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 64
    theta: float = 1e7
    eps: float = 1e-6
    vocab: int = 8192
    block: int = 8
    taps: tuple = (1, 4, 7)
    mask_id: int = 8186
    conv_kernel: int = 2
    conv_group: int = 16
    rank: int = 64
    topk: int = 16
    window: int = 512


class DynConv(nn.Module):
    """Grouped dynamic causal convolution: a learned per-channel kernel plus a per-token, per-group one."""

    def __init__(self, c):
        super().__init__()
        self.K, self.G = c.conv_kernel, c.conv_group
        self.base_kernel = nn.Parameter(torch.zeros(2, c.conv_kernel, c.hidden))
        with torch.no_grad():
            self.base_kernel[:, 0] = 1.0
        self.kernel_projection = Lin(c.hidden, 2 * c.conv_kernel * (c.hidden // c.conv_group))

    def conv(self, x, dyn, base):
        """x [..., block, H]; dyn [..., block, K, groups]"""
        sh = x.shape
        xg = x.reshape(*sh[:-1], -1, self.G)
        y = 0
        for o in range(self.K):
            v = xg if o == 0 else F.pad(xg[..., : sh[-2] - o, :, :], (0, 0, 0, 0, o, 0))
            y = y + (base[o].reshape(-1, self.G).to(x.dtype) + dyn[..., o, :].unsqueeze(-1)) * v
        return y.reshape(sh)

    def prepare(self, x):
        d = self.kernel_projection(x)
        d = d.reshape(*d.shape[:-1], 2, self.K, -1)
        return self.conv(x, d[..., 0, :, :], self.base_kernel[0]), d[..., 1, :, :]

    def finish(self, y, d):
        return self.conv(y, d, self.base_kernel[1])


class DAttn(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj = Lin(c.hidden, c.heads * c.head_dim)
        self.k_proj = Lin(c.hidden, c.kv_heads * c.head_dim)
        self.v_proj = Lin(c.hidden, c.kv_heads * c.head_dim)
        self.o_proj = Lin(c.heads * c.head_dim, c.hidden)
        self.q_norm = RMSNorm1(c.head_dim, c.eps)
        self.k_norm = RMSNorm1(c.head_dim, c.eps)

    def kv(self, x, cos, sin):
        c = self.c
        sh = x.shape[:-1]
        k = rope(self.k_norm(self.k_proj(x).reshape(*sh, c.kv_heads, c.head_dim)), cos, sin)
        return k, self.v_proj(x).reshape(*sh, c.kv_heads, c.head_dim).type_as(k)

    def forward(self, x, ctx, rc, rb, mask):
        """x [B,N,blk,H] blocks, ctx [B,L,H]; rc/rb rope tables of context and block; mask [N*blk, L+N*blk]."""
        c = self.c
        B, N, K, _ = x.shape
        q = rope(self.q_norm(self.q_proj(x).reshape(B, N, K, c.heads, c.head_dim)), *rb).reshape(
            B, N * K, c.heads, c.head_dim
        )
        kb, vb = self.kv(x, *rb)
        kc, vc = self.kv(ctx, *rc)
        k = torch.cat([kc, kb.reshape(B, N * K, c.kv_heads, c.head_dim)], 1)
        v = torch.cat([vc, vb.reshape(B, N * K, c.kv_heads, c.head_dim)], 1)
        r = c.heads // c.kv_heads
        k, v = [t.unsqueeze(3).expand(-1, -1, -1, r, -1).reshape(B, -1, c.heads, c.head_dim) for t in (k, v)]
        o = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask)
        return self.o_proj(o.transpose(1, 2).reshape(B, N, K, -1))


class DLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn = DAttn(c)
        self.mlp = MLP(c.hidden, c.inter)
        self.input_layernorm = RMSNorm1(c.hidden, c.eps)
        self.post_attention_layernorm = RMSNorm1(c.hidden, c.eps)
        self.attention_conv = DynConv(c)
        self.mlp_conv = DynConv(c)

    def forward(self, x, ctx, rc, rb, mask):
        h, d = self.attention_conv.prepare(self.input_layernorm(x))
        x = x + self.attention_conv.finish(self.self_attn(h, ctx, rc, rb, mask), d)
        h, d = self.mlp_conv.prepare(self.post_attention_layernorm(x))
        return x + self.mlp_conv.finish(self.mlp(h), d)


class Selector(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.randn(c.vocab, c.rank) * 0.5)
        self.successor_codebook = nn.Parameter(torch.zeros(c.vocab, c.rank))
        self.hidden_projection = Lin(c.hidden, c.rank)


class DFlash2(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.fc = Lin(len(c.taps) * c.hidden, c.hidden)
        self.hidden_norm = RMSNorm1(c.hidden, c.eps)
        self.layers = nn.ModuleList([DLayer(c) for _ in range(c.layers)])
        self.norm = RMSNorm1(c.hidden, c.eps)
        self.candidate_selector = Selector(c)
        for n, p in self.named_parameters():
            if p.dim() == 2 and "codebook" not in n:
                nn.init.normal_(p, std=0.005 if "kernel_projection" in n else 0.02)

    def blocks(self, emb_w, ids, taps, anchors):
        """ids [B,L], taps: list of [B,L,H]; anchors [N] sorted positions shared by the batch.
        Returns normed drafter hidden states [B,N,block-1,H] for positions anchor+1 .. anchor+block-1."""
        c = self.c
        B, L = ids.shape
        N, K = anchors.shape[0], c.block
        ctx = self.hidden_norm(self.fc(torch.cat(taps, -1)))
        ae = F.embedding(ids[:, anchors], emb_w)
        me = emb_w[c.mask_id].expand(B, N, K - 1, -1)
        x = torch.cat([ae.unsqueeze(2), me], 2).to(ctx.dtype)
        bp = anchors[:, None] + torch.arange(K, device=ids.device)
        cp = torch.arange(L, device=ids.device)
        rc, rb = rope_tables(cp, c.head_dim, c.theta), rope_tables(bp, c.head_dim, c.theta)
        qp = bp.reshape(-1)
        m1 = (cp[None, :] < anchors.repeat_interleave(K)[:, None]) & (qp[:, None] - cp[None, :] < c.window)
        bi = torch.arange(N, device=ids.device).repeat_interleave(K)
        mask = torch.cat([m1, bi[:, None] == bi[None, :]], 1)
        for l in self.layers:
            x = l(x, ctx, rc, rb, mask)
        return self.norm(x[:, :, 1:])

    def edges_full(self, h, pred):
        """Selector edge scores over the whole vocabulary (training): h [...,H], pred ids [...]"""
        s = self.candidate_selector
        g = F.embedding(pred, s.predecessor_codebook).to(h.dtype) * s.hidden_projection(h)
        return F.linear(g, s.successor_codebook.to(h.dtype))

    @torch.no_grad()
    def path(self, h, logits, anchor_ids):
        """Greedy candidate path. h [M,K-1,H], logits [M,K-1,V], anchor_ids [M] -> tokens [M,K-1], candidates, scores"""
        s = self.candidate_selector
        unary, cand = logits.float().topk(self.c.topk, -1)
        proj = s.hidden_projection(h).float()
        prev, toks, scs = anchor_ids, [], []
        for d in range(h.shape[1]):
            g = s.predecessor_codebook[prev].float() * proj[:, d]
            sc = unary[:, d] + torch.einsum("mr,mkr->mk", g, s.successor_codebook[cand[:, d]].float())
            j = sc.argmax(-1)
            prev = cand[:, d].gather(1, j[:, None])[:, 0]
            toks.append(prev)
            scs.append(sc)
        return torch.stack(toks, 1), cand, torch.stack(scs, 1)
