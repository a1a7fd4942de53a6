// Many clients at once, and many that go: no error, no stream that sticks, no lane and no memory kept. CLIENTS and REQUESTS make it larger.
import assert from 'node:assert/strict';
import http from 'node:http';
import { test } from 'node:test';
import fs from 'node:fs';
import { eventually, Server } from './server.mjs';

const clients = Number(process.env.CLIENTS ?? 100), requests = Number(process.env.REQUESTS ?? 150);
const agent = new http.Agent({ keepAlive: false, maxSockets: Infinity });

// A streamed answer; `go(chunks)`: whether the client leaves now. Resolves to what it got.
function stream(url, body, go = () => false) {
  return new Promise((resolve, reject) => {
    const request = http.request(url + '/v1/chat/completions', { method: 'POST', agent, headers: { 'content-type': 'application/json' } }, (response) => {
      let text = '', chunks = 0;
      response.on('data', (data) => {
        text += data;
        if (go(++chunks)) { request.destroy(); resolve({ status: response.statusCode, text, left: true }); }
      });
      response.on('end', () => resolve({ status: response.statusCode, text, left: false }));
      response.on('error', () => resolve({ status: response.statusCode, text, left: true }));
    });
    request.on('error', (error) => (request.destroyed ? resolve({ left: true }) : reject(error)));
    request.end(JSON.stringify(body));
  });
}
const body = (i, tokens) => ({ stream: true, stream_options: { include_usage: true }, max_tokens: tokens, temperature: 0, ignore_eos: true,
  messages: [{ role: 'user', content: `Number ${i % 50}` }], chat_template_kwargs: { enable_thinking: false } });
const resident = (pid) => Number(/VmRSS:\s+(\d+)/.exec(fs.readFileSync(`/proc/${pid}/status`, 'utf8'))[1]) / 1024;

test(`${clients} streams at once all end as they should`, { timeout: 600_000 }, async () => {
  const server = await Server.start();
  try {
    await stream(server.url, body(0, 8));
    const begin = Date.now(), before = resident(server.child.pid);
    const answers = await Promise.all(Array.from({ length: clients }, (_, i) => stream(server.url, body(i, 8))));
    for (const answer of answers) {
      assert.equal(answer.status, 200, answer.text);
      assert.ok(answer.text.endsWith('data: [DONE]\n\n'), answer.text.slice(-200));
      assert.match(answer.text, /"completion_tokens":8,/);
    }
    console.log(`# ${clients} streams in ${((Date.now() - begin) / 1000).toFixed(1)} s, server memory ${before.toFixed(0)} to ${resident(server.child.pid).toFixed(0)} MiB`);
    const status = (await server.get('/status')).json;
    assert.equal(status.requests.in_flight, 0);
    assert.equal(status.engine_process.restarts, 0);
  } finally {
    await server.stop();
  }
});

test(`${requests} requests, a third of which leave: nothing is kept`, { timeout: 600_000 }, async () => {
  const server = await Server.start();
  try {
    let next = 0, left = 0, seed = 1;
    const random = () => (seed = (seed * 48271) % 2147483647) / 2147483647;
    await Promise.all(Array.from({ length: 32 }, async () => {
      while (next < requests) {
        const i = next++, leaves = random() < 0.33 ? 1 + Math.floor(random() * 6) : 0;
        const answer = await stream(server.url, body(i, leaves ? 4000 : 6), (chunks) => leaves > 0 && chunks >= leaves);
        if (answer.left) ++left;
        else assert.ok(answer.text.endsWith('data: [DONE]\n\n'));
      }
    }));
    assert.ok(left > requests / 6);
    await eventually(async () => {
      const { requests: r, lanes } = (await server.get('/status')).json;
      return r.in_flight === 0 && lanes.active === 0 && lanes.waiting === 0;
    }, 'all lanes are free', 20);
    const status = (await server.get('/status')).json;
    console.log(`# ${requests} requests, ${left} left; server ${resident(server.child.pid).toFixed(0)} MiB, engine ${resident(status.engine_process.pid).toFixed(0)} MiB`);
    assert.equal(status.engine_process.restarts, 0);
  } finally {
    await server.stop();
  }
});
