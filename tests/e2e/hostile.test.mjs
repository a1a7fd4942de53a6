// Clients that mean harm or are broken: slow, oversize, malformed, random. Each is answered or dropped, others are served meanwhile, and
// nothing is kept. HOSTILE makes it larger (tools/serve_load.sh).
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { raw, resident, seeded } from './clients.mjs';
import { eventually, Server } from './server.mjs';

const many = Number(process.env.HOSTILE ?? 200);
let server;
before(async () => { server = await Server.start(['--max-request', '1M']); });
after(async () => {
  await eventually(async () => (await server.get('/status')).json.http.connections <= 2, 'all connections are closed', 20);
  const { http, engine_process } = (await server.get('/status')).json;
  assert.equal(http.ingress_bytes, 0);
  assert.equal(engine_process.restarts, 0);
  assert.equal((await server.stop()).code, 0);
});

const post = (path, headers) => `POST ${path} HTTP/1.1\r\nHost: localhost\r\n${headers}\r\n`;
const ask = () => server.post('/v1/chat/completions', { messages: [{ role: 'user', content: 'hi' }], max_tokens: 2 });

test('slow headers and slow bodies end in 408, and nobody waits for them', { timeout: 120_000 }, async () => {
  const headers = Array.from({ length: 40 }, () => raw(server.url, Array.from('POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: ' + 'x'.repeat(500)), { pause: 200 }));
  const idle = Array.from({ length: 20 }, () => raw(server.url, [post('/v1/chat/completions', 'Content-Length: 1000\r\n') + '{'], { patience: process.env.HOSTILE ? 60 : 8 }));
  for (let i = 0; i < 5; ++i) {
    const begin = performance.now();
    assert.equal((await ask()).status, 200);
    assert.ok(performance.now() - begin < 10000);
  }
  for (const answer of await Promise.all(headers)) {
    assert.equal(answer.status, 408, answer.text);
    assert.ok(answer.seconds > 8 && answer.seconds < 30, `after ${answer.seconds} s`);
  }
  for (const answer of await Promise.all(idle)) if (process.env.HOSTILE) assert.equal(answer.status, 408, answer.text);
});

test('what is too large is refused before it is read', async () => {
  const declared = await raw(server.url, [post('/v1/chat/completions', 'Content-Length: 2000000\r\n')]);
  assert.equal(declared.status, 413);
  assert.match(declared.text, /"code":"request_too_large"/);
  assert.ok(declared.seconds < 15, 'an answer without the body');
  const chunk = 'fffe\r\n' + 'x'.repeat(0xfffe) + '\r\n';
  assert.equal((await raw(server.url, [post('/v1/chat/completions', 'Transfer-Encoding: chunked\r\n'), ...Array(20).fill(chunk)])).status, 413);
  assert.equal((await raw(server.url, [post('/v1/chat/completions', `X: ${'x'.repeat(40_000)}\r\nContent-Length: 2\r\n`)])).status, 431);
  assert.equal((await raw(server.url, ['GET /' + 'a'.repeat(40_000) + ' HTTP/1.1\r\nHost: localhost\r\n\r\n'])).status, 431);
  assert.equal((await ask()).status, 200);
});

test('what is no request is a 400, whatever it is', async () => {
  const bad = ['nonsense\r\n\r\n', 'GET / HTTP/9.9\r\n\r\n', 'GET /health HTTP/1.1\r\nHost localhost\r\n\r\n', post('/v1/chat/completions', 'Content-Length: -1\r\n'),
    post('/v1/chat/completions', 'Content-Length: 5\r\nContent-Length: 6\r\n') + '{}', post('/v1/chat/completions', 'Content-Length: 2\r\nTransfer-Encoding: chunked\r\n') + '0\r\n\r\n',
    post('/v1/chat/completions', 'Transfer-Encoding: chunked\r\n') + 'zz\r\n', '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03', '\0\0\0\0\r\n\r\n'];
  for (const text of bad) {
    const answer = await raw(server.url, [Buffer.from(text, 'latin1')], { patience: 15 });
    assert.ok([400, 408].includes(answer.status), `${JSON.stringify(text.slice(0, 60))}: ${answer.text.slice(0, 200)}`);
  }
  for (const json of ['', '{', '[]', '"x"', '{"messages": ' + '['.repeat(5000), '{"messages": [{"role": "user", "content": "\\ud800"}]}x', '\xff\xfe'])
    assert.equal((await server.post('/v1/chat/completions', json)).status, 400, json.slice(0, 40));
});

test(`${many} connections of random bytes, broken requests and early ends`, { timeout: 600_000 }, async () => {
  const random = seeded(7), valid = post('/v1/chat/completions', 'Content-Type: application/json\r\nContent-Length: 66\r\n') + '{"messages":[{"role":"user","content":"hi"}],"max_tokens":2,"n":1}';
  const before = resident(server.child.pid);
  const one = () => {
    const bytes = Buffer.from(valid, 'latin1');
    if (random() < 0.4) return raw(server.url, [Buffer.from(Array.from({ length: 1 + Math.floor(random() * 300) }, () => Math.floor(random() * 256)))], { patience: 0.2 });
    for (let k = 0; k < 1 + random() * 4; ++k) bytes[Math.floor(random() * bytes.length)] = Math.floor(random() * 256);
    return raw(server.url, [bytes.subarray(0, Math.floor(random() * bytes.length * 1.3))], { patience: 0.2 });
  };
  for (let done = 0; done < many; done += 50) await Promise.all(Array.from({ length: 50 }, one));
  assert.equal((await ask()).status, 200);
  const now = resident(server.child.pid);
  console.log(`# ${many} broken connections: server ${before.toFixed(1)} to ${now.toFixed(1)} MiB`);
  assert.ok(now < before * 1.2 + 8, `memory stays: ${before} to ${now} MiB`);
});

test('more requests than the queue takes: each is served or refused at once', async () => {
  const small = await Server.start(['--lanes', '2', '--queue', '4']);
  try {
    const begin = performance.now();
    const answers = await Promise.all(Array.from({ length: 40 }, async () => {
      const answer = await small.post('/v1/chat/completions', { messages: [{ role: 'user', content: 'Count.' }], max_tokens: 120, ignore_eos: true });
      return { ...answer, seconds: (performance.now() - begin) / 1000 };
    }));
    const refused = answers.filter((answer) => answer.status === 429);
    assert.equal(answers.filter((answer) => answer.status === 200).length + refused.length, 40);
    assert.ok(refused.length >= 20, `${refused.length} of 40 were refused`);
    for (const answer of refused) {
      assert.equal(answer.json.error.code, 'queue_full');
      assert.ok(Number(answer.headers.get('retry-after')) >= 1);
    }
    const served = answers.filter((answer) => answer.status === 200);
    assert.ok(Math.max(...refused.map((a) => a.seconds)) < Math.max(...served.map((a) => a.seconds)), 'a refusal does not wait for answers');
    console.log(`# 429 after ${(Math.max(...refused.map((a) => a.seconds)) * 1000).toFixed(0)} ms at most, with 40 clients at once`);
  } finally {
    await small.stop();
  }
});
