// The server's API as the page uses it. It knows no DOM.
import { EventReader } from './sse.js';

export class ServerError extends Error {
  // `code`: the server's, or 'unreachable' and 'cut_off' where it said nothing.
  constructor(message, { status = 0, code = '', retryAfter = 0 } = {}) {
    super(message);
    Object.assign(this, { status, code, retryAfter });
  }
}

function headers(key) {
  return { 'content-type': 'application/json', ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

async function send(route, options) {
  let response;
  try {
    response = await fetch(route, { cache: 'no-store', credentials: 'omit', ...options });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ServerError('The server does not answer.', { code: 'unreachable' });
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new ServerError(body.error?.message ?? `The server answered with status ${response.status}.`,
    { status: response.status, code: body.error?.code ?? '', retryAfter: Number(response.headers.get('retry-after')) || 0 });
}

// The served model: {id, max_model_len}.
export async function getModel(key) {
  const list = await (await send('v1/models', { headers: headers(key) })).json();
  return list.data[0];
}

// Whether requests can be answered now; throws what the server says otherwise.
export async function checkReady() {
  await send('ready', {});
}

// The chunks of one streamed chat completion.
export async function* streamChat(body, { key, signal }) {
  const response = await send('v1/chat/completions', { method: 'POST', headers: headers(key), body: JSON.stringify(body), signal });
  const events = new EventReader();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    let piece;
    try {
      piece = await reader.read();
    } catch (error) {
      if (error.name === 'AbortError') throw error;
      throw new ServerError('The connection broke off.', { code: 'cut_off' });
    }
    if (piece.done) throw new ServerError('The answer broke off.', { code: 'cut_off' });
    for (const data of events.push(piece.value)) {
      if (data === '[DONE]') return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(chunk.error.message, { status: 503, code: chunk.error.code ?? '' });
      yield chunk;
    }
  }
}

// `conversation` and `settings` to a request's body.
export function chatRequest(conversation, settings) {
  const messages = [];
  if (settings.system?.trim()) messages.push({ role: 'system', content: settings.system });
  for (const m of conversation.messages) {
    if (m.role === 'user') messages.push({ role: 'user', content: m.content });
    if (m.role !== 'assistant' || m.error && !m.content && !m.calls?.length) continue;
    const out = { role: 'assistant', content: m.content };
    if (m.reasoning) out.reasoning_content = m.reasoning;
    if (m.calls?.length) out.tool_calls = m.calls.map(({ id, name, args }) => ({ id, type: 'function', function: { name, arguments: args } }));
    messages.push(out);
    for (const call of m.calls ?? []) messages.push({ role: 'tool', tool_call_id: call.id, content: call.result ?? 'No result was given.' });
  }
  const body = { messages, stream: true, stream_options: { include_usage: true }, return_tokens: true, return_progress: true };
  for (const name of ['temperature', 'top_p', 'seed', 'max_tokens']) if (Number.isFinite(settings[name])) body[name] = settings[name];
  if (settings.tools?.length) body.tools = settings.tools;
  if (settings.speculate === false) body.speculate = false;
  if (settings.thinking === 'on' || settings.thinking === 'off') body.chat_template_kwargs = { enable_thinking: settings.thinking === 'on' };
  else if (settings.thinking) Object.assign(body, { chat_template_kwargs: { enable_thinking: true }, thinking_budget: Number(settings.thinking) });
  return body;
}
