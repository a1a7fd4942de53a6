// Debian's HAProxy, configured by examples/haproxy.cfg, before three servers on this machine: conversations stay where their prefix is, a
// server that goes takes only its own along, and a rolling restart fails no request.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import fs from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { eventually, root, Server } from './server.mjs';

const absent = spawnSync('haproxy', ['-v']).status !== 0;
const skip = absent && 'no haproxy (apt-get install haproxy)';
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const names = ['a', 'b', 'c'];
let folder, balancer, url;
const servers = {}, ports = {};

const free_port = () => new Promise((resolve) => {
  const probe = net.createServer().listen(0, '127.0.0.1', () => { const { port } = probe.address(); probe.close(() => resolve(port)); });
});
const start = async (name) => { servers[name] = await Server.start(['--port', String(ports[name]), '--lanes', '2', '--threads', '1', '--drain-delay', '2', '--log-level', 'quiet']); };

before(async () => {
  if (absent) return;
  folder = fs.mkdtempSync(path.join(os.tmpdir(), 'haproxy-'));
  for (const name of names) ports[name] = await free_port();
  await Promise.all(names.map(start));
  const port = await free_port();
  const config = fs.readFileSync(path.join(root, 'examples/haproxy.cfg'), 'utf8').replace('127.0.0.1:8000', `127.0.0.1:${port}`)
    .replace(/  server a [\s\S]*/, names.map((name) => `  server ${name} 127.0.0.1:${ports[name]}\n`).join(''));
  const file = path.join(folder, 'haproxy.cfg');
  fs.writeFileSync(file, config);
  assert.ok(config.includes(`server c 127.0.0.1:${ports.c}`) && config.includes(`bind 127.0.0.1:${port}`));
  balancer = spawn('haproxy', ['-db', '-f', file], { stdio: 'ignore' });
  url = `http://127.0.0.1:${port}`;
  await eventually(async () => (await fetch(`${url}/ready`).catch(() => ({}))).status === 200, 'the balancer serves', 20);
  await sleep(1500);  // until it has looked at all three
});
after(async () => {
  if (absent) return;
  balancer.kill('SIGKILL');
  await Promise.all(names.map((name) => servers[name].stop('SIGKILL')));
  fs.rmSync(folder, { recursive: true });
});

const story = (i) => `This is conversation ${i}. ` + Array.from({ length: 30 }, (_, k) => `Fact ${k} of ${i}: ${(i * 31 + k * 7) % 97}.`).join(' ');
async function say(conversation, turns, { headers = {}, fields = {}, tokens = 6 } = {}) {
  const messages = [{ role: 'user', content: story(conversation) }];
  for (let turn = 1; turn < turns; ++turn) messages.push({ role: 'assistant', content: `Answer ${turn}.` }, { role: 'user', content: `Turn ${turn}?` });
  const response = await fetch(`${url}/v1/chat/completions`, { method: 'POST', headers: { 'content-type': 'application/json', ...headers },
    body: JSON.stringify({ messages, max_tokens: tokens, temperature: 0, ignore_eos: true, chat_template_kwargs: { enable_thinking: false }, ...fields }) });
  const text = await response.text();
  return { status: response.status, text, server: response.headers.get('x-served-by'), cached: response.status === 200 ? JSON.parse(text).usage.prompt_tokens_details.cached_tokens : 0 };
}
const by_header = (i) => ({ headers: { 'x-conversation-id': `conversation-${i}` } });

test('a conversation stays with one server, which has its prefix; conversations spread', { skip, timeout: 300_000 }, async () => {
  const homes = [];
  for (let i = 0; i < 12; ++i) {
    const first = await say(i, 1, by_header(i)), second = await say(i, 2, by_header(i));
    assert.deepEqual([first.status, second.status], [200, 200], first.text + second.text);
    assert.equal(second.server, first.server);
    assert.ok(second.cached > 50, `turn 2 of ${i} found ${second.cached} tokens`);
    homes.push(first.server);
  }
  assert.equal(new Set(homes).size, 3, `conversations are on ${homes}`);
});

test('clients name their conversation by a header or a field of their own', { skip, timeout: 300_000 }, async () => {
  const spread = async (name) => {
    const homes = new Set();
    for (let i = 0; i < 6; ++i) {
      const one = await say(i, 1, name(`c${i}`)), two = await say(i + 100, 1, name(`c${i}`));
      assert.equal(one.status, 200, one.text);
      assert.equal(one.server, two.server, 'the name decides');
      homes.add(one.server);
    }
    return homes.size;
  };
  for (const header of ['x-claude-code-session-id', 'session_id', 'x-session-affinity']) assert.ok(await spread((id) => ({ headers: { [header]: id } })) > 1, header);
  for (const field of [(id) => ({ prompt_cache_key: id }), (id) => ({ user: id })]) assert.ok(await spread((id) => ({ fields: field(id) })) > 1, String(field));
  // Without a name: the client's address.
  const homes = new Set();
  for (let i = 0; i < 4; ++i) homes.add((await say(i, 1)).server);
  assert.equal(homes.size, 1);
});

test('an engine that dies: its conversations are answered elsewhere, the others stay, and they come back', { skip, timeout: 300_000 }, async () => {
  const homes = [];
  for (let i = 0; i < 12; ++i) homes.push((await say(i, 1, by_header(i))).server);
  const { pid } = (await servers.b.get('/status')).json.engine_process;
  process.kill(pid, 'SIGKILL');
  for (let i = 0; i < 12; ++i) {
    const answer = await say(i, 2, by_header(i));
    assert.equal(answer.status, 200, answer.text);
    if (homes[i] !== 'b') assert.equal(answer.server, homes[i]);
  }
  await eventually(async () => (await servers.b.get('/ready')).status === 200, 'b serves again', 60);
  await sleep(1200);
  for (let i = 0; i < 12; ++i) assert.equal((await say(i, 1, by_header(i))).server, homes[i]);
});

test('a rolling restart under load fails no request', { skip, timeout: 600_000 }, async () => {
  let running = true, answers = 0;
  const load = Array.from({ length: 6 }, async (_, client) => {
    while (running) {
      const conversation = client * 10 + (answers % 3), large = answers % 4 === 0;
      // Some are too large to be sent twice: nothing but --drain-delay saves them.
      const answer = await say(conversation, 1, { ...by_header(conversation), tokens: 30, fields: large ? { user: 'x'.repeat(300_000) } : {} });
      assert.equal(answer.status, 200, answer.text);
      ++answers;
    }
  });
  const restarts = (async () => {
    for (const name of names) {
      await sleep(1000);
      servers[name].child.kill('SIGTERM');
      assert.equal((await servers[name].exited).code, 0);
      await start(name);
      await eventually(async () => (await servers[name].get('/ready')).status === 200, `${name} is ready`, 60);
      await sleep(1500);  // the balancer looks twice a second
    }
    running = false;
  })();
  await Promise.all([restarts, ...load]);
  console.log(`# ${answers} answers during three restarts, none failed`);
  assert.ok(answers > 12);
});
