#!/usr/bin/env python3
"""Trains the tokenizer (or takes a given one) and encodes the corpus. Needs the `tokenizers` package.

WORK gets tokenizer.json, tokens.npy (the training stream, uint16, documents ended by <|endoftext|>), docs.npy (where documents
start), val_DOMAIN.npy (one document in a hundred, by hash) and heldout.jsonl."""
import argparse
import hashlib
import pathlib
import random
import re
import shutil

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from vocabulary import BASE, END_OF_TEXT, PATTERN, SPECIAL, TAIL, VISIBLE, VOCAB

SAMPLE = 0.28  # share of each domain that the tokenizer learns from


def train_tokenizer(texts):
    byte_level = dict(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer = Tokenizer(models.BPE(dropout=None, unk_token=None, continuing_subword_prefix="", end_of_word_suffix="",
                                     fuse_unk=False, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), behavior="isolated", invert=False), pre_tokenizers.ByteLevel(**byte_level)])
    tokenizer.decoder = decoders.ByteLevel(**byte_level)
    tokenizer.post_processor = processors.ByteLevel(**byte_level)
    trainer = trainers.BpeTrainer(vocab_size=BASE, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                                  special_tokens=[], show_progress=False, max_token_length=24)
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.get_vocab_size() == BASE
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    tokenizer.add_tokens([AddedToken(s, special=False, normalized=False) for s in VISIBLE])
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in TAIL])
    assert tokenizer.get_vocab_size() == VOCAB
    return tokenizer


def sample_of(texts):
    """Parts of documents without special tokens, from a random share of each domain."""
    draw, cut = random.Random(0), re.compile("|".join(re.escape(s) for s in SPECIAL + VISIBLE))
    for domain, documents in texts.items():
        if domain == "chat_val":
            continue
        left = sum(map(len, documents)) * SAMPLE
        for document in draw.sample(documents, len(documents)):
            if left < 0:
                break
            left -= len(document)
            yield from (part for part in cut.split(document) if part)


def held_out(domain, document):
    if domain in ("chat", "chat_val"):
        return domain == "chat_val"
    return int.from_bytes(hashlib.blake2b(document[:2000].encode(), digest_size=4).digest(), "big") % 100 == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=pathlib.Path, help="the train/ folder of the corpus")
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--tokenizer", help="use this tokenizer.json instead of training one")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    texts = {path.stem: path.read_text(encoding="utf-8").split("\0") for path in sorted(options.corpus.glob("*.txt"))}
    tokenizer = Tokenizer.from_file(options.tokenizer) if options.tokenizer else train_tokenizer(sample_of(texts))
    tokenizer.save(str(options.work / "tokenizer.json"))

    train = []
    for domain, documents in texts.items():
        documents = [d for d in documents if d]
        encoded = []
        for i in range(0, len(documents), 4096):
            encoded += [np.array(e.ids + [END_OF_TEXT], np.uint16) for e in tokenizer.encode_batch(documents[i:i + 4096])]
        held = [e for d, e in zip(documents, encoded) if held_out(domain, d)]
        train += [e for d, e in zip(documents, encoded) if not held_out(domain, d)]
        if held:
            np.save(options.work / f"val_{domain.replace('chat_val', 'chat')}.npy", np.concatenate(held)[:400_000])
        size, tokens = sum(len(d.encode()) for d in documents), sum(map(len, encoded))
        print(f"{domain:10s} {size / 1e6:6.1f} MB, {tokens / 1e6:6.2f} M tokens, {size / tokens:.2f} bytes a token", flush=True)
    random.Random(1).shuffle(train)
    np.save(options.work / "tokens.npy", np.concatenate(train))
    np.save(options.work / "docs.npy", np.cumsum([0] + [len(e) for e in train[:-1]], dtype=np.int64))
    shutil.copy(options.corpus / "heldout.jsonl", options.work)


if __name__ == "__main__":
    main()
