#!/usr/bin/env python3
"""Decodes a cohort of prompts with Foretoken and with llama.cpp's server in each of its speculation modes, alternating, greedy, on the
same weights and threads, and prints tokens per second by class of prompt. Standard library only.

Usage: compare_speculation.py LLAMA_SERVER MODEL.gguf [--drafter FILE.gguf] [--rounds 3] [--tokens 160] [--json FILE]
A mode that the server refuses to start with is listed as such. Rates are decoding alone, as each program reports them; an answer's own
length counts, and whether both programs wrote the same tokens is reported, since near-ties may fall either way."""
import argparse
import json
import pathlib
import re
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODES = {"none": [], "draft-mtp": ["--spec-draft-n-max", "3"], "draft-dflash": ["--spec-draft-n-max", "7"], "ngram-simple": ["--spec-ngram-simple-size-n", "4", "--spec-ngram-simple-size-m", "7"]}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """One llama-server in one mode; `problem` says why it is not running."""

    def __init__(self, program, model, mode, drafter, threads):
        self.problem, self.port, self.log = None, free_port(), tempfile.TemporaryFile("w+")
        words = [program, "-m", model, "-t", threads, "-tb", threads, "-np", 1, "-c", 4096, "--port", self.port, "--no-webui", "--spec-type", mode, *MODES[mode]]
        if mode == "draft-dflash":
            if not drafter:
                self.problem = "no drafter given"
                return
            words += ["--spec-draft-model", drafter]
        self.process = subprocess.Popen([str(w) for w in words], stdout=self.log, stderr=self.log)
        for _ in range(300):
            if self.process.poll() is not None:
                break
            try:
                if self.get("/health")["status"] == "ok":
                    return
            except OSError:
                time.sleep(0.1)
        self.log.seek(0)
        errors = [line.strip() for line in self.log.read().splitlines() if re.search(r"error|failed|unknown|unsupported", line, re.I)]
        self.problem = errors[0][:160] if errors else "it did not start"
        self.process.kill()

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return json.load(answer)

    def decode(self, ids, tokens):
        body = {"prompt": ids, "n_predict": tokens, "temperature": 0, "top_k": 1, "cache_prompt": False, "return_tokens": True}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            got = json.load(answer)
        t = got["timings"]
        return t["predicted_per_second"], got["tokens"], t.get("draft_n", 0), t.get("draft_n_accepted", 0)

    def stop(self):
        if not self.problem:
            self.process.terminate()
            self.process.wait()


def ours(o):
    """Every prompt plain and with speculation in one process: [{class, ids, answer, rates}]."""
    with tempfile.TemporaryDirectory() as folder:
        rates = pathlib.Path(folder) / "rates.json"
        words = [ROOT / "build/bench/speculation_bench", "--model", o.model, "--arms", "auto", "--rounds", 1, "--tokens", o.tokens, "--threads", o.threads, "--rates", rates]
        if o.drafter:
            words += ["--draft-model", o.drafter]
        subprocess.run([str(w) for w in words], cwd=ROOT, check=True, capture_output=True)  # fails when answers differ
        return json.loads(rates.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server")
    parser.add_argument("model")
    parser.add_argument("--drafter")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json")
    o = parser.parse_args()
    servers = {mode: Server(o.server, o.model, mode, o.drafter, o.threads) for mode in MODES}
    arms = ["plain", "auto"] + list(MODES)
    rates, same, drafted, accepted = {}, 0, dict.fromkeys(MODES, 0), dict.fromkeys(MODES, 0)
    try:
        for i in range(-1, o.rounds):  # the first warms everything up
            prompts = ours(o)
            for p, prompt in enumerate(prompts):
                for arm in MODES if i % 2 == 0 else list(MODES)[::-1]:
                    if servers[arm].problem:
                        continue
                    rate, ids, n, n_accepted = servers[arm].decode(prompt["ids"], o.tokens)
                    if i < 0:
                        same += arm == "none" and ids[:len(prompt["answer"])] == prompt["answer"][:len(ids)]
                        continue
                    rates.setdefault((arm, p), []).append(rate)
                    drafted[arm] += n
                    accepted[arm] += n_accepted
                if i >= 0:
                    for arm in ("plain", "auto"):
                        rates.setdefault((arm, p), []).extend(prompt["rates"][arm])
    finally:
        for server in servers.values():
            server.stop()
    middle = {key: statistics.median(values) for key, values in rates.items()}
    print(f"{pathlib.Path(o.model).name}, greedy, up to {o.tokens} tokens, {o.threads} threads, medians of {o.rounds} rounds: tokens per second "
          "(geometric mean over the prompts of a class)\n")
    print("| class | Foretoken plain | auto | " + " | ".join(f"llama.cpp {m}" for m in MODES) + " | auto over its best |")
    print("|---" * (len(arms) + 2) + "|")
    worst = []
    for kind in sorted({prompt["class"] for prompt in prompts}) + ["all"]:
        at = [p for p, prompt in enumerate(prompts) if kind in (prompt["class"], "all")]
        mean = {arm: statistics.geometric_mean(middle[arm, p] for p in at) for arm in arms if (arm, at[0]) in middle}
        best = max(v for a, v in mean.items() if a in MODES)
        if kind != "all":
            worst.append(mean["auto"] / best)
        print(f"| {kind} | " + " | ".join(f"{mean[a]:,.0f}" if a in mean else "-" for a in arms) + f" | {mean['auto'] / best:.2f} |")
    print(f"\nworst class {min(worst):.2f}; llama.cpp without speculation wrote our tokens on {same} of {len(prompts)} prompts; drafted and accepted tokens: " +
          ", ".join(f"{m} {drafted[m]}/{accepted[m]}" for m in MODES if not servers[m].problem) + "".join(f"; {m}: {s.problem}" for m, s in servers.items() if s.problem))
    if o.json:
        pathlib.Path(o.json).write_text(json.dumps([{"arm": a, "prompt": p, "class": prompts[p]["class"], "tokens_per_second": v} for (a, p), v in rates.items()]))


if __name__ == "__main__":
    main()
