// `foretoken agent`: fake clients on PATH write down how they were run; no file of the user's is touched.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { program, Server } from './server.mjs';

const key = 'k-for-agents', executables = ['aider', 'claude', 'codex', 'copilot', 'goose', 'opencode', 'qwen'];
let server, folder, home, bin;

before(async () => {
  server = await Server.start(['--max-context', '20000'], { FORETOKEN_API_KEY: key });
  folder = fs.mkdtempSync(path.join(os.tmpdir(), 'agent-'));
  home = path.join(folder, 'home');
  bin = path.join(folder, 'bin');
  fs.mkdirSync(home);
  fs.mkdirSync(bin);
  for (const name of executables) {
    fs.writeFileSync(path.join(bin, name), `#!${process.execPath}\nrequire('fs').writeFileSync(process.env.SEEN, JSON.stringify({ args: process.argv.slice(2), env: process.env }));\nprocess.exit(7);\n`, { mode: 0o755 });
  }
});
after(async () => {
  fs.rmSync(folder, { recursive: true });
  assert.equal((await server.stop()).code, 0);
});

function agent(words, environment = {}) {
  const seen = path.join(folder, 'seen.json');
  fs.rmSync(seen, { force: true });
  const result = spawnSync(program, ['agent', ...words], { encoding: 'utf8', timeout: 30_000, cwd: home,
    env: { PATH: bin, HOME: home, SEEN: seen, FORETOKEN_API_KEY: key, ...environment } });
  return { ...result, seen: fs.existsSync(seen) ? JSON.parse(fs.readFileSync(seen, 'utf8')) : null };
}
const run = (name, ...words) => {
  const result = agent(['--url', server.url, name, ...words]);
  assert.equal(result.status, 7, result.stderr);  // the client's own
  assert.deepEqual(result.seen.args.slice(result.seen.args.length - words.length), words);
  return { args: result.seen.args.slice(0, result.seen.args.length - words.length), env: result.seen.env };
};
const afterFlag = (args, flag) => args[args.indexOf(flag) + 1];

test('claude hears the address, the model in every role, and the key in its environment alone', async () => {
  const { args, env } = run('claude', '-p', 'Say hi', '--print');
  assert.equal(env.ANTHROPIC_BASE_URL, server.url);
  assert.equal(env.ANTHROPIC_AUTH_TOKEN, key);
  for (const role of ['ANTHROPIC_MODEL', 'ANTHROPIC_DEFAULT_OPUS_MODEL', 'ANTHROPIC_DEFAULT_SONNET_MODEL', 'ANTHROPIC_DEFAULT_HAIKU_MODEL', 'CLAUDE_CODE_SUBAGENT_MODEL'])
    assert.equal(env[role], 'demo-dense', role);
  assert.equal(env.CLAUDE_CODE_ATTRIBUTION_HEADER, '0');
  assert.equal(env.CLAUDE_CODE_AUTO_COMPACT_WINDOW, '20000');
  const settings = JSON.parse(afterFlag(args, '--settings'));
  assert.equal(settings.env.ANTHROPIC_BASE_URL, server.url);
  assert.ok(!args.join(' ').includes(key));
  const theirs = agent(['--url', server.url, 'claude', '--settings', 'mine.json'], { ANTHROPIC_API_KEY: 'another' });
  assert.deepEqual(theirs.seen.args, ['--settings', 'mine.json']);
  assert.equal(theirs.seen.env.ANTHROPIC_API_KEY, undefined);
  // What it was told works: the request that the client would make.
  const answer = await fetch(`${env.ANTHROPIC_BASE_URL}/v1/messages`, { method: 'POST', headers: { 'content-type': 'application/json', authorization: `Bearer ${env.ANTHROPIC_AUTH_TOKEN}` },
    body: JSON.stringify({ model: env.ANTHROPIC_MODEL, max_tokens: 4, messages: [{ role: 'user', content: 'hi' }] }) });
  assert.equal(answer.status, 200);
});

test('codex gets a provider for this run', () => {
  const { args, env } = run('codex', 'exec', 'Say hi');
  const settings = args.filter((_, i) => args[i - 1] === '-c');
  for (const setting of ['model_provider="foretoken"', `model_providers.foretoken.base_url="${server.url}/v1"`, 'model_providers.foretoken.wire_api="responses"',
    'model_providers.foretoken.env_key="FORETOKEN_API_KEY"', 'model="demo-dense"', 'model_context_window=20000'])
    assert.ok(settings.includes(setting), `${setting} in ${settings}`);
  assert.equal(env.FORETOKEN_API_KEY, key);
  assert.ok(!run('codex', '-m', 'other').args.some((word) => word.startsWith('model=')));
});

test('opencode gets a configuration in its environment', () => {
  const config = JSON.parse(run('opencode').env.OPENCODE_CONFIG_CONTENT);
  assert.equal(config.model, 'foretoken/demo-dense');
  const { options, models, npm } = config.provider.foretoken;
  assert.equal(npm, '@ai-sdk/openai-compatible');
  assert.deepEqual(options, { baseURL: `${server.url}/v1`, apiKey: '{env:FORETOKEN_API_KEY}' });
  assert.deepEqual(models['demo-dense'].limit, { context: 20000, output: 5000 });
});

test('the others hear OpenAI\'s variables under their own names', () => {
  const qwen = run('qwen-code', '-y');
  assert.equal(qwen.env.OPENAI_BASE_URL, `${server.url}/v1`);
  assert.equal(qwen.env.OPENAI_API_KEY, key);
  assert.equal(afterFlag(qwen.args, '--model'), 'demo-dense');
  assert.equal(afterFlag(qwen.args, '--auth-type'), 'openai');
  const aider = run('aider', '--message', 'x');
  assert.equal(afterFlag(aider.args, '--model'), 'openai/demo-dense');
  assert.equal(aider.env.OPENAI_API_BASE, `${server.url}/v1`);
  const goose = run('goose', 'session');
  assert.deepEqual([goose.env.GOOSE_PROVIDER, goose.env.GOOSE_MODEL, goose.env.OPENAI_HOST, goose.env.OPENAI_BASE_PATH], ['openai', 'demo-dense', server.url, 'v1/chat/completions']);
  const copilot = run('copilot');
  assert.deepEqual([copilot.env.COPILOT_PROVIDER_BASE_URL, copilot.env.COPILOT_MODEL, copilot.env.COPILOT_PROVIDER_API_KEY], [`${server.url}/v1`, 'demo-dense', key]);
});

test('--print shows a line that a shell runs to the same effect, without the key', () => {
  const words = ["it's", 'a b', '$HOME', '"q"'];
  const printed = agent(['--url', server.url, '--print', 'claude', ...words]);
  assert.equal(printed.status, 0, printed.stderr);
  assert.equal(printed.seen, null);
  assert.ok(!printed.stdout.includes(key) && printed.stdout.includes('$FORETOKEN_API_KEY'));
  const seen = path.join(folder, 'seen.json');
  spawnSync('/bin/sh', ['-c', printed.stdout], { env: { PATH: `${bin}:/usr/bin:/bin`, HOME: home, SEEN: seen, FORETOKEN_API_KEY: key } });
  const shell = JSON.parse(fs.readFileSync(seen, 'utf8')), direct = run('claude', ...words);
  assert.deepEqual(shell.args.slice(-4), words);
  assert.equal(shell.env.ANTHROPIC_AUTH_TOKEN, key);
  assert.equal(shell.env.ANTHROPIC_BASE_URL, direct.env.ANTHROPIC_BASE_URL);
});

test('what cannot run says so in one sentence', async () => {
  const refused = (words, pattern, environment) => {
    const result = agent(words, environment);
    assert.equal(result.status, 2);
    assert.equal(result.seen, null);
    assert.match(result.stderr, pattern);
    assert.equal(result.stderr.trim().split('\n').length, 1);
  };
  refused([], /needs a client's name: aider, claude/);
  refused(['--url', server.url, 'vim'], /no recipe for "vim"/);
  refused(['--url', server.url, 'claude'], /claude is not installed .* npm install -g @anthropic-ai\/claude-code/, { PATH: home });
  refused(['--url', 'http://127.0.0.1:9', 'claude'], /no server answers at http:\/\/127.0.0.1:9 .*foretoken serve/);
  refused(['--url', 'https://127.0.0.1', 'claude'], /https/);
  refused(['--url', 'http://127.0.0.1:x', 'claude'], /port/);
  refused(['--url', server.url, 'claude'], /asks for its API key/, { FORETOKEN_API_KEY: '' });
  refused(['--url', server.url, '--api-key', 'wrong', 'claude'], /does not take this/);
  const other = http.createServer((request, response) => {
    response.statusCode = request.url !== '/ready' ? 404 : request.headers.host.startsWith('localhost') ? 503 : 200;
    response.end('{"error": {"message": "the engine is loading the model"}}');
  });
  await new Promise((resolve) => other.listen(0, '127.0.0.1', resolve));
  other.unref();
  // This process answers, so the program must not be waited for synchronously.
  const { spawn } = await import('node:child_process');
  const ask = (url) => new Promise((resolve) => {
    const child = spawn(program, ['agent', '--url', url, 'claude'], { env: { PATH: bin, HOME: home }, stdio: ['ignore', 'ignore', 'pipe'] });
    let text = '';
    child.stderr.on('data', (data) => { text += data; });
    child.on('exit', (code) => resolve({ code, text }));
  });
  const loading = await ask(`http://localhost:${other.address().port}`);
  assert.equal(loading.code, 2);
  assert.match(loading.text, /not ready \(the engine is loading the model\)/);
  const foreign = await ask(`http://127.0.0.1:${other.address().port}`);
  assert.match(foreign.text, /no foretoken server/);
  other.close();
});

test('nothing was written into the user\'s home', () => assert.deepEqual(fs.readdirSync(home), []));
