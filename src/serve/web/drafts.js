// What is known of an answer's tokens: their texts, who proposed each, and how fast they came. It knows no DOM and no transport.

const kLetters = { copy: 'c', mtp: 'm', dflash: 'd', grammar: 'g', scripted: 's' };
export const kDrafters = {
  c: { name: 'copy', words: 'copied from earlier text' },
  m: { name: 'mtp', words: 'the model’s own draft head' },
  d: { name: 'dflash', words: 'the block drafter' },
  g: { name: 'grammar', words: 'known from the grammar of the answer' },
  s: { name: 'scripted', words: 'scripted' },
};

export class TokenRun {
  pieces = [];     // texts as they can be shown: tokens that hold part of a character are joined
  routes = '';     // a letter of kDrafters for each piece, '-' where the model chose without a draft
  counts = {};     // tokens by letter
  count = 0;
  #pending = [];   // bytes of an unfinished character
  #pendingRoute = '-';

  // `tokens`: [{text, drafted, bytes?}] as streams list them under return_tokens.
  add(tokens) {
    for (const { text, drafted, bytes } of tokens) {
      const letter = drafted === null || drafted === undefined ? '-' : kLetters[drafted] ?? 's';
      this.counts[letter] = (this.counts[letter] ?? 0) + 1;
      ++this.count;
      if (!bytes) {
        this.flush();
        if (text) this.#put(text, letter);
        continue;
      }
      if (!this.#pending.length) this.#pendingRoute = letter;
      this.#pending.push(...bytes);
      try {
        this.#put(new TextDecoder('utf-8', { fatal: true }).decode(Uint8Array.from(this.#pending)), this.#pendingRoute);
        this.#pending = [];
      } catch { /* the rest of the character comes with the next token */ }
    }
  }
  // The end: what never became a character is shown as one that is missing.
  flush() {
    if (this.#pending.length) this.#put(new TextDecoder().decode(Uint8Array.from(this.#pending)), this.#pendingRoute);
    this.#pending = [];
  }
  #put(text, letter) {
    this.pieces.push(text);
    this.routes += letter;
  }
}

export function draftedCount(counts) {
  return Object.entries(counts ?? {}).reduce((sum, [letter, n]) => sum + (letter === '-' ? 0 : n), 0);
}

// Figures of an answer under way. Times in milliseconds.
export class Pace {
  #begin;
  #first = 0;
  #firstCount = 0;
  #last = 0;

  constructor(begin) { this.#begin = begin; }
  // `count` tokens had come by `now`.
  saw(count, now) {
    if (!this.#first) {
      this.#first = now;
      this.#firstCount = count;
    }
    this.#last = now;
  }
  get firstTokenS() { return this.#first ? (this.#first - this.#begin) / 1000 : null; }
  tokensPerSecond(count) {
    const seconds = (this.#last - this.#first) / 1000;
    return seconds > 0.05 && count > this.#firstCount ? (count - this.#firstCount) / seconds : null;
  }
  get lastedS() { return (this.#last - this.#begin) / 1000; }
}

// A cycle commits what was accepted and one token more, which was not drafted; the very first token needs no cycle.
export function tokensPerCycle(counts) {
  const own = (counts['-'] ?? 0) - 1;
  return own > 0 ? (draftedCount(counts) + own) / own : null;
}
