// Elements for messages. Whatever a model wrote becomes text nodes: no markup is ever parsed by the browser. It knows no server.
import { draftedCount, kDrafters } from './drafts.js';
import { highlight } from './highlight.js';
import { parseMarkdown } from './markdown.js';

// An element; properties that start with "on" are listeners, others attributes, and null leaves one out.
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat().filter((c) => c !== null && c !== undefined));
  return element;
}

const kSvg = 'http://www.w3.org/2000/svg';
export function icon(name) {
  const svg = document.createElementNS(kSvg, 'svg'), use = document.createElementNS(kSvg, 'use');
  use.setAttribute('href', `#icon-${name}`);
  svg.setAttribute('aria-hidden', 'true');
  svg.append(use);
  return svg;
}

// Copies what `text()` gives, and says so in place.
export function copyButton(label, text, announce) {
  const words = h('span', {}, 'Copy');
  const button = h('button', { type: 'button', class: 'small-button', 'aria-label': label, onclick: async () => {
    const done = await copyText(text());
    words.textContent = done ? 'Copied' : 'Not copied';
    button.querySelector('use').setAttribute('href', done ? '#icon-done' : '#icon-copy');
    announce(done ? 'Copied' : 'The browser did not allow copying');
    setTimeout(() => {
      words.textContent = 'Copy';
      button.querySelector('use').setAttribute('href', '#icon-copy');
    }, 1600);
  } }, icon('copy'), words);
  return button;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { /* plain http on another machine has no clipboard; the old way works there */ }
  const area = h('textarea', { class: 'hidden', 'aria-hidden': 'true', tabindex: '-1' });
  area.value = text;
  const focused = document.activeElement;
  (document.querySelector('dialog[open]') ?? document.body).append(area);
  area.select();
  const done = document.execCommand('copy');
  area.remove();
  focused?.focus();
  return done;
}

// ---- Markdown.

function inlineElements(nodes) {
  return nodes.map((node) => {
    if (typeof node === 'string') return document.createTextNode(node);
    switch (node.type) {
      case 'code': return h('code', {}, node.text);
      case 'break': return h('br');
      case 'link': return h('a', { href: node.href, target: '_blank', rel: 'noopener noreferrer nofollow' }, inlineElements(node.children));
      default: return h({ strong: 'strong', em: 'em', del: 'del' }[node.type], {}, inlineElements(node.children));
    }
  });
}

function codeElement(block, announce) {
  const shown = block.language || 'text';
  const code = h('code', {}, highlight(block.text, block.language).map(([kind, text]) => (kind ? h('span', { class: `tok-${kind}` }, text) : document.createTextNode(text))));
  return h('figure', { class: 'code-block' },
    h('figcaption', {}, h('span', {}, shown), copyButton(`Copy code, ${shown}`, () => block.text, announce)),
    h('pre', { tabindex: '0', role: 'region', 'aria-label': `Code, ${shown}` }, code));
}

function tableElement(block) {
  const cell = (tag, inline, column) => h(tag, { class: block.align[column] ? `to-${block.align[column]}` : null, scope: tag === 'th' ? 'col' : null }, inlineElements(inline));
  return h('div', { class: 'table-box', tabindex: '0', role: 'region', 'aria-label': 'Table' }, h('table', {},
    h('thead', {}, h('tr', {}, block.head.map((c, i) => cell('th', c, i)))),
    h('tbody', {}, block.rows.map((row) => h('tr', {}, row.map((c, i) => cell('td', c, i)))))));
}

function itemElement(item, announce) {
  const only = item.blocks.length === 1 && item.blocks[0].type === 'paragraph';
  const first = item.blocks[0]?.type === 'paragraph' ? item.blocks[0] : null;
  const inside = only ? inlineElements(first.inline) : item.blocks.map((b) => blockElement(b, announce));
  if (item.task === null) return h('li', {}, inside);
  return h('li', { class: 'task' }, h('span', { class: item.task ? 'box done' : 'box', role: 'img', 'aria-label': item.task ? 'done' : 'to do' }), h('div', {}, inside));
}

function blockElement(block, announce) {
  switch (block.type) {
    case 'heading': return h(`h${Math.min(6, block.level + 2)}`, { class: `level-${block.level}` }, inlineElements(block.inline));
    case 'code': return codeElement(block, announce);
    case 'quote': return h('blockquote', {}, block.blocks.map((b) => blockElement(b, announce)));
    case 'list':
      return h(block.start === null ? 'ul' : 'ol', { start: block.start !== null && block.start !== 1 ? block.start : null }, block.items.map((i) => itemElement(i, announce)));
    case 'table': return tableElement(block);
    case 'rule': return h('hr');
    default: return h('p', {}, inlineElements(block.inline));
  }
}

// Text that grows, as Markdown: blocks that did not change keep their elements, so that a selection in them lasts.
export class MarkdownView {
  element = h('div', { class: 'prose' });
  #sources = [];
  #announce;

  constructor(announce) { this.#announce = announce; }
  // The texts of blocks that are complete now and were not before: all but the last one, or all of them.
  show(text, complete) {
    const blocks = parseMarkdown(text);
    const spoken = [];
    let same = 0;
    while (same < blocks.length && this.#sources[same] === blocks[same].source) ++same;
    while (this.element.children.length > same) this.element.lastChild.remove();
    for (const block of blocks.slice(same)) this.element.append(blockElement(block, this.#announce));
    this.#sources = blocks.map((b) => b.source);
    this.#saidUntil ??= 0;
    for (const end = complete ? blocks.length : blocks.length - 1; this.#saidUntil < end; ++this.#saidUntil)
      spoken.push(blocks[this.#saidUntil].type === 'code' ? 'Code.' : this.element.children[this.#saidUntil].textContent);
    return spoken;
  }
  #saidUntil;
}

// ---- Tokens and who drafted them.

export class DraftsView {
  element = h('section', { class: 'drafts', 'aria-label': 'Drafted tokens', hidden: true });
  #words = h('p', { class: 'quiet small' });
  #legend = h('ul', { class: 'legend', 'aria-label': 'Who proposed the tokens' });
  #text = h('div', { class: 'token-text', tabindex: '0', role: 'group', 'aria-label': 'The answer, token by token' });

  constructor() { this.element.append(this.#words, this.#legend, this.#text); }
  // They only grow; `pieces` may be ahead of `routes`.
  show(pieces, routes, counts) {
    const drafted = draftedCount(counts), own = counts['-'] ?? 0;
    this.#words.textContent = `${drafted} of ${drafted + own} tokens were drafted and checked by the model; the answer is the one it writes alone.`;
    const entry = (letter, name, words) => h('li', {}, h('span', { class: letter ? `token by-${letter}` : 'token' }, name), ` ${words}`);
    this.#legend.replaceChildren(
      ...Object.keys(kDrafters).filter((letter) => counts[letter]).map((letter) => entry(letter, kDrafters[letter].name, `${kDrafters[letter].words}: ${counts[letter]}`)),
      entry('', 'plain', `the model, without a draft: ${own}`));
    for (let i = this.#text.childElementCount; i < routes.length; ++i) {
      const letter = routes[i], drafter = kDrafters[letter];
      const kinds = ['token', drafter && `by-${letter}`, /^\n+$/.test(pieces[i]) && 'line-end'].filter(Boolean).join(' ');
      this.#text.append(h('span', { class: kinds, title: drafter && `drafted: ${drafter.name}` }, pieces[i]));
    }
  }
}
