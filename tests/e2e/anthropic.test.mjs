// The official Anthropic client against a running server.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import { Server } from './server.mjs';

let server, client;
const model = 'demo-dense';
const messages = [{ role: 'user', content: 'What does the command ls do?' }];

before(async () => {
  server = await Server.start(['--lanes', '2'], { FORETOKEN_API_KEY: 'from-the-environment' });
  client = new Anthropic({ baseURL: server.url, apiKey: 'from-the-environment', maxRetries: 0 });
});
after(async () => { assert.equal((await server.stop()).code, 0); });

const create = (request) => client.messages.create({ model, messages, max_tokens: 40, temperature: 0, ...request });

test('the key is asked for, and never by health', async () => {
  const stranger = new Anthropic({ baseURL: server.url, apiKey: 'wrong', maxRetries: 0 });
  await assert.rejects(stranger.messages.create({ model, messages, max_tokens: 1 }), (e) => e.status === 401 && e.error.error.type === 'authentication_error');
  assert.equal((await server.get('/health')).status, 200);
  assert.equal((await server.get('/status')).status, 401);
});

test('a whole message', async () => {
  const message = await create({});
  assert.equal(message.type, 'message');
  assert.equal(message.content[0].type, 'text');
  assert.ok(message.content[0].text.length > 10);
  assert.ok(['end_turn', 'max_tokens'].includes(message.stop_reason));
  assert.ok(message.usage.output_tokens > 0 && message.usage.input_tokens + message.usage.cache_read_input_tokens > 5);
});

test('a streamed message is the whole one', async () => {
  const whole = await create({});
  const stream = client.messages.stream({ model, messages, max_tokens: 40, temperature: 0 });
  let text = '';
  stream.on('text', (piece) => { text += piece; });
  const final = await stream.finalMessage();
  assert.equal(text, whole.content[0].text);
  assert.equal(final.content[0].text, text);
  assert.equal(final.stop_reason, whole.stop_reason);
  assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
});

test('thinking has blocks and a budget', async () => {
  const request = { thinking: { type: 'enabled', budget_tokens: 1024 }, max_tokens: 300 };
  const whole = await create(request);
  const kinds = whole.content.map((block) => block.type);
  if (kinds.includes('thinking')) assert.equal(kinds[0], 'thinking');
  const final = await client.messages.stream({ model, messages, temperature: 0, ...request }).finalMessage();
  assert.deepEqual(final.content.map((b) => b.thinking ?? b.text), whole.content.map((b) => b.thinking ?? b.text));
});

test('stop sequences are named', async () => {
  const text = (await create({})).content[0].text;
  const stop = text.slice(6, 10);
  const cut = await create({ stop_sequences: [stop] });
  assert.equal(cut.stop_reason, 'stop_sequence');
  assert.equal(cut.stop_sequence, stop);
  assert.equal(cut.content[0].text, text.slice(0, text.indexOf(stop)));
});

test('the answer goes on from a last message of the assistant', async () => {
  const message = await create({ messages: [...messages, { role: 'assistant', content: 'The command ls' }] });
  assert.ok(message.usage.output_tokens > 0);
});

test('tokens are counted as they are used', async () => {
  const counted = await client.messages.countTokens({ model, messages });
  const message = await create({});
  assert.equal(counted.input_tokens, message.usage.input_tokens + message.usage.cache_read_input_tokens);
});

test('errors are the API\'s', async () => {
  await assert.rejects(create({ model: 'claude-9' }), (e) => e.status === 404 && e.error.error.type === 'not_found_error' && e.error.error.code === 'model_not_found');
  await assert.rejects(create({ messages: [{ role: 'user', content: [{ type: 'image', source: { type: 'base64', media_type: 'image/png', data: '' } }] }] }), (e) => e.status === 400);
  await assert.rejects(create({ tools: [{ type: 'web_search_20250305', name: 'web_search' }] }), (e) => e.status === 400 && /tools\[0\]/.test(e.message));
});

test('tools: the call comes as a block, whole and streamed, and its result goes back', async () => {
  const tools = [{ name: 'get_weather', description: 'Weather of a city', input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] } }];
  const ask = [{ role: 'user', content: 'What is the weather in Oslo?' }];
  const request = { messages: ask, tools, tool_choice: { type: 'tool', name: 'get_weather' }, max_tokens: 200 };
  const whole = await create(request);
  assert.equal(whole.stop_reason, 'tool_use');
  const call = whole.content.find((block) => block.type === 'tool_use');
  assert.equal(typeof call.input.city, 'string');
  const final = await client.messages.stream({ model, temperature: 0, ...request }).finalMessage();
  assert.deepEqual(final.content.find((block) => block.type === 'tool_use').input, call.input);
  const after = await create({ messages: [...ask, { role: 'assistant', content: whole.content }, { role: 'user', content: [{ type: 'tool_result', tool_use_id: call.id, content: 'Rain' }] }], tools });
  assert.ok(after.usage.output_tokens > 0);
});
