#!/usr/bin/env python3
"""Writes seeds of the fuzzer `evidence`: small measurements of every kind. Usage: evidence_seeds.py SEEDS_FOLDER. Standard library only."""
import json
import pathlib
import sys

CYCLE = {"us": [1000, 1200], "draft_us": [0, 1], "verify_us": [900, 900], "commit_us": [1, 1], "rows": [1, 4], "depth": [0, 3], "accepted": [0, 2], "plan": [0, 1]}
ANSWER = {"set": "greedy", "prompt": 0, "class": "code", "tokens": 9, "decode_us": 9000, "ids": "x", "cycles": 2, "drafted": 3, "accepted": 2, "plans": ["plain", "mtp"], "cycle": CYCLE}
TURN = {"row": "turn", "conversation": "essay", "turn": 2, "prompt_tokens": 40, "cached_tokens": 32, "first_token_us": 100, "decode_us": 900, "tokens": 9, "cycles": 3, "accepted": 5, "ids": "x"}
REQUEST = {"row": "request", "rate": 2, "at_us": 10, "first_us": 100, "total_us": 900, "late_us": 1, "gaps_us": [5, 6, 7], "tokens": 9}


def blocks(rows, **fields):
    return [dict(row, block=b, round=r, **fields) for row in rows for b in (0, 1) for r in (0, 1)]


KINDS = {
    "speed": ({"arms": ["plain", "auto"]}, blocks([dict(ANSWER, row="answer", arm=a) for a in ("plain", "auto")])),
    "rows": ({}, blocks([{"row": "pass", "rows": n, "shape": s, "forward_us": [100, 101], "host_us": [1], "commit_us": [2]} for n in (1, 4) for s in ("chain", "tree")])
             + [{"row": "draft", "route": "mtp", "depth": 2, "us": 30}, {"row": "operators", "rows": 4, "us": {"linear": 90, "add": 1}}]),
    "abba": ({"better": "higher", "metric": "wall"}, blocks([{"row": "round", "arm": a, "prompt": 0, "class": "command", "figure": 3, "ids": "x", "drafted": 1, "accepted": 1} for a in "AB"])
             + [{"row": "round", "arm": "A", "prompt": 0, "class": "command", "block": 0, "failed": "exit status 1"}]),
    "conversation": ({"arms": ["cold", "memory"]}, blocks([dict(TURN, arm=a) for a in ("cold", "memory")])),
    "variate": ({}, [dict(TURN, name="grown", cold_ids="x", drafted=3, cold_first_token_us=9, must_restore=True)]),
    "load": ({"first_token_limit_ms": 1000, "token_limit_ms": 50}, [REQUEST, {"row": "request", "rate": 2, "failed": "status 429"}]),
    "compare": ({"arms": ["plain", "auto", "peer"], "ours": ["plain", "auto"], "arms_left_out": ["a: b"]},
                blocks([dict(ANSWER, row="answer", arm=a, timed_tokens=8) for a in ("plain", "auto", "peer")]) + [{"row": "agreement", "arm": "peer", "equal": False, "margin": 0.01}]),
    "resolve": ({}, [{"row": "bundle", "name": "a.gguf", "architecture": "qwen", "bytes": 9, "runs": True, "mtp": "none", "drafter": "none", "resolved": "copy", "why": "no"},
                     {"row": "bundle", "name": "b", "refused": "damaged"}]),
}


def main():
    folder = pathlib.Path(sys.argv[1]) / "evidence"
    folder.mkdir(parents=True, exist_ok=True)
    for kind, (design, rows) in KINDS.items():
        manifest = {"kind": kind, "title": kind, "date": "today", "command": ["foretoken"], "environment": {"processors": 2}, "design": design}
        (folder / kind).write_text(json.dumps(manifest) + "\n---\n" + "\n".join(json.dumps(row) for row in rows) + "\n")


if __name__ == "__main__":
    main()
