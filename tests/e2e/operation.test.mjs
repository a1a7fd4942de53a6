// The server as a service: an engine that is killed, signals, a full queue, and releases of memory.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'node:test';
import { eventually, program, Server } from './server.mjs';

const ask = (words, more = {}) => ({ messages: [{ role: 'user', content: words }], max_tokens: 24, temperature: 0, chat_template_kwargs: { enable_thinking: false }, ...more });
const text = (answer) => answer.json.choices[0].message.content;

test('an engine killed under load: the port stays, 503 says why, service is back, answers are the same', async () => {
  const server = await Server.start(['--lanes', '2']);
  try {
    const words = 'What does the command cp do?';
    const before = await server.post('/v1/chat/completions', ask(words));
    assert.equal(before.status, 200);
    const long = [1, 2, 3, 4].map((i) => server.post('/v1/chat/completions', ask(`Tell me about ${i}.`, { max_tokens: 20000, ignore_eos: true })));
    const streamed = server.post('/v1/chat/completions', ask('Go on.', { max_tokens: 20000, ignore_eos: true, stream: true }));
    const { pid } = await eventually(async () => {
      const status = (await server.get('/status')).json;
      return status.lanes.active === 2 && status.engine_process;
    }, 'both lanes run');
    process.kill(pid, 'SIGKILL');
    const killed = Date.now();
    for (const answer of await Promise.all(long)) {
      assert.equal(answer.status, 503);
      assert.equal(answer.json.error.code, 'engine_recovering');
      assert.match(answer.json.error.message, /signal 9/);
    }
    assert.match((await streamed).text, /engine_recovering/);
    const refused = await server.post('/v1/chat/completions', ask(words));
    assert.equal(refused.status, 503);
    assert.equal(refused.json.error.code, 'engine_recovering');
    assert.equal(refused.headers.get('retry-after'), '1');
    assert.equal((await server.get('/health')).status, 200);
    assert.equal((await server.get('/ready')).status, 503);
    await eventually(async () => (await server.get('/ready')).status === 200, 'ready again', 30);
    const took = (Date.now() - killed) / 1000;
    console.log(`# ready again after ${took.toFixed(1)} s`);
    assert.ok(took < Math.max(15, 5 + 6 * server.started_s), `ready again after ${took} s; the first start took ${server.started_s} s`);  // a bound for busy machines
    assert.equal(text(await server.post('/v1/chat/completions', ask(words))), text(before));
    const { engine_process } = (await server.get('/status')).json;
    assert.equal(engine_process.restarts, 1);
    assert.match(engine_process.last_reason, /signal 9/);
  } finally {
    assert.equal((await server.stop()).code, 0);
  }
});

test('SIGTERM drains: answers under way end, new ones are refused; a second signal stops', async () => {
  const server = await Server.start(['--lanes', '1']);
  const slow = server.post('/v1/chat/completions', ask('Count.', { max_tokens: 1500, ignore_eos: true }));
  await eventually(async () => (await server.get('/status')).json.lanes.active === 1, 'it runs');
  server.child.kill('SIGTERM');
  await eventually(async () => (await server.get('/ready')).status === 503, 'not ready while draining');
  const refused = await server.post('/v1/chat/completions', ask('x'));
  assert.equal(refused.json.error.code, 'draining');
  assert.equal((await slow).json.usage.completion_tokens, 1500);
  assert.equal((await server.exited).code, 0);

  const other = await Server.start(['--lanes', '1']);
  const lost = other.post('/v1/chat/completions', ask('Count.', { max_tokens: 30000, ignore_eos: true })).catch((error) => error);
  await eventually(async () => (await other.get('/status')).json.lanes.active === 1, 'it runs');
  other.child.kill('SIGTERM');
  await eventually(async () => (await other.get('/ready')).status === 503, 'draining');
  const begin = Date.now();
  other.child.kill('SIGTERM');
  await other.exited;
  await lost;
  assert.ok(Date.now() - begin < 15000);
});

test('a full queue is a 429 at once; idle memory goes and comes back', async () => {
  const server = await Server.start(['--lanes', '1', '--queue', '1', '--idle-release', '0.5', '--allowed-origin', 'https://app.example']);
  try {
    const words = 'What does the command mv do?';
    const before = text(await server.post('/v1/chat/completions', ask(words)));
    await eventually(async () => (await server.get('/status')).json.released === true, 'memory is released');
    assert.equal(text(await server.post('/v1/chat/completions', ask(words))), before);
    const controller = new AbortController();
    const long = [1, 2].map(() => fetch(server.url + '/v1/chat/completions',
      { method: 'POST', signal: controller.signal, headers: { 'content-type': 'application/json' }, body: JSON.stringify(ask('Go.', { max_tokens: 30000, ignore_eos: true, stream: true })) }));
    const held = await Promise.all(long);  // a response that nobody holds is cancelled
    const begin = performance.now();
    const refused = await server.post('/v1/chat/completions', ask('x'));
    assert.equal(refused.status, 429);
    assert.equal(refused.json.error.code, 'queue_full');
    assert.equal(refused.headers.get('retry-after'), '1');
    assert.ok(performance.now() - begin < 5000);
    assert.deepEqual(held.map((response) => response.status), [200, 200]);
    controller.abort();
    await eventually(async () => (await server.get('/status')).json.requests.in_flight === 0, 'both are cancelled');
    assert.equal((await server.post('/v1/chat/completions', ask(words), { origin: 'https://app.example' })).headers.get('access-control-allow-origin'), 'https://app.example');
    assert.equal((await server.post('/v1/chat/completions', ask(words), { origin: 'https://evil.example' })).status, 403);
  } finally {
    await server.stop();
  }
});

test('what cannot start says so in one sentence', () => {
  const run = (...words) => spawnSync(program, ['serve', '--port', '0', ...words], { encoding: 'utf8', timeout: 60_000 });
  const missing = run('--model', '/nowhere');
  assert.equal(missing.status, 2);
  assert.equal(missing.stderr.trim().split('\n').length, 1);
  const thinking = run('--default-thinking', 'maybe');
  assert.equal(thinking.status, 2);
});
