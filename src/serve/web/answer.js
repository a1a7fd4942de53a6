// One message of the conversation as elements, and an answer that grows. It knows no server and no storage.
//
// A message: {role: 'user', content} or {role: 'assistant', content, reasoning, calls: [{id, name, args, result}], pieces, routes, counts,
// figures, thoughtS, reason, error: {message, code}, stopped}.
import { draftedCount } from './drafts.js';
import { copyButton, DraftsView, h, icon, MarkdownView } from './view.js';

export function userElement(message) {
  return h('article', { class: 'message user' }, h('h2', { class: 'hidden' }, 'You'), h('div', { class: 'bubble' }, message.content));
}

const number = (value, digits) => value.toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits });

function figureElements(figures, counts) {
  const shown = [];
  const put = (value, words) => shown.push(h('div', {}, h('dt', {}, words), h('dd', {}, value)));
  if (figures.tokensPerSecond) put(number(figures.tokensPerSecond, figures.tokensPerSecond < 10 ? 1 : 0), 'tokens/s');
  if (figures.tokensPerCycle) put(number(figures.tokensPerCycle, 2), 'tokens/cycle');
  if (figures.tokens) put(number(figures.tokens, 0), figures.tokens === 1 ? 'token' : 'tokens');
  const drafted = draftedCount(counts);
  if (figures.tokens && counts) put(`${Math.round((100 * drafted) / figures.tokens)} %`, 'drafted');
  if (figures.firstTokenS) put(`${number(figures.firstTokenS, figures.firstTokenS < 10 ? 2 : 0)} s`, 'to the first token');
  return shown;
}

// Arguments as JSON with line breaks, or as they are where they are not JSON yet.
function pretty(args) {
  try {
    return JSON.stringify(JSON.parse(args), null, 2);
  } catch {
    return args;
  }
}

export class AnswerView {
  element = h('article', { class: 'message assistant' });
  #message;
  #actions;
  #text;
  #thinking = null;
  #calls = h('div', { class: 'calls' });
  #end = h('div', {});
  #strip;
  #drafts = new DraftsView();
  #shown = [null, false];   // update's last arguments
  #foldedByUser = false;
  #thoughtShown = -1;

  // `actions`: {announce(text), again(), results(message)}.
  constructor(message, actions) {
    this.#message = message;
    this.#actions = actions;
    this.#text = new MarkdownView(actions.announce);
    this.#strip = this.#makeStrip();
    this.element.append(h('h2', { class: 'hidden' }, 'Answer'), this.#text.element, this.#calls, this.#end, this.#strip.element, this.#drafts.element);
  }

  // `running`: null, or {waiting: what it waits for, or ''}. `last`: of the conversation. Gives the texts that are worth saying aloud.
  update(running, last) {
    const m = this.#message;
    this.#shown = [running, last];
    this.element.setAttribute('aria-busy', String(Boolean(running)));
    this.#showThinking(running);
    const spoken = this.#text.show(m.content, !running);
    this.#showCalls(running);
    this.#showEnd(running, last);
    this.#showStrip(running, last);
    return spoken;
  }

  #showThinking(running) {
    const m = this.#message;
    if (!m.reasoning) return;
    if (!this.#thinking) {
      const words = h('span', {}), text = h('div', {});
      const details = h('details', { class: 'thinking', open: Boolean(running) }, h('summary', { onclick: () => { this.#foldedByUser = true; } }, icon('fold'), words), text);
      this.#thinking = { words, text, details };
      this.#text.element.before(details);
    }
    const t = this.#thinking;
    if (this.#thoughtShown !== m.reasoning.length) t.text.textContent = m.reasoning;
    this.#thoughtShown = m.reasoning.length;
    const still = running && !m.content && !m.calls.length;
    t.words.textContent = still ? 'Thinking' : m.thoughtS >= 1 ? `Thought for ${Math.round(m.thoughtS)} s` : 'Thought';
    if (!still && !this.#foldedByUser) t.details.open = false;
  }

  #showCalls(running) {
    const m = this.#message;
    const key = m.calls.map((c) => `${c.name} ${c.args.length} ${c.result ?? ''}`).join() + Boolean(running);
    if (this.#calls.dataset.key === key) return;
    this.#calls.dataset.key = key;
    const open = !running && m.calls.length > 0 && m.calls.every((c) => c.result === undefined);
    this.#calls.replaceChildren(...m.calls.map((call, i) => {
      const section = h('section', { class: 'call', 'aria-label': `Call of ${call.name}` }, h('h3', {}, icon('tool'), h('span', {}, 'Calls ', h('code', {}, call.name))),
        h('pre', { tabindex: '0', role: 'region', 'aria-label': `Arguments of ${call.name}` }, h('code', {}, running ? call.args : pretty(call.args))));
      if (call.result !== undefined) section.append(h('pre', { class: 'result', tabindex: '0', role: 'region', 'aria-label': `Result of ${call.name}` }, call.result));
      if (open) {
        const id = `result-${m.id}-${i}`;
        section.append(h('label', { for: id }, 'Result'), h('textarea', { id, rows: '2', spellcheck: 'false' }));
      }
      return section;
    }), ...(open ? [h('button', { type: 'button', class: 'button primary send-results', onclick: () => this.#sendResults() }, m.calls.length > 1 ? 'Send the results' : 'Send the result')] : []));
  }
  #sendResults() {
    const fields = this.#calls.querySelectorAll('textarea');
    this.#message.calls.forEach((call, i) => { call.result = fields[i].value; });
    this.#actions.results(this.#message);
  }

  #showEnd(running, last) {
    const m = this.#message;
    const parts = [];
    if (running?.waiting && !m.content && !m.reasoning && !m.calls.length) parts.push(h('p', { class: 'waiting' }, running.waiting));
    if (!running) {
      if (m.stopped) parts.push(h('p', { class: 'note' }, 'Stopped.'));
      else if (m.reason === 'length') parts.push(h('p', { class: 'note' }, 'The answer reached its limit of tokens.'));
      else if (!m.error && !m.content && !m.calls.length) parts.push(h('p', { class: 'note' }, 'The answer is empty.'));
      if (m.error) parts.push(h('div', { class: 'failure' }, h('p', {}, m.error.message),
        last ? h('button', { type: 'button', class: 'button', onclick: () => this.#actions.again() }, 'Try again') : null));
    }
    if (parts.map((p) => p.textContent).join('\n') !== this.#end.textContent || !running) this.#end.replaceChildren(...parts);
  }

  #showStrip(running, last) {
    const m = this.#message, s = this.#strip;
    s.figures.replaceChildren(...(m.figures ? figureElements(m.figures, m.counts) : []));
    s.copy.hidden = Boolean(running) || !m.content;
    s.again.hidden = Boolean(running) || !last || Boolean(m.error);
    s.drafts.hidden = !m.pieces?.length;
    this.#drafts.element.hidden = s.drafts.hidden || s.drafts.getAttribute('aria-pressed') !== 'true';
    if (!this.#drafts.element.hidden) this.#drafts.show(m.pieces, m.routes, m.counts);
  }
  // The buttons stay the same while an answer grows, so that they can be used meanwhile.
  #makeStrip() {
    const figures = h('dl', { class: 'figures' });
    const copy = copyButton('Copy answer', () => this.#message.content, this.#actions.announce);
    const again = h('button', { type: 'button', class: 'small-button', 'aria-label': 'Answer again', onclick: () => this.#actions.again() }, icon('again'), h('span', {}, 'Again'));
    const drafts = h('button', { type: 'button', class: 'small-button', 'aria-pressed': 'false', onclick: () => {
      drafts.setAttribute('aria-pressed', String(drafts.getAttribute('aria-pressed') !== 'true'));
      this.#showStrip(...this.#shown);
    } }, icon('drafts'), h('span', {}, 'Drafted tokens'));
    return { figures, copy, again, drafts, element: h('div', { class: 'strip' }, figures, h('div', { class: 'actions' }, copy, again, drafts)) };
  }
}
