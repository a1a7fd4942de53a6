#!/usr/bin/env python3
"""Trains a target model for a fixed wall time on one GPU and rounds it to the bf16 weights that are exported.

The number of steps follows the clock: a faster GPU sees more text in the same seconds. OUT gets target.pt, target.json (steps,
tokens, validation losses) and samples.txt."""
import argparse
import json
import os
import time

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import network as M
import training
from chat_format import prompt_of, render
from vocabulary import END_OF_TEXT, TURN_END

SHAPES = {"dense": M.DENSE, "moe": M.MOE}
LEARNING_RATE = {"dense": 4e-3, "moe": 5e-3}
BATCH, WINDOW = 32, 2048  # 65k tokens a step
BALANCE = 0.01            # weight of the router's balance loss, over all layers
TEXT_PROMPTS = ("Package: ", "The ", "def main(", "NAME\n", "#include <stdio.h>\n", "And it came to pass")


@torch.compile
def head_loss(h, w, y):
    logits = F.linear(h, w.to(h.dtype)).float()
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def train(model, shape, data, optimizer, seconds):
    def step(ids):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            h, balance = model.backbone(ids[:, :-1])
            loss = head_loss(h, model.model.embed_tokens.weight, ids[:, 1:])
        (loss + BALANCE / shape.layers * balance if shape.experts else loss).backward()
        return loss.detach()

    for _ in range(3):  # compilation stays outside the timed part
        step(data.batch(BATCH, WINDOW))
        optimizer.step(0.0)
        optimizer.zero()
    optimizer.reset()
    torch.cuda.synchronize()

    begin, steps, losses = time.time(), 0, []
    while (done := (time.time() - begin) / seconds) < 1:
        losses.append(step(data.batch(BATCH, WINDOW)))
        if steps < 50:
            torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 1.0)
        optimizer.step(training.lr_scale(done))
        optimizer.zero()
        steps += 1
        if steps % 20 == 0:
            torch.cuda.synchronize()  # keeps the clock honest
        if steps % 200 == 0:
            rate = steps * BATCH * WINDOW / (time.time() - begin)
            print(f"step {steps:5d} {done:6.1%} loss {torch.stack(losses).mean().item():.4f} {rate / 1e3:.0f}k tokens/s "
                  f"epoch {data.epoch}", flush=True)
            losses = []
    torch.cuda.synchronize()
    return steps


def write_samples(model, work, path):
    """Two held-out prompts of each kind and a few beginnings of text, answered greedily."""
    tokenizer = Tokenizer.from_file(work + "/tokenizer.json")
    by_kind = {}
    for line in open(work + "/heldout.jsonl"):
        case = json.loads(line)
        by_kind.setdefault(case["cat"], []).append(case)
    prompts = [(kind, render(prompt_of(case["messages"]), case["tools"], True, False))
               for kind, cases in by_kind.items() for case in cases[:2]]
    prompts += [("text", text) for text in TEXT_PROMPTS]
    encoded = [tokenizer.encode(text).ids for _, text in prompts]
    with open(path, "w") as out:
        for (kind, text), ids, row in zip(prompts, encoded, training.generate(model, encoded, 512).tolist()):
            answer = row[len(ids):]
            for stop in (TURN_END, END_OF_TEXT):
                if stop in answer:
                    answer = answer[:answer.index(stop)]
            out.write(f"##### {kind}\n{text[-400:]}>>>>>{tokenizer.decode(answer[:160], skip_special_tokens=False)}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=SHAPES)
    parser.add_argument("work", help="the folder that encode.py wrote")
    parser.add_argument("out")
    parser.add_argument("--seconds", type=float, default=450)
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    training.setup(1)
    shape = SHAPES[options.kind]
    model = M.Model(shape).cuda()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith("mtp."))
    optimizer = training.Opt(list(model.named_parameters()), LEARNING_RATE[options.kind])
    for layer in model.model.layers:
        layer.compile()
    steps = train(model, shape, training.Data(options.work, seed=3), optimizer, options.seconds)

    training.round_bf16_(model)
    torch.save({k: v.cpu() for k, v in model.state_dict().items()}, options.out + "/target.pt")
    torch.compiler.set_stance("force_eager")  # many shapes from here on; compiling each would take minutes
    report = {"kind": options.kind, "steps": steps, "tokens": steps * BATCH * WINDOW, "seconds": options.seconds,
              "learning_rate": LEARNING_RATE[options.kind], "validation": training.val_losses(model, options.work)}
    print(report, flush=True)
    json.dump(report, open(options.out + "/target.json", "w"), indent=1)
    write_samples(model, options.work, options.out + "/samples.txt")


if __name__ == "__main__":
    main()
