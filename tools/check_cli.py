#!/usr/bin/env python3
"""Runs the program as users and scripts do and holds what it prints against docs/cli.md: JSON fields, exit statuses, one clear
sentence for bad input, equal answers however they were decoded. Usage: check_cli.py [BUILD_DIRECTORY]. Standard library only."""
import json
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = str(ROOT / "models/demo-dense")
failures = []


def expect(condition, what):
    if not condition:
        failures.append(what)
        print(f"FAILED {what}")


def run(program, *words, text=None, status=0):
    result = subprocess.run([program, *map(str, words)], input=text if text is not None else "", capture_output=True, text=True)
    expect(result.returncode == status, f"{' '.join(map(str, words))[:90]}: exit status {result.returncode}, expected {status}: {result.stderr.strip()[:200]}")
    if status == 2:
        lines = result.stderr.strip().splitlines()
        expect(len(lines) == 1 and len(lines[0]) > 20, f"{' '.join(map(str, words))[:90]}: bad input must give one sentence, gave {lines}")
    return result.stdout


def as_json(program, *words, **options):
    try:
        return json.loads(run(program, *words, **options))
    except ValueError as error:
        expect(False, f"{' '.join(map(str, words))[:90]}: no JSON: {error}")
        return {}


def keys(value, wanted, what):
    expect(set(wanted) <= set(value), f"{what} lacks {set(wanted) - set(value)}")


def check_answers(program):
    request = ["run", "--json", "-n", 48, "--thinking", "off", "Rename the variable total to amount in this code: total = 1; print(total + total)"]
    fast = as_json(program, *request)
    keys(fast, ["text", "reasoning", "ids", "prompt_ids", "finish_reason", "seed", "usage", "speculation", "timing"], "run --json")
    keys(fast["usage"], ["prompt_tokens", "completion_tokens", "reasoning_tokens", "cached_tokens"], "usage")
    keys(fast["speculation"], ["drafter", "verify", "cycles", "drafted", "verified_rows", "accepted", "tokens_per_cycle", "by_drafter"], "speculation")
    keys(fast["timing"], ["load_s", "prefill_s", "decode_s", "prefill_tok_s", "decode_tok_s", "draft_s", "verify_s", "commit_s"], "timing")
    expect(fast["speculation"]["drafter"] == "dflash", "the embedded drafter is used")
    plain = as_json(program, *request, "--speculate", "off")
    expect(plain["ids"] == fast["ids"] and len(plain["ids"]) > 5, "greedy ids with and without speculation")
    expect(plain["speculation"]["drafted"] == 0, "nothing is drafted with --speculate off")
    for mode, route, width in (("chain", "mtp", 3), ("live", "dflash", 7), ("tree", "dflash", 16)):
        pinned = as_json(program, *request, "--speculate", route, "--verify", mode, "--width", width)
        expect(pinned["ids"] == plain["ids"], f"ids of {route} {mode}")
        expect(pinned["speculation"]["drafted"] > 0, f"{route} {mode} drafted nothing")
    again = ["run", "--json", "-n", 40, "--raw", "--ignore-eos", "one two three four five six seven eight nine ten. one two three four five six seven"]
    copied = as_json(program, *again, "--speculate", "copy", "--width", 7)
    expect(copied["ids"] == as_json(program, *again, "--speculate", "off")["ids"], "ids of suffix copy")
    expect(copied["speculation"]["by_drafter"]["copy"]["drafted"] > 0, "suffix copy drafted nothing")
    sampled = [*request, "--temperature", "0.9", "--top-p", "0.95", "--top-k", "20", "--seed", "7"]
    first = as_json(program, *sampled)
    expect(first["ids"] == as_json(program, *sampled, "--speculate", "off")["ids"], "sampled ids with and without speculation")
    expect(first["ids"] != as_json(program, *sampled[:-1], "8")["ids"], "another seed gives another answer")
    expect(first["seed"] == 7, "the seed is reported")
    stopped = as_json(program, "run", "--json", "-n", 40, "--raw", "--ignore-eos", "--stop", "e", "The")
    expect("e" not in stopped["text"] and stopped["finish_reason"] == "stop", "a stop string ends the text before itself")
    short = as_json(program, "run", "--json", "-n", 3, "--ids", "1,2,3", "--ignore-eos")
    expect(len(short["ids"]) == 3 and short["prompt_ids"] == [1, 2, 3] and short["finish_reason"] == "length", "budget of 3 after raw ids")
    expect(as_json(program, "run", "--json", "-n", 0, "--ids", "1,2,3")["ids"] == [], "budget of 0")
    piped = as_json(program, "run", "--json", "-n", 4, "--raw", text="Once upon a time")
    expect(piped["prompt_ids"] == as_json(program, "tokenize", "--json", "Once upon a time")["ids"], "a prompt from standard input")


def check_interrupt(program):
    process = subprocess.Popen([program, "run", "--json", "--ignore-eos", "-n", "200000", "--raw", "The history of the lighthouse"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    answer = json.loads(process.communicate(timeout=60)[0])
    expect(process.returncode == -signal.SIGINT, f"run: an interrupted answer ended with {process.returncode}")
    expect(answer["finish_reason"] == "cancelled" and len(answer["ids"]) > 0, f"run: an interrupted answer says {answer['finish_reason']} and has {len(answer['ids'])} tokens")
    process = subprocess.Popen([program, "bench", "rows", "--rows", "1", "--prefix", "16", "--blocks", "1000"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    expect(process.returncode == -signal.SIGINT and said.count("\n") <= 1, f"bench: an interrupted measurement ended with {process.returncode}: {said}")


# A signal that ends a program takes its temporary files along.
def check_temporaries(program):
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        with tempfile.TemporaryDirectory() as folder:
            process = subprocess.Popen([program, "quantize", MODEL, pathlib.Path(folder, "out.gguf"), "--type", "Q4_K", "-t", "1"], stdout=subprocess.DEVNULL,
                                       preexec_fn=lambda: [signal.signal(n, signal.SIG_DFL) for n in (signal.SIGINT, signal.SIGHUP)])  # a job in the background ignores them
            deadline = time.monotonic() + 60
            works = False  # what is tried before stays empty, and is gone at once
            while not works and time.monotonic() < deadline:
                time.sleep(0.001)
                try:
                    works = any(file.stat().st_size > 0 for file in pathlib.Path(folder).glob("out.gguf.*"))
                except FileNotFoundError:
                    pass
            expect(works, "quantize: a temporary file while it works")
            process.send_signal(getattr(signal, name))
            process.wait(timeout=60)
            expect(process.returncode == -getattr(signal, name), f"quantize: {name} ended it with {process.returncode}")
            expect(list(pathlib.Path(folder).iterdir()) == [], f"quantize: {name} left a file")


# Options that cannot be met are said to be so before a model is opened: the one named here is not there.
def check_options(program):
    nowhere = str(ROOT / "README.md" / "x")
    for words, option in ((["run", "--trace", nowhere, "x"], "--trace"), (["run", "--trace", "/nonexistent/x", "x"], "--trace"), (["run", "--trace", str(ROOT), "x"], "--trace"),
                          (["run", "--trace", "/dev/null", "x"], "--trace"), (["run", "--trace", "", "x"], "--trace"), (["bench", "speed", "--trace", nowhere], "--trace"),
                          (["bench", "speed", "--out", nowhere], "--out"), (["certify", "--out", nowhere], "--out"), (["logits", "--ids", "1", "--out", nowhere], "--out"),
                          (["run", "--cache-dir", nowhere, "x"], "--cache-dir"), (["serve", "--cache-dir", "/proc/x"], "--cache-dir"), (["chat", "--cache-dir", ""], "--cache-dir"),
                          (["run", "--prompt-file", "/nonexistent"], "--prompt-file"), (["run", "--json-schema", "/nonexistent", "x"], "--json-schema"),
                          (["run", "--stop", "", "x"], "--stop"), (["perplexity", "--ids", "1,2,3", "--context", "1"], "--context"),
                          (["serve", "--max-context", "5"], "--max-context"), (["inspect", "--max-context", "5"], "--max-context"), (["serve", "--lanes", "65"], "--lanes"),
                          (["inspect", "--lanes", "65"], "--lanes"), (["serve", "--max-memory", "24"], "--max-memory"), (["serve", "--max-memory", "off"], "--max-memory"),
                          (["serve", "--cache-ram", "4"], "--cache-ram"), (["serve", "--cache-disk", "4"], "--cache-disk"), (["serve", "--host-cache", "4"], "--host-cache"), (["serve", "--max-request", "5"], "--max-request"),
                          (["serve", "--max-request", "off"], "--max-request"), (["run", "--packed-cache", "32", "x"], "--packed-cache")):
        result = subprocess.run([program, *words, "--model", "/nonexistent/model"], input="", capture_output=True, text=True)
        lines = result.stderr.strip().splitlines()
        expect(result.returncode == 2 and len(lines) == 1 and lines[0].startswith(f"foretoken: {option}"), f"{' '.join(words)}: status {result.returncode}, {lines}")
    for destination in (nowhere, "/dev/null"):
        run(program, "quantize", MODEL, destination, "--type", "Q8_0", status=2)


def check_schema(program):
    with tempfile.TemporaryDirectory() as folder:
        schema = pathlib.Path(folder, "schema.json")
        schema.write_text(json.dumps({"type": "object", "properties": {"count": {"type": "integer", "minimum": 0, "maximum": 9}, "name": {"enum": ["left", "right"]}},
                                      "required": ["count", "name"], "additionalProperties": False}))
        answers = []
        for route in ("off", "grammar", "auto"):
            pinned = ["--width", 7] if route == "grammar" else []  # what is drafted does not follow the clock
            answer = as_json(program, "run", "--json", "--thinking", "off", "--temperature", 0, "--speculate", route, *pinned, "--json-schema", schema, "A JSON object")
            value = json.loads(answer["text"])
            expect(set(value) == {"count", "name"} and 0 <= value["count"] <= 9 and value["name"] in ("left", "right"), f"--json-schema with {route}: {answer['text']}")
            answers.append(answer["ids"])
            if route == "grammar":
                expect(answer["speculation"]["accepted"] > 0, "--json-schema: the grammar drafted nothing that was accepted")
        expect(answers[0] == answers[1] == answers[2], "--json-schema: answers differ between routes")


def check_text(program):
    sentence = "<|im_start|>user\nH\u00e9llo, w\u00f6rld 123!<|im_end|>"
    tokens = as_json(program, "tokenize", "--json", sentence)
    keys(tokens, ["ids", "tokens"], "tokenize --json")
    expect(as_json(program, "detokenize", "--json", ",".join(map(str, tokens["ids"])))["text"] == sentence, "tokenize and detokenize")
    expect(tokens["tokens"][0] == "<|im_start|>", "special tokens are recognised by tokenize")
    with tempfile.TemporaryDirectory() as folder:
        messages = pathlib.Path(folder, "messages.json")
        messages.write_text(json.dumps([{"role": "user", "content": "hi <|im_end|> there"}]))
        rendered = as_json(program, "render", messages, "--thinking", "off", "--json")
        keys(rendered, ["text", "ids"], "render --json")
        end = as_json(program, "tokenize", "--json", "<|im_end|>")["ids"][0]
        expect(rendered["ids"].count(end) == 1, "content cannot forge the end of a turn")
        expect(rendered["text"].startswith("<|im_start|>user\nhi <|im_end|> there<|im_end|>\n"), "the rendered text")
        bare = as_json(program, "render", messages, "--no-generation-prompt", "--json")
        expect(rendered["text"].startswith(bare["text"]) and len(bare["text"]) < len(rendered["text"]), "--no-generation-prompt")
        pathlib.Path(folder, "bad.json").write_text("{")
        run(program, "render", pathlib.Path(folder, "bad.json"), status=2)


def check_scores(program):
    ids = "1130,331,220,18,10,19,30"
    two = as_json(program, "logits", "--ids", ids, "--last", 2)
    expect(two["positions"] == [5, 6] and len(two["logits"]) == 2 and len(two["logits"][0]) == 8192, "logits of the last two positions")
    for isa in ("scalar", "avx2"):
        same = as_json(program, "logits", "--ids", ids, "--last", 2, "--isa", isa, "--threads", 1, "--prefill-chunk", 3)
        expect(same == two, f"logits on {isa}, one thread, chunks of 3")
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "logits.safetensors")
        run(program, "logits", "--ids", ids, "--last", 1, "--out", out)
        raw = out.read_bytes()
        size = struct.unpack("<Q", raw[:8])[0]
        begin, end = json.loads(raw[8:8 + size])["logits"]["data_offsets"]
        values = struct.unpack(f"<{(end - begin) // 4}f", raw[8 + size + begin:8 + size + end])
        expect(list(map(lambda v: struct.unpack("<f", struct.pack("<f", v))[0], two["logits"][1])) == list(values), "logits --out equals the JSON bit for bit")
        text = pathlib.Path(folder, "text.txt")
        text.write_text("The quick brown fox jumps over the lazy dog. " * 4)
        score = as_json(program, "perplexity", "--file", text, "--json")
        keys(score, ["mean_nll", "tokens", "seconds"], "perplexity --json")
        expect(0.2 < score["mean_nll"] < 12 and score["tokens"] > 20, "a plausible likelihood")
        gguf = pathlib.Path(folder, "q8.gguf")
        run(program, "quantize", MODEL, gguf, "--type", "Q8_0")
        expect(as_json(program, "inspect", "--model", gguf, "--json")["bits_per_weight"] > 8, "quantize writes a readable file")
        gguf.write_bytes(gguf.read_bytes()[:100000])
        run(program, "inspect", "--model", gguf, status=2)


def check_inspect(program):
    report = as_json(program, "inspect", "--json")
    keys(report, ["path", "format", "architecture", "family", "layers", "hidden", "vocab", "experts", "tensors", "bytes", "bits_per_weight", "tokenizer", "mtp",
                  "drafter", "speculation", "memory", "packed_weights", "fingerprint"], "inspect --json")
    keys(report["mtp"], ["declared", "present", "complete", "reason"], "inspect mtp")
    keys(report["drafter"], ["path", "kind", "fits", "reason"], "inspect drafter")
    keys(report["memory"], ["weights", "state_per_lane", "kv_per_token", "plan"], "inspect memory")
    expect(report["family"] == "qwen3_5" and report["mtp"]["complete"] and report["drafter"]["fits"], "what the embedded model is")
    expect(report["speculation"]["resolved"] == "dflash", "auto resolves to the drafter that fits")
    expect(report["memory"]["host_cache"] is None and not any("--host-cache" in n for n in report["memory"]["notes"]), "no host tier beside a processor")
    expect(any("--host-cache" in n for n in as_json(program, "inspect", "--json", "--host-cache", "1G")["memory"]["notes"]), "--host-cache without a device is noticed")
    expect(as_json(program, "inspect", "--json", "--draft-model", "/nonexistent")["speculation"]["resolved"] == "mtp", "an absent drafter falls back to the head")


# A model that is large enough to be kept packed: written once, found later, never believed when damaged, equal answers always.
def check_packed(program):
    with tempfile.TemporaryDirectory() as folder:
        model, cache = pathlib.Path(folder, "model.gguf"), pathlib.Path(folder, "cache")
        run(program, "quantize", MODEL, model, "--type", "F32")
        request = ["run", "--json", "-n", 12, "--raw", "--ignore-eos", "--model", model, "--speculate", "off", "--cache-dir", cache, "One two three"]
        plain = as_json(program, *request, "--packed-cache", "off")["ids"]
        expect(not cache.exists(), "--packed-cache off writes nothing")
        for what in ("a first load", "a later load", "a damaged file", "a load after that"):
            kept = list(cache.glob("packed/*.packed"))
            expect(len(kept) == (what != "a first load"), f"{what}: one file is kept, found {kept}")
            if what == "a damaged file" and kept:
                with open(kept[0], "r+b") as file:
                    file.seek(kept[0].stat().st_size // 2)
                    byte = file.read(1)
                    file.seek(-1, 1)
                    file.write(bytes([byte[0] ^ 1]))
            expect(as_json(program, *request)["ids"] == plain, f"{what}: the ids of an unkept load")
        changed = bytearray(model.read_bytes())
        changed[len(changed) // 2] ^= 1
        model.write_bytes(changed)
        run(program, *request)
        expect(len(list(cache.glob("packed/*.packed"))) == 2, "a changed weight is another file")


def measure(program, folder, *words):
    """A short measurement, decided or not; its summary. The evidence lies in `folder` and must recompute."""
    command = ["bench", *map(str, words), "--out", folder]
    result = subprocess.run([program, *command, "--json"], capture_output=True, text=True)
    expect(result.returncode in (0, 3), f"{' '.join(map(str, command))[:90]}: exit status {result.returncode}: {result.stderr.strip()[:200]}")
    try:
        summary = json.loads(result.stdout)
    except ValueError as error:
        expect(False, f"{' '.join(map(str, command))[:90]}: no JSON: {error}")
        return {}
    keys(summary, ["outcome", "verdicts", "tables", "notes", "compared_answers", "different_answers"], f"bench {words[0]} --json")
    expect(summary.get("different_answers") == 0, f"bench {words[0]}: answers differ")
    run(program, "bench", "report", folder)
    text = "".join((folder / name).read_text() for name in ("manifest.json", "summary.json", "table.md", "report.html"))
    expect(str(ROOT) not in text and str(folder) not in text, f"bench {words[0]} publishes a path of this machine")
    return summary


def check_bench(program):
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        speed = measure(program, scratch / "speed", "speed", "--model", MODEL, "--blocks", 1, "--warm-up", 0, "--tokens", 12, "--classes", "chat", "--arms", "auto,mtp chain 3")
        expect(speed.get("compared_answers") == 10, "two prompts, three arms, two rounds: ten comparisons")
        measure(program, scratch / "rows", "rows", "--rows", "1,4", "--prefix", 16, "--blocks", 1)
        measure(program, scratch / "conversation", "conversation", "--blocks", 1, "--warm-up", 0, "--filler", 60, "-n", 8)
        variate = measure(program, scratch / "variate", "variate", "-n", 12)
        expect(variate.get("compared_answers") == 8, "eight turns against cold runs")
        resolve = measure(program, scratch / "resolve", "resolve", ROOT / "models")
        expect(any(row[6] == "dflash" for row in resolve["tables"][0]["rows"]), "the embedded model resolves to its block drafter")
        run(program, "bench", "abba", "exit 0", "exit 7", "--blocks", 1, "--warm-up", 0, "--log-level", "quiet", status=3)
        summary = scratch / "speed/summary.json"
        untouched = summary.read_text()
        summary.write_text(untouched.replace('"compared_answers": 10', '"compared_answers": 11'))
        run(program, "bench", "report", scratch / "speed", status=1)
        summary.write_text(untouched)
        run(program, "bench", "report", scratch / "speed")
        (scratch / "speed/manifest.json").write_text("{")
        run(program, "bench", "report", scratch / "speed", status=2)
        run(program, "bench", "report", scratch / "nothing", status=2)
        run(program, "run", "-n", 8, "--trace", scratch / "trace.json", "--raw", "The history of the lighthouse")
        events = json.loads((scratch / "trace.json").read_text())["traceEvents"]
        expect({"prompt", "draft", "verify", "commit"} <= {e["name"] for e in events}, "a trace holds the prompt and the phases of cycles")


def check_bad_input(program):
    for words in (["run", "--model", "/nonexistent", "x"], ["run", "--ids", "1,x"], ["run", "--ids", "999999"], ["run", "--temperature", "-1", "x"],
                  ["run", "--top-p", "0", "x"], ["run", "--speculate", "magic", "x"], ["run", "--verify", "magic", "x"], ["run", "--live-threshold", "2", "x"],
                  ["run", "--backend", "magic", "x"], ["logits"], ["nonsense"], [], ["detokenize", "1,,2"], ["detokenize", "99999999"],
                  ["quantize", MODEL, "never-written.gguf", "--type", "Q9"], ["perplexity"], ["run", "--model", str(ROOT / "README.md"), "x"],
                  ["run", "--json-schema", "x.json", "x"], ["bench"], ["nope"], ["bench", "nope"], ["run", ""], ["run", "--max-tokens", "abc", "x"],
                  ["run", "--draft-model", "/nonexistent", "x"], ["serve", "--draft-model", "/nonexistent", "--port", "0"], ["run", "--ids", ",".join(["5"] * 40000)], ["bench", "speed", "--arms", "magic"], ["bench", "resolve", "/nonexistent"],
                  ["bench", "abba", "--a=--threads 1", "--b=true"], ["bench", "load", "--url", "ftp://x"], ["bench", "compare"], ["run", "--packed-cache", "much", "x"], ["run", "--packed-cache", "1P", "x"], ["run", "--max-tokens", "-3", "x"]):
        run(program, *words, status=2)
    if not pathlib.Path("/dev/nvidia0").exists():
        run(program, "run", "--backend", "cuda", "x", status=4)


def main():
    build = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build"
    program = str(build / "foretoken")
    for check in (check_answers, check_interrupt, check_temporaries, check_options, check_schema, check_text, check_scores, check_inspect, check_packed, check_bench, check_bad_input):
        check(program)
    print(f"{len(failures)} failures" if failures else "cli: all as documented")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
