// The page: one conversation on the screen, one answer at a time, dialogs and the list of conversations.
import { AnswerView, userElement } from './answer.js';
import { chatRequest, checkReady, getModel, ServerError, streamChat } from './api.js';
import { Pace, TokenRun, tokensPerCycle } from './drafts.js';
import { Store } from './store.js';
import { h, icon } from './view.js';

const $ = (id) => document.getElementById(id);
const store = new Store(storageOf('localStorage'), storageOf('sessionStorage'));
let settings = store.settings();
let conversation = newConversation();
let running = null;       // {controller, message, view, waiting, run, pace}
let views = [];           // of the messages on the screen
let model = null;
let frame = 0;

function storageOf(name) {
  try {
    return window[name];
  } catch {
    return null;  // the browser keeps nothing
  }
}

function newConversation() {
  return { id: `${Date.now().toString(36)}${Math.random().toString(36).slice(2, 8)}`, title: '', updated: Date.now(), messages: [] };
}

// Said by screen readers: all texts of one frame together. Emptied first, so that equal texts are said again.
let toSay = [];
function announce(text) {
  if (toSay.push(text) > 1) return;
  $('spoken').textContent = '';
  requestAnimationFrame(() => {
    $('spoken').textContent = toSay.join('\n');
    toSay = [];
  });
}

// ---- The conversation on the screen.

function showConversation() {
  views = conversation.messages.map(viewOf);
  $('log').replaceChildren(...views.map((v) => v.element));
  $('welcome').hidden = conversation.messages.length > 0;
  document.title = conversation.title ? `${conversation.title} · Foretoken` : 'Foretoken';
  for (const view of views) view.update?.(null, view === views.at(-1));
  showList();
  showButtons();
  toEnd();
}

function viewOf(message) {
  if (message.role === 'user') return { element: userElement(message) };
  return new AnswerView(message, { announce, again: () => again(message), results: () => answer() });
}

function append(message) {
  conversation.messages.push(message);
  const view = viewOf(message);
  for (const other of views) other.update?.(null, false);
  views.push(view);
  $('log').append(view.element);
  $('welcome').hidden = true;
  return view;
}

function save() {
  conversation.updated = Date.now();
  const first = conversation.messages.find((m) => m.role === 'user')?.content ?? '';
  conversation.title = first.trim().replace(/\s+/g, ' ').slice(0, 80);
  document.title = `${conversation.title} · Foretoken`;
  keep(conversation);
  showList();
}
function keep(one) {
  $('not-kept').hidden = store.put(one);
}

// ---- Asking.

function ask() {
  const text = $('prompt').value.trim();
  if (!text || running) return;
  $('prompt').value = '';
  fitPrompt();
  append({ role: 'user', content: text });
  save();
  answer();
}

async function again(message) {
  if (running) return;
  conversation.messages.splice(conversation.messages.indexOf(message));
  showConversation();
  await answer();
}

async function answer() {
  const request = chatRequest(conversation, { ...settings, thinking: $('thinking').value });
  const id = Math.random().toString(36).slice(2);
  const message = { role: 'assistant', id, content: '', reasoning: '', calls: [], counts: {}, figures: null };
  const begin = performance.now();
  running = { controller: new AbortController(), message, view: append(message), waiting: 'Waiting', run: new TokenRun(), pace: new Pace(begin), begin, of: conversation };
  showButtons();
  toEnd();
  draw();
  announce('The answer begins.');
  const { controller, run } = running;
  try {
    for await (const chunk of streamChat(request, { key: store.key(), signal: controller.signal })) take(chunk);
  } catch (error) {
    if (error.name === 'AbortError') message.stopped = true;
    else failed(message, error);
  }
  run.flush();
  showTokens(message, run);
  const { view, of } = running;
  running = null;
  cancelAnimationFrame(frame);
  frame = 0;
  const spoken = view.update(null, true);
  if (of === conversation) save();
  else keep(of);
  showButtons();
  stick();
  announce([...spoken, message.error?.message ?? (message.stopped ? 'Stopped.' : 'The answer is complete.')].join('\n'));
}

function failed(message, error) {
  if (!(error instanceof ServerError)) console.error(error);
  const wait = error.retryAfter > 1 ? `. Ask again in ${error.retryAfter} s.` : '';
  const words = (error instanceof ServerError && error.message) || 'The page could not read the answer.';
  message.error = { message: words[0].toUpperCase() + words.slice(1) + wait, code: error.code ?? '' };
  if (error.status === 401) askForKey();
  if (error.code === 'unreachable' || error.status === 503) watchServer(0);
}

// One chunk of the stream into the message.
function take(chunk) {
  const { message: m, run, pace } = running;
  const choice = chunk.choices?.[0];
  if (chunk.prompt_progress) {
    const { total, processed } = chunk.prompt_progress;
    running.waiting = processed > 0 && processed < total ? `Reading, ${Math.round((100 * processed) / total)} %` : running.waiting;
  }
  if (choice?.tokens?.length) {
    run.add(choice.tokens);
    pace.saw(run.count, performance.now());
  }
  const delta = choice?.delta ?? {};
  if (delta.reasoning_content) m.reasoning += delta.reasoning_content;
  if ((delta.content || delta.tool_calls) && m.reasoning && m.thoughtS === undefined) m.thoughtS = (performance.now() - running.begin) / 1000;
  if (delta.content) m.content += delta.content;
  for (const part of delta.tool_calls ?? []) {
    const call = (m.calls[part.index] ??= { id: '', name: '', args: '' });
    if (part.id) call.id = part.id;
    call.name += part.function?.name ?? '';
    call.args += part.function?.arguments ?? '';
  }
  if (choice?.finish_reason) m.reason = choice.finish_reason;
  if (chunk.usage) running.tokens = chunk.usage.completion_tokens;
  if (chunk.foretoken) running.exact = chunk.foretoken;
  draw();
}

// What is known of the tokens, into the message: estimates while it grows, the server's own figures at its end.
function showTokens(m, run) {
  const exact = running.exact;
  Object.assign(m, { pieces: run.pieces, routes: run.routes, counts: { ...run.counts } });
  m.figures = {
    tokens: running.tokens ?? run.count,
    firstTokenS: running.pace.firstTokenS,
    tokensPerSecond: exact?.timing?.decode_tok_s ?? running.pace.tokensPerSecond(run.count),
    tokensPerCycle: exact?.speculation?.tokens_per_cycle ?? tokensPerCycle(run.counts),
  };
}

// At most once a frame; frames do not come while the page is hidden, and need not.
function draw() {
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    if (!running) return;
    showTokens(running.message, running.run);
    const spoken = running.view.update({ waiting: running.waiting }, true);
    if (spoken.length) announce(spoken.join('\n'));
    stick();
  });
}

function stop() { running?.controller.abort(); }

// ---- Scrolling: the end stays in sight unless the reader went up.

let atEnd = true;
function stick() {
  if (atEnd) $('scroller').scrollTop = $('scroller').scrollHeight;
  showToEnd();
}
function toEnd() {
  atEnd = true;
  stick();
}
function showToEnd() {
  const s = $('scroller');
  $('to-end').hidden = s.scrollHeight - s.scrollTop - s.clientHeight < 160;
}
$('scroller').addEventListener('scroll', () => {
  const s = $('scroller');
  atEnd = s.scrollHeight - s.scrollTop - s.clientHeight < 48;
  showToEnd();
}, { passive: true });
$('to-end').addEventListener('click', () => {
  toEnd();
  $('prompt').focus();
});

// ---- The field.

function fitPrompt() {
  const area = $('prompt');
  area.style.height = 'auto';
  area.style.height = `${area.scrollHeight}px`;
  showButtons();
}
function showButtons() {
  const stopHadFocus = document.activeElement === $('stop');
  $('send').hidden = Boolean(running);
  $('stop').hidden = !running;
  $('send').disabled = $('prompt').value.trim() === '';
  if (stopHadFocus && !running) $('prompt').focus();
}
$('prompt').addEventListener('input', fitPrompt);
$('prompt').addEventListener('keydown', (event) => {
  const touch = matchMedia('(pointer: coarse)').matches && !matchMedia('(any-pointer: fine)').matches;
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing || touch) return;
  event.preventDefault();
  ask();
});
$('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  ask();
});
$('stop').addEventListener('click', stop);
document.addEventListener('keydown', (event) => {
  if (event.key !== 'Escape' || document.querySelector('dialog[open]')) return;
  if ($('sidebar').classList.contains('shown')) showSidebar(false);
  else stop();
});
$('thinking').value = settings.thinking ?? '';
$('thinking').addEventListener('change', () => {
  settings = { ...settings, thinking: $('thinking').value };
  store.putSettings(settings);
});

// ---- Conversations.

function showList() {
  const list = store.list();
  $('no-conversations').hidden = list.length > 0;
  $('conversations').replaceChildren(...list.map(({ id, title }) => h('li', {},
    h('button', { type: 'button', class: 'open', 'aria-current': id === conversation.id ? 'true' : null, title, onclick: () => openConversation(id) }, title || 'Untitled'),
    h('button', { type: 'button', class: 'icon-button delete', 'aria-label': `Delete: ${title}`, onclick: () => deleteConversation(id, title) }, icon('delete')))));
}
function openConversation(id) {
  if (id === conversation.id) return showSidebar(false);
  stop();
  conversation = (running?.of.id === id ? running.of : store.get(id)) ?? newConversation();
  showConversation();
  showSidebar(false);
  $('prompt').focus();
}
function startNew() {
  stop();
  conversation = newConversation();
  showConversation();
  showSidebar(false);
  $('prompt').focus();
}
async function deleteConversation(id, title) {
  if (!await confirmed(`Delete “${title}”?`)) return;
  store.remove(id);
  if (id === conversation.id) startNew();
  else showList();
  $('new-chat').focus();
}
function confirmed(text) {
  $('confirm-text').textContent = text;
  $('confirm').returnValue = 'no';
  $('confirm').showModal();
  return new Promise((resolve) => $('confirm').addEventListener('close', () => resolve($('confirm').returnValue === 'yes'), { once: true }));
}

const narrow = matchMedia('(max-width: 56rem)');
function showSidebar(shown) {
  const was = $('sidebar').classList.contains('shown');
  $('sidebar').classList.toggle('shown', shown && narrow.matches);
  $('sidebar').inert = narrow.matches && !shown;
  $('open-sidebar').setAttribute('aria-expanded', String(shown));
  document.querySelector('main').inert = shown && narrow.matches;
  if (shown) $('close-sidebar').focus();
  else if (was) $('open-sidebar').focus();
}
narrow.addEventListener('change', () => showSidebar(false));
$('open-sidebar').addEventListener('click', () => showSidebar(true));
$('close-sidebar').addEventListener('click', () => showSidebar(false));
$('shade').addEventListener('click', () => showSidebar(false));
$('new-chat').addEventListener('click', startNew);
$('new-chat-bar').addEventListener('click', startNew);
window.addEventListener('storage', (event) => { if (Store.isConversation(event.key)) showList(); });

// ---- Settings and the key.

for (const dialog of document.querySelectorAll('dialog')) {
  dialog.querySelector('[data-close]')?.form.querySelectorAll('[data-close]').forEach((b) => b.addEventListener('click', () => dialog.close()));
}
const numbers = ['temperature', 'top_p', 'seed', 'max_tokens'];
$('open-settings').addEventListener('click', () => {
  const f = $('settings-form').elements;
  for (const name of numbers) f[name].value = settings[name] ?? '';
  f.system.value = settings.system ?? '';
  f.speculate.checked = settings.speculate !== false;
  f.tools.value = settings.tools?.length ? JSON.stringify(settings.tools, null, 2) : '';
  f.key.value = store.key();
  f.remember.checked = store.keyIsKept();
  $('tools-problem').textContent = '';
  $('settings').showModal();
});
$('settings-form').addEventListener('submit', (event) => {
  const f = event.target.elements;
  let tools;
  try {
    tools = toolsOf(f.tools.value);
  } catch (problem) {
    event.preventDefault();
    $('tools-problem').textContent = problem.message;
    f.tools.focus();
    return;
  }
  settings = { thinking: settings.thinking, system: f.system.value, speculate: f.speculate.checked, tools };
  for (const name of numbers) if (f[name].value !== '') settings[name] = Number(f[name].value);
  store.putSettings(settings);
  useKey(f.key.value, f.remember.checked);
});
$('delete-all').addEventListener('click', async () => {
  if (!await confirmed('Delete all conversations of this browser?')) return;
  store.removeAll();
  $('settings').close();
  startNew();
});

$('settings-form').addEventListener('input', () => { $('tools-problem').textContent = ''; });

function toolsOf(text) {
  if (!text.trim()) return [];
  let list;
  try {
    list = JSON.parse(text);
  } catch (error) {
    throw new Error(`The tools are no JSON: ${error.message}`);
  }
  if (!Array.isArray(list) || list.some((t) => typeof t?.function?.name !== 'string'))
    throw new Error('The tools must be a list of {"type": "function", "function": {"name": ..., "parameters": ...}}.');
  return list;
}

function useKey(key, keep) {
  const before = store.key();
  store.putKey(key.trim(), keep);
  if (before !== store.key()) watchServer(0);
}
function askForKey() {
  if (document.querySelector('dialog[open]')) return;
  $('key-problem').textContent = store.key() ? 'The server did not take the key it was given.' : '';
  $('key-form').elements.remember.checked = store.keyIsKept();
  $('key-dialog').showModal();
}
$('key-form').addEventListener('submit', (event) => {
  useKey(event.target.elements.key.value, event.target.elements.remember.checked);
  event.target.elements.key.value = '';
  const last = conversation.messages.at(-1);
  if (last?.error?.code === 'invalid_api_key') again(last);
});

// ---- The server: looked at now and then, more often while it is not ready.

let watch = 0;
function watchServer(seconds) {
  clearTimeout(watch);
  watch = setTimeout(lookAtServer, seconds * 1000);
}
function showServer(state, text) {
  $('server-dot').className = `dot ${state}`;
  if ($('server-text').textContent !== text) $('server-text').textContent = text;
  $('server').title = text;
}
async function lookAtServer() {
  if (document.hidden) return watchServer(5);
  try {
    await checkReady();
    model = await getModel(store.key());
    showServer('ready', model.id);
    if (model.max_model_len) $('server').title = `${model.id}, ${model.max_model_len.toLocaleString('en')} tokens of context`;
    watchServer(15);
  } catch (error) {
    if (error.status === 401) {
      showServer('pending', 'Key needed');
      askForKey();
      return watchServer(60);
    }
    if (error.status === 503) showServer('pending', error.code === 'draining' ? 'Shutting down' : 'Getting ready');
    else showServer('down', error.code === 'unreachable' ? 'Not reachable' : error.message);
    watchServer(2);
  }
}

// ---- The beginning: the conversation that was last, where there is one.

showSidebar(false);
const newest = store.list()[0];
if (newest) conversation = store.get(newest.id) ?? conversation;
showConversation();
watchServer(0);
if (!matchMedia('(pointer: coarse)').matches) $('prompt').focus();
