// The inside of a Markdown paragraph: code, emphasis, links, line breaks. See markdown.js.

const kLongest = 100_000;        // characters of one paragraph; longer ones stay text
const kDeepestEmphasis = 12;             // emphasis inside emphasis
const kLongestTarget = 2000;     // characters of a link's target

const kPunctuation = /[!-/:-@[-`{-~\p{P}\p{S}]/u;
const kSpace = /\s/u;
const kTarget = /\(\s*(?:<([^<>\n]{0,2000})>|((?:[^\s()<>]|\([^\s()<>]{0,200}\)){0,2000}))(?:\s+(?:"[^"]{0,500}"|'[^']{0,500}'))?\s*\)/y;
const kAddress = /https?:\/\/[^\s<>"'`]{1,2000}/y;
const kBracketed = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/y;

// Targets that a click may follow; null for others: javascript: and data: never, and nothing on this server.
export function safeTarget(target) {
  const text = target.replace(/[\u0000-\u0020]/g, '');
  if (text.length > kLongestTarget) return null;
  return /^(?:https?:\/\/[^/]|mailto:[^/])/i.test(text) ? text : null;
}

export function parseInline(text) {
  if (text.length > kLongest) return [text];
  return new Inline(text).parse();
}

class Inline {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.plain = '';
    this.nodes = [];        // strings, nodes, and marks {mark, count, opens, closes} that may become emphasis
    this.brackets = [];     // indices into nodes of '[' that may begin a link
    this.ticks = null;      // runs of backticks by length: their places, the last ones first
  }

  parse() {
    while (this.at < this.text.length) this.#step();
    this.#flush();
    return tidy(emphasise(this.nodes));
  }

  #step() {
    const c = this.text[this.at];
    switch (c) {
      case '\\': return this.#escape();
      case '`': return this.#code();
      case '*': case '_': case '~': return this.#mark(c);
      case '[': return this.#open('[');
      case ']': return this.#close();
      case '!':
        return this.text[this.at + 1] === '[' ? this.#open('![') : this.#take(1);  // of an image, the link alone
      case '\n': return this.#lineEnd();
      case '<': case 'h': {
        const pattern = c === '<' ? kBracketed : kAddress;
        pattern.lastIndex = this.at;
        const found = (c === '<' || !/\w/.test(this.text[this.at - 1] ?? ' ')) && pattern.exec(this.text);
        return found ? this.#address(c === '<' ? found[1] : trimmedAddress(found[0]), c === '<' ? found[0].length : 0) : this.#take(1);
      }
      default: return this.#take(1);
    }
  }

  #take(n) {
    this.plain += this.text.slice(this.at, this.at + n);
    this.at += n;
  }
  #flush() {
    if (this.plain) this.nodes.push(this.plain);
    this.plain = '';
  }
  #push(node) {
    this.#flush();
    this.nodes.push(node);
  }

  #escape() {
    const next = this.text[this.at + 1];
    if (next === '\n') {
      this.at += 2;
      return this.#push({ type: 'break' });
    }
    if (next !== undefined && /[!-/:-@[-`{-~]/.test(next)) ++this.at;
    this.#take(1);
  }

  #code() {
    let count = 1;
    while (this.text[this.at + count] === '`') ++count;
    const end = this.#closingTicks(count, this.at + count);
    if (end < 0) return this.#take(count);
    let inside = this.text.slice(this.at + count, end).replace(/\n/g, ' ');
    if (inside.startsWith(' ') && inside.endsWith(' ') && inside.trim() !== '') inside = inside.slice(1, -1);
    this.at = end + count;
    this.#push({ type: 'code', text: inside });
  }
  #closingTicks(count, from) {
    if (!this.ticks) {
      this.ticks = new Map();
      for (const { 0: run, index } of this.text.matchAll(/`+/g)) {
        if (!this.ticks.has(run.length)) this.ticks.set(run.length, []);
        this.ticks.get(run.length).push(index);
      }
      for (const places of this.ticks.values()) places.reverse();
    }
    const places = this.ticks.get(count) ?? [];
    while (places.length && places.at(-1) < from) places.pop();
    return places.at(-1) ?? -1;
  }

  #mark(c) {
    let count = 1;
    while (this.text[this.at + count] === c) ++count;
    const before = this.text[this.at - 1] ?? ' ', after = this.text[this.at + count] ?? ' ';
    const left = !kSpace.test(after) && (!kPunctuation.test(after) || kSpace.test(before) || kPunctuation.test(before));
    const right = !kSpace.test(before) && (!kPunctuation.test(before) || kSpace.test(after) || kPunctuation.test(after));
    const opens = c === '_' ? left && (!right || kPunctuation.test(before)) : left;
    const closes = c === '_' ? right && (!left || kPunctuation.test(after)) : right;
    if ((!opens && !closes) || (c === '~' && count !== 2)) return this.#take(count);
    this.at += count;
    this.#push({ mark: c, count, opens, closes });
  }

  #open(mark) {
    this.#push(mark);
    this.brackets.push(this.nodes.length - 1);
    this.at += mark.length;
  }
  #close() {
    const opener = this.brackets.pop();
    kTarget.lastIndex = this.at + 1;
    const found = opener !== undefined && this.text[this.at + 1] === '(' ? kTarget.exec(this.text) : null;
    const href = found && safeTarget(found[1] ?? found[2]);
    if (!href) return this.#take(1);  // its text stays as it was written
    this.#flush();
    const inside = this.nodes.splice(opener).slice(1);
    this.brackets = [];  // no link in a link
    this.nodes.push({ type: 'link', href, children: tidy(emphasise(inside)) });
    this.at += 1 + found[0].length;
  }

  #address(address, length) {
    const href = safeTarget(address);
    if (!href) return this.#take(1);
    this.at += length || address.length;
    this.#push({ type: 'link', href, children: [address.replace(/^mailto:/, '')] });
  }

  #lineEnd() {
    const hard = /  $/.test(this.plain.slice(-2));
    this.plain = this.plain.trimEnd();
    ++this.at;
    if (hard) this.#push({ type: 'break' });
    else this.plain += '\n';
  }
}

// An address in running text ends before the sentence's own marks.
function trimmedAddress(address) {
  let out = address.replace(kSentenceMarks, '');
  for (let i = 0; i < 8 && out.endsWith(')') && count(out, ')') > count(out, '('); ++i) out = out.slice(0, -1).replace(kSentenceMarks, '');
  return out;
}
const kSentenceMarks = /[.,;:!?*_~\]]{1,20}$/;
const count = (text, c) => text.split(c).length - 1;

// Marks to emphasis: each closing mark finds the nearest opening one of its kind.
function emphasise(nodes) {
  const out = [];
  const open = [];                    // indices into `out` of marks that may still open
  for (const node of nodes) {
    if (!node.mark) { out.push(node); continue; }
    let left = node.count;
    while (node.closes && left > 0) {
      let k = open.length - 1;
      while (k >= 0 && k > open.length - 40 && !fits(out[open[k]], node)) --k;
      if (k < 0 || k <= open.length - 40) break;
      const opener = out[open[k]];
      const used = node.mark === '~' ? 2 : Math.min(2, left, opener.count);
      const children = tidy(out.splice(open[k] + 1));
      open.length = k + 1;
      const depth = 1 + deepest(children);
      if (depth > kDeepestEmphasis) {
        for (const child of children) out.push(child);
        break;
      }
      opener.count -= used;
      left -= used;
      if (opener.count === 0) out.splice(open.pop(), 1);
      out.push({ type: node.mark === '~' ? 'del' : used === 2 ? 'strong' : 'em', children, depth });
    }
    if (left > 0) {
      if (node.opens) open.push(out.length);
      out.push(node.opens ? { ...node, count: left } : node.mark.repeat(left));
    }
  }
  return out;
}

function fits(opener, closer) {
  if (opener.mark !== closer.mark) return false;
  // "*a**b*": a mark that could be either pairs only with a fitting length.
  return !((opener.closes || closer.opens) && (opener.count + closer.count) % 3 === 0 && (opener.count % 3 || closer.count % 3));
}

const deepest = (nodes) => nodes.reduce((most, n) => Math.max(most, n.depth ?? 0), 0);

// Marks that found no partner are text; neighbouring texts are joined.
function tidy(nodes) {
  const out = [];
  for (const node of nodes) {
    const item = node.mark ? node.mark.repeat(node.count) : node;
    if (typeof item === 'string' && typeof out.at(-1) === 'string') out[out.length - 1] += item;
    else if (item !== '') out.push(item);
  }
  return out;
}
