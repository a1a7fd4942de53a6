#!/usr/bin/env python3
"""Checks of the training code on a CPU, at tiny sizes (torch 1.13 will do): the chunked delta rule equals one-token steps, the
triangular inverse and its gradient are right, the MTP head unrolled for training equals it run step by step, a drafter block alone
equals the same block in a batch, every parameter learns, and the chat format equals its template. Ends with `ok`."""
import torch
import torch.nn.functional as F

import chat_format
import network as M

TOLERANCE = 1e-3


def expect_close(what, a, b):
    worst = (a - b).abs().max().item()
    print(f"{what}: {worst:.1e}")
    assert worst < TOLERANCE, what


def check_inverse():
    a = torch.rand(3, 5, 64, 64).tril(-1)
    exact = torch.linalg.inv((a + torch.eye(64)).double())
    assert ((M.tril_inv_blocks(a) - exact).abs().max() / exact.abs().max()).item() < TOLERANCE
    small = torch.rand(2, 8, 8, dtype=torch.double).tril(-1).requires_grad_()
    inverse = M.tril_inv_blocks(small)
    weight = torch.randn_like(inverse)
    (inverse * weight).sum().backward()
    expect_close("gradient of the inverse", small.grad.tril(-1), M._inv_bwd(inverse.detach(), weight))


def sequential_mtp(model, emb, hidden, anchor, depth):
    """The head as an engine runs it: true entries up to `anchor`, then its own outputs, one entry at a time."""
    head, shape = model.mtp, model.c
    attn, layer = head.layers[0].self_attn, head.layers[0]
    keys, values, outs = None, None, []
    cur, tokens, first = hidden[:, :anchor + 1], emb[:, 1:anchor + 2], 0
    for d in range(depth):
        x = head.fc(torch.cat([head.pre_fc_norm_embedding(tokens), head.pre_fc_norm_hidden(cur)], -1))
        pos = torch.arange(first, first + x.shape[1])
        q, k, v, gate = attn.qkv(layer.input_layernorm(x), *M.rope_tables(pos, shape.rot, shape.theta))
        keys, values = (k, v) if keys is None else (torch.cat([keys, k], 1), torch.cat([values, v], 1))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, attn.rep(keys)) * shape.head_dim ** -0.5
        scores = scores.masked_fill(torch.arange(keys.shape[1])[None] > pos[:, None], float("-inf"))
        o = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), attn.rep(values)).reshape(*x.shape[:2], -1)
        out = head.norm(layer.ffn(x + attn.out(o, gate))[0])
        outs.append(out[:, -1])
        cur, tokens, first = out[:, -1:], emb[:, anchor + 2 + d:anchor + 3 + d], anchor + 1 + d
    return outs


def check_model(shape):
    model = M.Model(shape)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() >= 2:
                p.mul_(4)
    ids = torch.randint(0, shape.vocab, (2, 200))
    with torch.no_grad():
        hidden, _ = model.backbone(ids)
        cache = model.new_cache(2, 200, "cpu", torch.float32, torch.float32)
        steps = [model.step(ids[:, t], cache, torch.tensor([t]), 200) for t in range(200)]
        expect_close("chunks against steps", torch.stack(steps, 1), model.logits(hidden))
        emb, anchor = model.model.embed_tokens(ids), 57
        unrolled, _ = model.mtp.unroll(emb, hidden, 3)
        for d, out in enumerate(sequential_mtp(model, emb, hidden, anchor, 3)):
            expect_close(f"MTP depth {d + 1}", out, unrolled[d][:, anchor + d])
    h, balance = model.backbone(ids)
    (F.cross_entropy(model.logits(h[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()) + 0.01 * balance).backward()
    assert not [n for n, p in model.named_parameters() if p.grad is None and not n.startswith("mtp.")]
    check_drafter(model, ids)


def check_drafter(model, ids):
    shape = M.DCfg(hidden=64, layers=2, inter=64, heads=4, kv_heads=2, head_dim=16, rank=8, taps=(0, 1, 3), window=64)
    drafter = M.DFlash2(shape)
    with torch.no_grad():
        taps = model.backbone(ids, taps=shape.taps)[2]
    table, anchors = model.model.embed_tokens.weight.detach(), torch.tensor([10, 20, 100, 150])
    y = drafter.blocks(table, ids, taps, anchors)
    expect_close("block alone", drafter.blocks(table, ids, taps, anchors[2:3])[:, 0], y[:, 2])
    before = torch.stack([ids[:, anchors + i] for i in range(7)], 2)
    after = torch.stack([ids[:, anchors + i] for i in range(1, 8)], 2)
    logits = model.logits(y)
    F.cross_entropy((logits + drafter.edges_full(y, before)).flatten(0, 2), after.flatten()).backward()
    assert not [n for n, p in drafter.named_parameters() if p.grad is None]
    path = drafter.path(y.reshape(-1, 7, 64), logits.reshape(-1, 7, logits.shape[-1]), ids[:, anchors].reshape(-1))[0]
    assert path.shape == (8, 7)


def check_chat_format():
    try:
        import jinja2.sandbox
    except ImportError:
        print("chat format: not compared, jinja2 is missing")
        return
    import json
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(keep_trailing_newline=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string(chat_format.TEMPLATE.read_text().removesuffix("\n"))
    tool = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi <b>"},
                {"role": "assistant", "content": "x", "reasoning_content": "r"}, {"role": "user", "content": "time?"},
                {"role": "assistant", "content": "", "reasoning_content": "call",
                 "tool_calls": [{"name": "get_time", "arguments": {"city": "Rome", "n": 2}}] * 2},
                {"role": "tool", "content": "12:00"}, {"role": "tool", "content": "13:00"},
                {"role": "assistant", "content": "Noon.", "reasoning_content": ""}]
    for count in range(1, len(messages) + 1):
        for tools in (None, [tool]):
            for generate in (False, True):
                for thinking in (False, True):
                    theirs = template.render(messages=messages[:count], tools=tools, add_generation_prompt=generate,
                                             enable_thinking=thinking)
                    assert chat_format.render(messages[:count], tools, generate, thinking) == theirs, (count, theirs)
    print("chat format: equal")


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    check_inverse()
    for shape in (M.TINY, M.TINYMOE):
        check_model(shape)
    check_chat_format()
    print("ok")
