// Many clients at once, and many that go: no error, no stream that sticks, no lane and no memory kept. CLIENTS and REQUESTS make it larger
// (tools/serve_load.sh).
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { body, content, resident, seeded, stream } from './clients.mjs';
import { eventually, Server } from './server.mjs';

const clients = Number(process.env.CLIENTS ?? 100), requests = Number(process.env.REQUESTS ?? 150);

test(`${clients} streams at once all end as they should, and leave no memory behind`, { timeout: 1_800_000 }, async () => {
  const server = await Server.start();
  try {
    const alone = new Map();
    for (let i = 0; i < 5; ++i) alone.set(i, content((await stream(server.url, body(i, 8))).text));
    assert.ok(new Set(alone.values()).size > 1);
    const { pid } = (await server.get('/status')).json.engine_process, held = [];
    for (let wave = 0; wave < 3; ++wave) {
      const begin = Date.now();
      const answers = await Promise.all(Array.from({ length: clients }, (_, i) => stream(server.url, body(i, 8))));
      answers.forEach((answer, i) => {
        assert.equal(answer.status, 200, answer.text);
        assert.ok(answer.text.endsWith('data: [DONE]\n\n'), answer.text.slice(-200));
        assert.match(answer.text, /"completion_tokens":8,/);
        if (alone.has(i % 50)) assert.equal(content(answer.text), alone.get(i % 50), 'the answer in company is the one alone');
      });
      held.push({ server: resident(server.child.pid), engine: resident(pid) });
      console.log(`# wave ${wave + 1}: ${clients} streams in ${((Date.now() - begin) / 1000).toFixed(1)} s; server ${held.at(-1).server.toFixed(1)} MiB, engine ${held.at(-1).engine.toFixed(1)} MiB`);
    }
    for (const who of ['server', 'engine']) assert.ok(held[2][who] < held[0][who] * 1.1 + 8, `memory of the ${who} stays: ${held.map((h) => h[who].toFixed(1))}`);
    const status = (await server.get('/status')).json;
    assert.equal(status.requests.in_flight, 0);
    assert.equal(status.engine_process.restarts, 0);
  } finally {
    await server.stop();
  }
});

test(`${requests} requests, a third of which leave: nothing is kept`, { timeout: 3_600_000 }, async () => {
  const server = await Server.start();
  try {
    let next = 0, left = 0;
    const random = seeded(1);
    const begin = Date.now();
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
    console.log(`# ${requests} requests in ${((Date.now() - begin) / 1000).toFixed(1)} s, ${left} left; server ${resident(server.child.pid).toFixed(1)} MiB, engine ${resident(status.engine_process.pid).toFixed(1)} MiB`);
    assert.equal(status.engine_process.restarts, 0);
    assert.equal(status.requests.ended.cancelled, left);
  } finally {
    await server.stop();
  }
});
