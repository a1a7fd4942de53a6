// Markdown to a tree of plain objects; view.js makes elements of it. HTML in it is text, images are links, and links lead to the web or
// to mail alone. Time is near linear in the text's length, whatever the text. It knows no DOM.
//
// Blocks: {type: 'heading', level, inline} {type: 'paragraph', inline} {type: 'code', language, text} {type: 'quote', blocks}
//   {type: 'list', start (null: bullets), items: [{task (null: none), blocks}]} {type: 'table', align, head, rows} {type: 'rule'}
// Inline: a string, or {type: 'code', text} {type: 'break'} {type: 'strong'|'em'|'del', children} {type: 'link', href, children}
import { parseInline } from './inline.js';

const kDeepest = 10;  // quotes and lists inside each other; what lies deeper is text

const kFence = /^( {0,3})(`{3,}|~{3,})([^`]*)$/;
const kHeading = /^ {0,3}(#{1,6})(?: |$)/;
const kRule = /^ {0,3}(?:(?:\* *){3,}|(?:- *){3,}|(?:_ *){3,})$/;
const kQuote = /^ {0,3}> ?/;
const kItem = /^( {0,3})([-*+]|\d{1,9}[.)])(?:( +)(.*))?$/;
const kTableRule = /^\|?(?: *:?-+:? *\|)* *:?-+:? *\|?$/;

// Blocks of the whole text. Each has `source`, the lines it was made of: equal sources give equal blocks.
export function parseMarkdown(text) {
  return blocksOf(text.replace(/\r\n?/g, '\n').replace(/\t/g, '    ').split('\n'), 0);
}

function blocksOf(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at].trim() === '') { ++at; continue; }
    const [block, end] = blockAt(lines, at, depth);
    block.source = lines.slice(at, end).join('\n');
    blocks.push(block);
    at = end;
  }
  return blocks;
}

// The block that begins at line `at`, and the line behind it.
function blockAt(lines, at, depth) {
  const line = lines[at];
  const fence = kFence.exec(line);
  if (fence) return codeAt(lines, at, fence);
  const heading = kHeading.exec(line);
  if (heading) return [{ type: 'heading', level: heading[1].length, inline: parseInline(headingText(line.slice(heading[0].length))) }, at + 1];
  if (kRule.test(line)) return [{ type: 'rule' }, at + 1];
  if (depth < kDeepest) {
    if (kQuote.test(line)) return quoteAt(lines, at, depth);
    if (kItem.test(line)) return listAt(lines, at, depth);
  }
  if (tableBegins(lines, at)) return tableAt(lines, at);
  return paragraphAt(lines, at, depth);
}

// Without the marks that may close a heading.
function headingText(rest) {
  const text = rest.trim();
  let end = text.length;
  while (text[end - 1] === '#') --end;
  return end === 0 || text[end - 1] === ' ' ? text.slice(0, end).trimEnd() : text;
}

const interrupts = (line, depth) =>
  kFence.test(line) || kHeading.test(line) || kRule.test(line) || (depth < kDeepest && (kQuote.test(line) || /^ {0,3}(?:[-*+]|\d{1,9}[.)]) +\S/.test(line)));

function paragraphAt(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() !== '' && !interrupts(lines[end], depth) && !tableBegins(lines, end)) ++end;
  const text = lines.slice(at, end).map((l) => l.replace(/^ +/, '')).join('\n').trimEnd();
  return [{ type: 'paragraph', inline: parseInline(text) }, end];
}

function codeAt(lines, at, [, indent, mark, info]) {
  const closing = new RegExp(`^ {0,3}${mark[0]}{${mark.length},}\\s*$`);
  let end = at + 1;
  while (end < lines.length && !closing.test(lines[end])) ++end;
  const text = lines.slice(at + 1, end).map((l) => (indent ? l.replace(new RegExp(`^ {0,${indent.length}}`), '') : l)).join('\n');
  return [{ type: 'code', language: info.trim().split(/[\s{]/)[0].slice(0, 40), text }, Math.min(end + 1, lines.length)];
}

function quoteAt(lines, at, depth) {
  const inner = [];
  let end = at;
  for (; end < lines.length && lines[end].trim() !== ''; ++end) {
    const marked = kQuote.test(lines[end]);
    if (!marked && (inner.at(-1).trim() === '' || interrupts(lines[end], depth))) break;  // a paragraph goes on without its mark
    inner.push(marked ? lines[end].replace(kQuote, '') : lines[end]);
  }
  return [{ type: 'quote', blocks: blocksOf(inner, depth + 1) }, end];
}

const kindOf = (marker) => marker.at(-1);  // - * + . )

function listAt(lines, at, depth) {
  const first = kItem.exec(lines[at]);
  const list = { type: 'list', start: /\d/.test(first[2]) ? Number.parseInt(first[2], 10) : null, items: [] };
  let end = at;
  while (end < lines.length) {
    const item = kItem.exec(lines[end]);
    if (!item || kindOf(item[2]) !== kindOf(first[2]) || kRule.test(lines[end])) break;
    const [inner, next] = itemLines(lines, end, item, depth);
    const task = /^\[([ xX])\]\s+/.exec(inner[0]);
    if (task) inner[0] = inner[0].slice(task[0].length);
    list.items.push({ task: task ? task[1] !== ' ' : null, blocks: blocksOf(inner, depth + 1) });
    end = next;
    let ahead = end;
    while (ahead < lines.length && lines[ahead].trim() === '') ++ahead;
    if (ahead < lines.length && kItem.test(lines[ahead])) end = ahead;  // items with empty lines between them
  }
  return [list, end];
}

// An item's lines without their indentation, and the line behind them. Indentation by two is enough, as models often write it.
function itemLines(lines, at, [, indent, marker, space, rest], depth) {
  const offset = indent.length + marker.length + (space && space.length <= 4 ? space.length : 1);
  const inner = [rest ?? ''];
  let end = at + 1;
  for (; end < lines.length; ++end) {
    const line = lines[end];
    if (line.trim() === '') {
      let ahead = end;
      while (ahead < lines.length && lines[ahead].trim() === '') ++ahead;
      if (ahead === lines.length || indentOf(lines[ahead]) < indent.length + 2) break;
      while (end + 1 < ahead) { inner.push(''); ++end; }
      inner.push('');
      continue;
    }
    const depthOfLine = indentOf(line);
    if (depthOfLine >= indent.length + 2) inner.push(line.slice(Math.min(depthOfLine, offset)));
    else if (kItem.test(line) || interrupts(line, depth) || inner.at(-1).trim() === '') break;
    else inner.push(line);
  }
  return [inner, end];
}

const indentOf = (line) => line.length - line.trimStart().length;

// ---- Tables: a line with bars above a line of dashes.

function tableBegins(lines, at) {
  return at + 1 < lines.length && lines[at].includes('|') && kTableRule.test(lines[at + 1].trim()) && lines[at + 1].includes('-') &&
    cellsOf(lines[at]).length === cellsOf(lines[at + 1]).length;
}

function tableAt(lines, at) {
  const align = cellsOf(lines[at + 1]).map((c) => (c.startsWith(':') ? (c.endsWith(':') ? 'center' : 'left') : c.endsWith(':') ? 'right' : null));
  const row = (line) => {
    const cells = cellsOf(line).slice(0, align.length).map(parseInline);
    while (cells.length < align.length) cells.push([]);
    return cells;
  };
  let end = at + 2;
  const rows = [];
  for (; end < lines.length && lines[end].trim() !== '' && lines[end].includes('|'); ++end) rows.push(row(lines[end]));
  return [{ type: 'table', align, head: row(lines[at]), rows }, end];
}

// Cells between bars; a bar behind a backslash or in a code span is text.
function cellsOf(line) {
  const text = line.trim();
  const cells = [];
  let cell = '', code = false;
  for (let i = text.startsWith('|') ? 1 : 0; i < text.length; ++i) {
    if (text[i] === '\\' && text[i + 1] === '|') {
      cell += '|';
      ++i;
    } else if (text[i] === '|' && !code) {
      cells.push(cell.trim());
      cell = '';
    } else {
      if (text[i] === '`') code = !code && text.indexOf('`', i + 1) > 0;
      cell += text[i];
    }
  }
  if (cell.trim() !== '' || !text.endsWith('|')) cells.push(cell.trim());
  return cells;
}
