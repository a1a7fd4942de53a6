// The page's modules without a browser: the reader of events, tokens and drafts, storage, requests, and Markdown. web/ holds the modules.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { chatRequest } from './web/api.js';
import { Pace, TokenRun, tokensPerCycle } from './web/drafts.js';
import { highlight } from './web/highlight.js';
import { safeTarget } from './web/inline.js';
import { parseMarkdown } from './web/markdown.js';
import { EventReader } from './web/sse.js';
import { kMostCharacters, kMostConversations, Store } from './web/store.js';

test('events are the same however the text is cut', () => {
  const text = ': waiting\n\ndata: {"a":"é\\n"}\n\nevent: x\r\ndata: one\r\ndata:two\r\n\r\ndata: [DONE]\n\nid: 4\n\ndata: unfinished';
  const whole = new EventReader().push(text);
  assert.deepEqual(whole, ['{"a":"é\\n"}', 'one\ntwo', '[DONE]']);
  for (let cut = 1; cut <= text.length; ++cut) {
    const reader = new EventReader(), events = [];
    for (let at = 0; at < text.length; at += cut) events.push(...reader.push(text.slice(at, at + cut)));
    assert.deepEqual(events, whole, `pieces of ${cut}`);
  }
});

test('tokens that share a character are shown as one, and each counts', () => {
  const run = new TokenRun();
  run.add([{ text: 'a', drafted: null }, { text: '\ufffd', drafted: 'dflash', bytes: [0xf0, 0x9f] }, { text: '\ufffd', drafted: null, bytes: [0x98] }]);
  assert.deepEqual(run.pieces, ['a']);
  run.add([{ text: '\ufffd', drafted: 'copy', bytes: [0x80, 0x20] }, { text: '', drafted: 'mtp' }, { text: '\ufffd', drafted: 'mtp', bytes: [0xc3] }]);
  run.flush();
  assert.deepEqual(run.pieces, ['a', '😀 ', '\ufffd']);
  assert.equal(run.routes, '-dm');
  assert.deepEqual(run.counts, { '-': 2, d: 1, c: 1, m: 2 });
  assert.equal(run.count, 6);
});

test('the live figures: a first token, then cycles of drafted ones and one more', () => {
  assert.equal(tokensPerCycle({ '-': 1 }), null);
  assert.equal(tokensPerCycle({ '-': 3, d: 6 }), 4);
  const pace = new Pace(1000);
  assert.equal(pace.firstTokenS, null);
  pace.saw(1, 1500);
  assert.equal(pace.tokensPerSecond(1), null);
  pace.saw(21, 3500);
  assert.equal(pace.firstTokenS, 0.5);
  assert.equal(pace.tokensPerSecond(21), 10);
});

// The Storage interface, with a quota.
class FakeStorage {
  map = new Map();
  constructor(quota = Infinity) { this.quota = quota; }
  get length() { return this.map.size; }
  key(i) { return [...this.map.keys()][i] ?? null; }
  getItem(k) { return this.map.get(k) ?? null; }
  removeItem(k) { this.map.delete(k); }
  setItem(k, v) {
    const others = [...this.map].reduce((sum, [key, value]) => sum + (key === k ? 0 : key.length + value.length), 0);
    if (others + k.length + v.length > this.quota) throw new Error('QuotaExceededError');
    this.map.set(k, v);
  }
}
const chat = (id, updated, text) => ({ id, title: id, updated, messages: [{ role: 'user', content: text }] });

test('conversations are bounded in number and size, and the oldest give way', () => {
  const kept = new FakeStorage(), store = new Store(kept, new FakeStorage());
  kept.setItem('foreign', 'stays');
  for (let i = 0; i < kMostConversations + 20; ++i) assert.ok(store.put(chat(`c${i}`, i, 'x')));
  assert.equal(store.list().length, kMostConversations);
  assert.equal(store.list()[0].id, `c${kMostConversations + 19}`);
  assert.equal(store.get('c0'), null);
  assert.ok(store.put(chat('large', 1000, 'y'.repeat(kMostCharacters - 1000))));
  assert.deepEqual(store.get('large').messages[0].content.length, kMostCharacters - 1000);
  assert.ok([...kept.map.values()].reduce((sum, v) => sum + v.length, 0) < kMostCharacters + 100);
  assert.equal(store.put(chat('too large', 1001, 'y'.repeat(kMostCharacters))), false);
  assert.equal(kept.getItem('foreign'), 'stays');
  store.removeAll();
  assert.equal(store.list().length, 0);
  assert.equal(kept.getItem('foreign'), 'stays');
});

test('a small quota, damaged entries and no storage at all', () => {
  const kept = new FakeStorage(3000), store = new Store(kept, new FakeStorage());
  for (let i = 0; i < 10; ++i) assert.ok(store.put(chat(`c${i}`, i, 'z'.repeat(500))));
  assert.ok(store.list().length >= 2 && store.list().length < 10);
  assert.equal(store.list()[0].id, 'c9');
  assert.equal(store.put(chat('c10', 10, 'z'.repeat(4000))), false);
  kept.setItem('foretoken.chat.bad', '{"id":');
  kept.setItem('foretoken.chat.null', 'null');
  assert.equal(store.get('bad'), null);
  store.list();
  const none = new Store(null, null);
  assert.equal(none.put(chat('a', 1, 'x')), false);
  assert.deepEqual([none.list(), none.get('a'), none.settings(), none.key()], [[], null, {}, '']);
  none.putKey('k', true);
  none.putSettings({});
});

test('a key is kept where it was asked to be, and nowhere else', () => {
  const kept = new FakeStorage(), tab = new FakeStorage(), store = new Store(kept, tab);
  store.putKey('secret', false);
  assert.equal(store.key(), 'secret');
  assert.equal(kept.length, 0);
  store.putKey('secret', true);
  assert.ok(store.keyIsKept());
  assert.equal(tab.length, 0);
  store.putKey('', false);
  assert.equal(store.key(), '');
});

test('a request: only what was set, calls with their results, failed answers left out', () => {
  const conversation = { messages: [
    { role: 'user', content: 'a' },
    { role: 'assistant', content: '', calls: [], error: { message: 'lost' } },
    { role: 'assistant', content: 'b', reasoning: 'r', calls: [{ id: 'call_0', name: 'f', args: '{}', result: '1' }, { id: 'call_1', name: 'g', args: '{}' }] }] };
  const body = chatRequest(conversation, { system: ' ', temperature: 0, thinking: '', tools: [], speculate: true });
  assert.deepEqual(body.messages.map((m) => m.role), ['user', 'assistant', 'tool', 'tool']);
  assert.equal(body.messages[1].reasoning_content, 'r');
  assert.equal(body.messages[1].tool_calls[0].function.arguments, '{}');
  assert.equal(body.messages[2].content, '1');
  assert.deepEqual(Object.keys(body).sort(), ['messages', 'return_progress', 'return_tokens', 'stream', 'stream_options', 'temperature']);
  const thinks = chatRequest({ messages: [] }, { system: 's', thinking: '256', speculate: false });
  assert.equal(thinks.thinking_budget, 256);
  assert.equal(thinks.speculate, false);
  assert.equal(thinks.messages[0].role, 'system');
});

// ---- Markdown.

// The tree as compact text.
function brief(nodes) {
  return nodes.map((n) => {
    if (typeof n === 'string') return n;
    switch (n.type) {
      case 'code': return n.language === undefined ? `<c>${n.text}</c>` : `[code ${n.language}: ${n.text}]`;
      case 'break': return '<br>';
      case 'link': return `<a ${n.href}>${brief(n.children)}</a>`;
      case 'strong': case 'em': case 'del': return `<${n.type}>${brief(n.children)}</${n.type}>`;
      case 'paragraph': return `[p ${brief(n.inline)}]`;
      case 'heading': return `[h${n.level} ${brief(n.inline)}]`;
      case 'quote': return `[q ${brief(n.blocks)}]`;
      case 'rule': return '[hr]';
      case 'list': return `[${n.start ?? '-'} ${n.items.map((i) => `(${i.task === null ? '' : i.task ? 'x ' : 'o '}${brief(i.blocks)})`).join('')}]`;
      case 'table': return `[table ${n.align.map((a) => a ?? '').join('|')} ${[n.head, ...n.rows].map((r) => r.map(brief).join('|')).join(' / ')}]`;
      default: throw new Error(`unknown ${n.type}`);
    }
  }).join('');
}
const markdown = (text) => brief(parseMarkdown(text));

test('Markdown: blocks', () => {
  for (const [text, tree] of [
    ['# One #\ntext\ngoes on\n\nmore', '[h1 One][p text\ngoes on][p more]'],
    ['#hashtag', '[p #hashtag]'],
    ['## C#', '[h2 C#]'],
    ['```py title\nx = 1\n\n  y\n```\nafter', '[code py: x = 1\n\n  y][p after]'],
    ['```\nnot closed', '[code : not closed]'],
    ['~~~~\n```\n~~~\n~~~~', '[code : ```\n~~~]'],
    ['- a\n- b\n  - c\n\n    more c\n- d', '[- ([p a])([p b][- ([p c][p more c])])([p d])]'],
    ['1. a\n  - sloppy\n2. b\n\n3. c', '[1 ([p a][- ([p sloppy])])([p b])([p c])]'],
    ['7) a', '[7 ([p a])]'],
    ['- a\n* b', '[- ([p a])][- ([p b])]'],
    ['- [ ] a\n- [x] b', '[- (o [p a])(x [p b])]'],
    ['- a\nlazy\n\nout', '[- ([p a\nlazy])][p out]'],
    ['- a\n\n  ```sh\n  ls\n  ```', '[- ([p a][code sh: ls])]'],
    ['> a\nlazy\n> - b\n>\n> c\n\nd', '[q [p a\nlazy][- ([p b])][p c]][p d]'],
    ['text\n> quote', '[p text][q [p quote]]'],
    ['***\n- - -', '[hr][hr]'],
    ['| a | b |\n|:--|--:|\n| 1 | `x|y` |\n| 2 \\| 3 |\n\nend', '[table left|right a|b / 1|<c>x|y</c> / 2 | 3|][p end]'],
    ['a | b\n--- | ---\nc | d', '[table | a|b / c|d]'],
    ['a | b\n---', '[p a | b][hr]'],
    ['one  \ntwo\\\nthree', '[p one<br>two<br>three]'],
    ['\r\n\r\na\r\nb', '[p a\nb]'],
    ['', ''],
  ]) assert.equal(markdown(text), tree, JSON.stringify(text));
});

test('Markdown: inside of paragraphs', () => {
  for (const [text, tree] of [
    ['**b** *i* _i_ __b__ ~~d~~ `c`', '<strong>b</strong> <em>i</em> <em>i</em> <strong>b</strong> <del>d</del> <c>c</c>'],
    ['***both*** **a *b* c**', '<em><strong>both</strong></em> <strong>a <em>b</em> c</strong>'],
    ['snake_case_name and 2 * 3 * 4', 'snake_case_name and 2 * 3 * 4'],
    ['**open and *half*', '**open and <em>half</em>'],
    ['`` a`b `` and `un', '<c>a`b</c> and `un'],
    ['`**not bold**`', '<c>**not bold**</c>'],
    ['\\*plain\\* \\a', '*plain* \\a'],
    ['[text](https://a.example/x_(y) "t") [**b**](<https://b.example/>)', '<a https://a.example/x_(y)>text</a> <a https://b.example/><strong>b</strong></a>'],
    ['![alt](https://a.example/i.png) Wow![1]', '<a https://a.example/i.png>alt</a> Wow![1]'],
    ['see https://a.example/p?q=1. (https://b.example/c)', 'see <a https://a.example/p?q=1>https://a.example/p?q=1</a>. (<a https://b.example/c>https://b.example/c</a>)'],
    ['<https://a.example> <mailto:a@b.example> <b>x</b>', '<a https://a.example>https://a.example</a> <a mailto:a@b.example>a@b.example</a> <b>x</b>'],
    ['[a](javascript:alert(1)) [b](data:text/html,x) [c](/v1/models) [d](//e.example)', '[a](javascript:alert(1)) [b](data:text/html,x) [c](/v1/models) [d](//e.example)'],
    ['a[0](x) and [note]', 'a[0](x) and [note]'],
    ['日本**語**です', '日本<strong>語</strong>です'],
  ]) assert.equal(markdown(text), `[p ${tree}]`, text);
});

test('links lead to the web and to mail alone', () => {
  for (const bad of ['javascript:alert(1)', 'JAVASCRIPT:x', 'java\nscript:x', ' javascript:x', 'data:text/html,x', 'vbscript:x', 'file:///etc/passwd', '//a.example', '/x', 'x', 'https:///x', 'blob:https://a'])
    assert.equal(safeTarget(bad), null, bad);
  for (const good of ['https://a.example', 'http://a.example/x', 'HTTPS://A.example', 'mailto:a@b.example']) assert.ok(safeTarget(good), good);
});

// All text of a tree, marks left out.
const words = (nodes) => nodes.map((n) => typeof n === 'string' ? n : (n.text ?? '') +
  words([...(n.inline ?? []), ...(n.children ?? []), ...(n.blocks ?? []), ...(n.items ?? []).flatMap((i) => i.blocks), ...(n.head ?? []).flat(), ...(n.rows ?? []).flat(2)])).join(' ');

test('Markdown: a text that grows is always readable, and equal sources give equal blocks', () => {
  const text = '# T\n\nSome **bold *and* more** text\n\n- a\n  1. b\n\n```js\nlet x;\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> q\n> r\n\nend https://a.example [x](https://b.example)';
  const known = new Map();
  for (let n = 0; n <= text.length; ++n) {
    for (const block of parseMarkdown(text.slice(0, n))) {
      const { source, ...rest } = block;
      const tree = JSON.stringify(rest);
      assert.equal(known.get(source) ?? tree, tree, `${JSON.stringify(source)} after ${n} characters`);
      known.set(source, tree);
    }
  }
});

test('Markdown: no word is lost and nothing takes long, whatever the text', () => {
  let state = 12345;
  const random = (n) => { state = (Math.imul(state, 1664525) + 1013904223) >>> 0; return Math.floor(state / 4294967296 * n); };
  const parts = ['*', '**', '_', '`', '```\n', '~~', '[', '](', ')', 'https://e.x/', '\n', '\n\n', '- ', '1. ', '> ', '|', '|-|-|\n', '# ', '\\', '!', '<', '>', ' ', '  ', 'é', '😀', 'w1', 'w2', 'w3'];
  for (let i = 0; i < 1500; ++i) {
    let text = '';
    for (let k = random(60); k > 0; --k) text += parts[random(parts.length)];
    const shown = words(parseMarkdown(text));
    // Info strings of fences and surplus cells are not shown; targets of links are not text.
    if (/```|~~~|\|/.test(text)) continue;
    for (const word of text.replace(/\]\([^)]*/g, '').match(/w\d/g) ?? []) assert.ok(shown.includes(word), `${word} of ${JSON.stringify(text)}`);
  }
  const begin = process.cpuUsage().user;  // others may use the machine
  for (const piece of ['*a ', '**', '* ', '_a*', '[', '[a](', '](', '`', '`a``', '> ', '- ', '  - a\n', '> - ', '|', '|a|\n|-|\n', '<', 'https://a.b/', 'https://a.b/)', '\\', '# ', '#', '~~~\n', ' ', '\n', '~~a', '![', '(', '*a_b`c[d](e '])
    parseMarkdown(piece.repeat(Math.ceil(60_000 / piece.length)));
  const took = (process.cpuUsage().user - begin) / 1000;
  assert.ok(took < 20000, `${took} ms for 1.6 million hostile characters`);
});

test('colours keep every character', () => {
  const text = 'def f(x):  # "c"\n  return "a\\"b" + \'c\' + 0x1f + 1.5e-3 # é\nSELECT * FROM t -- c\n<a href="x">/* c */ // d\n`t`\n"open';
  for (const language of ['', 'python', 'js', 'c++', 'sql', 'html', 'json', 'sh', 'unknown', 'toml']) {
    const pieces = highlight(text, language);
    assert.equal(pieces.map(([, piece]) => piece).join(''), text, language);
  }
  const kinds = Object.fromEntries(highlight('return "s" // c\n12', 'js').map(([kind, piece]) => [piece, kind]));
  assert.deepEqual([kinds.return, kinds['"s"'], kinds['// c'], kinds['12']], ['word', 'string', 'comment', 'number']);
  const begin = process.cpuUsage().user;
  for (const piece of ['"', "'", '/*', '//', '`\\', 'a', '<!--', '0x']) for (const language of ['js', 'python', 'html', 'sql']) highlight(piece.repeat(20_000), language);
  assert.ok((process.cpuUsage().user - begin) / 1000 < 10000);
});
