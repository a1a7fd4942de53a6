// The engine's process is killed under load: the port answers all the time, says why, serves again soon, gives the answers of before, and
// reads what the disk kept. KILLS repeats it, a minute apart (tools/serve_load.sh).
import assert from 'node:assert/strict';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { body, content, stream } from './clients.mjs';
import { eventually, Server } from './server.mjs';

const kills = Number(process.env.KILLS ?? 1);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

test(`kill -9 of the engine under 24 streams, ${kills} times`, { timeout: 1_800_000 }, async () => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'kill-'));
  const server = await Server.start(['--cache-dir', folder, '--cache-disk', '1G']);
  try {
    // A beginning that is long enough for the disk, and turns after it.
    const lines = Array.from({ length: 120 }, (_, i) => `Line ${i}: the value of item ${i * 7 % 101} is ${i * i % 997}.`).join('\n');
    const ask = (i) => server.post('/v1/chat/completions', { messages: [{ role: 'user', content: `${lines}\nSay line ${i}.` }], max_tokens: 24, temperature: i % 2 ? 0.8 : 0, seed: i,
      chat_template_kwargs: { enable_thinking: false } });
    const text = (answer) => answer.json.choices[0].message.content;
    const before = [];
    for (let i = 0; i < 4; ++i) before.push(text(await ask(i)));
    assert.ok(new Set(before).size > 1, 'the answers differ among each other');
    await eventually(async () => (await server.get('/status')).json.prefix_cache.disk.stored > 0, 'the disk holds something', 30);

    for (let kill = 0; kill < kills; ++kill) {
      if (kill > 0) await sleep(61_000);
      let loading = true, refused = 0, lost = 0, served = 0;
      const load = Array.from({ length: 24 }, async (_, i) => {
        while (loading) {
          const answer = await stream(server.url, body(i, 60));
          if (answer.status === 503) {
            ++refused;
            assert.match(answer.text, /"code":"engine_recovering"/);
            assert.match(answer.text, /signal 9|loading the model/);
            await sleep(50);
          } else if (answer.text.includes('engine_recovering')) {
            ++lost;
            assert.match(answer.text, /signal 9/);
          } else {
            ++served;
            assert.ok(answer.text.endsWith('data: [DONE]\n\n'), answer.text.slice(-300));
          }
        }
      });
      const { pid } = await eventually(async () => {
        const status = (await server.get('/status')).json;
        return status.lanes.active > 1 && status.engine_process;
      }, 'the load runs');
      process.kill(pid, 'SIGKILL');
      const begin = Date.now();
      let asked = 0;
      await eventually(async () => {
        ++asked;
        assert.equal((await server.get('/health')).status, 200, 'the port stays');
        return Date.now() - begin > 200 && (await server.get('/ready')).status === 200;
      }, 'ready again', 60);
      const took = (Date.now() - begin) / 1000;
      await sleep(500);
      loading = false;
      await Promise.all(load);
      console.log(`# kill ${kill + 1}: ready again after ${took.toFixed(1)} s (first start ${server.started_s.toFixed(1)} s); ${lost} streams lost, ${refused} requests refused, ${served} served, health asked ${asked} times`);
      assert.ok(lost > 0 && refused > 0 && served > 0);
      assert.ok(took < Math.max(15, 5 + 6 * server.started_s), `ready again after ${took} s`);  // a bound for busy machines; the figure is printed
      const status = (await server.get('/status')).json;
      assert.equal(status.engine_process.restarts, kill + 1);
      assert.match(status.engine_process.last_reason, /signal 9/);
      for (let i = 0; i < 4; ++i) {
        const answer = await ask(i);
        assert.equal(text(answer), before[i], `answer ${i} after the kill`);
        if (i === 0) assert.ok(answer.json.usage.prompt_tokens_details.cached_tokens > 500, 'its beginning came from the disk');
      }
      const { disk } = (await server.get('/status')).json.prefix_cache;
      for (const fault of ['truncated', 'damaged', 'version', 'foreign', 'no_parent', 'unreadable', 'other_tokens'])
        assert.equal(disk.faults[fault], undefined, `the disk is intact: ${JSON.stringify(disk.faults)}`);
      assert.ok(disk.hits > 0 && disk.writable);
    }
  } finally {
    assert.equal((await server.stop()).code, 0);
    fs.rmSync(folder, { recursive: true });
  }
});
