// Every example runs against a server that wants a key, and says something.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { after, before, test } from 'node:test';
import { root, Server } from './server.mjs';

const key = 'k-for-examples', here = path.dirname(fileURLToPath(import.meta.url));
let server;
before(async () => { server = await Server.start(['--default-thinking', 'off'], { FORETOKEN_API_KEY: key }); });
after(async () => { assert.equal((await server.stop()).code, 0); });

function run(program, words) {
  const child = spawn(program, words, { cwd: here, stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, OPENAI_BASE_URL: `${server.url}/v1`, OPENAI_API_KEY: key, ANTHROPIC_BASE_URL: server.url, ANTHROPIC_AUTH_TOKEN: key } });
  let text = '', errors = '';
  child.stdout.on('data', (data) => { text += data; });
  child.stderr.on('data', (data) => { errors += data; });
  return new Promise((resolve) => child.on('close', (code) => {
    assert.equal(code, 0, errors + text);
    assert.equal(errors, '');
    resolve(text);
  }));
}
// Examples in Node find the clients beside this test.
function copied(name) {
  fs.copyFileSync(path.join(root, 'examples', name), path.join(here, `example-${name}`));
  return path.join(here, `example-${name}`);
}
// What an answer without a seed ends in is the model's.
const said = /\w[\s\S]*\n$/;
const known = ['chat.mjs', 'chat.py', 'chat_openai.py', 'curl.sh', 'haproxy.cfg', 'messages.mjs'];

test('every example has a test', () => assert.deepEqual(fs.readdirSync(path.join(root, 'examples')).sort(), known));

test('Python, standard library', async () => {
  const text = await run('python3', [path.join(root, 'examples/chat.py'), 'What', 'does', 'ls', 'do?']);
  assert.match(text, /\S[\s\S]*\n\[\d+ tokens, \d\.\d\d a cycle\]\n$/);
});
test('Python, OpenAI\'s client', { skip: spawnSync('python3', ['-c', 'import openai']).status !== 0 && 'this python3 has no openai' }, async () => {
  assert.match(await run('python3', [path.join(root, 'examples/chat_openai.py')]), /^file_size\(\{.*\}\) = \{/);
});
test('Node, OpenAI\'s client', async () => assert.match(await run(process.execPath, [copied('chat.mjs'), 'What does ls do?']), said));
test('Node, Anthropic\'s client', async () => assert.match(await run(process.execPath, [copied('messages.mjs'), 'What does ls do?']), said));
test('curl, through each API', { skip: spawnSync('curl', ['--version']).status !== 0 && 'no curl' }, async () => {
  const answers = (await run('sh', [path.join(root, 'examples/curl.sh'), server.url])).trim().split('\n').map((line) => JSON.parse(line));
  assert.deepEqual(answers.map((answer) => answer.object ?? answer.type), ['list', 'chat.completion', 'text_completion', 'response', 'message']);
});
