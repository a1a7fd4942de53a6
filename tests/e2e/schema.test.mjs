// A sample of the JSON Schema suite (tools/schema_suite.mjs runs all of it).
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { eventually, Server } from './server.mjs';
import { schemas, Suite } from './schema_suite.mjs';

test('answers bound to schemas parse, satisfy them, and are those of plain constrained decoding', async () => {
  const suite = new Suite(schemas(20));
  assert.ok(suite.cases.length >= 12);
  const server = await Server.start(['--lanes', '8', '--threads', '1', '--speculate', 'dflash,grammar', '--width', '7']);
  await suite.run(server, 8);
  const { by_drafter } = (await server.get('/status')).json.speculation;
  assert.match((await server.get('/metrics')).text, /foretoken_speculation_accepted_total\{drafter="grammar"\} [1-9]/);
  await server.stop();
  const f = suite.figures;
  for (const drafter of ['dflash', 'grammar']) assert.ok(by_drafter[drafter].accepted > 0 && by_drafter[drafter].verified > by_drafter[drafter].accepted, drafter);
  assert.deepEqual(suite.problems, []);
  assert.equal(f.ids_equal, f.answers);
  assert.equal(f.complete + f.cut, f.answers);
  assert.ok(f.complete >= 0.94 * f.questions && f.never_complete <= 0.06 * f.questions, JSON.stringify(f));
  assert.ok(f.drafted > 0.3 * f.tokens, `${f.drafted} of ${f.tokens} tokens were drafted`);
  assert.ok(f.foreseen > 0.03 * f.tokens, `${f.foreseen} of ${f.tokens} tokens were known from the grammar`);
  assert.ok(suite.distinct > 0.6 * suite.jobs.length, `${suite.distinct} different answers to ${suite.jobs.length} questions`);
});

test('a schema that takes long to compile holds nobody up, and may be cancelled meanwhile', async () => {
  const server = await Server.start(['--lanes', '2', '--threads', '1']);
  const post = (body, signal) => fetch(server.url + '/v1/chat/completions', { method: 'POST', signal, headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) });
  const messages = [{ role: 'user', content: 'Go on.' }];
  // Patterns whose automata are large: each remembers the last dozen characters. `n` makes schemas differ.
  const slow = (n) => Object.fromEntries(Array.from({ length: 12 }, (_, i) => [`p${i}`, { type: 'string', pattern: `^x${n}y${i}(a|b)*a(a|b){11}$` }]));
  const large = (n) => ({ messages, max_tokens: 2, response_format: { type: 'json_schema', json_schema: { name: 'x', schema: { type: 'object', properties: slow(n) } } } });
  try {
    // An answer under way gets its tokens while the schema is compiled: its rate is at least a third of what it was before.
    const stop = new AbortController();
    const stream = (await post({ messages, max_tokens: 30000, ignore_eos: true, stream: true, temperature: 0, speculate: false }, stop.signal)).body.getReader();
    let chunks = 0;
    const reading = (async () => { for (;;) { const { done, value } = await stream.read(); if (done) return; chunks += value.toString().length ? 1 : 0; } })().catch(() => {});
    await eventually(() => chunks > 50, 'the stream runs');
    const begin = Date.now(), before = chunks;
    const refused = await post(large(12000));
    const took = Date.now() - begin, meanwhile = chunks - before;
    assert.ok([200, 400].includes(refused.status));
    console.log(`# ${meanwhile} pieces in the ${took} ms that the schema took`);
    assert.ok(meanwhile >= 30, `${meanwhile} pieces in ${took} ms`);
    // Clients that go while their schema is compiled or waits for that leave nothing behind.
    const gone = new AbortController();
    const lost = [0, 1, 2].map((i) => post(large(8000 + i), gone.signal).catch((error) => error.name));
    await eventually(async () => (await server.get('/status')).json.requests.in_flight === 4, 'all are there');
    gone.abort();
    stop.abort();
    assert.deepEqual(await Promise.all(lost), ['AbortError', 'AbortError', 'AbortError']);
    await reading;
    await eventually(async () => { const { requests, lanes } = (await server.get('/status')).json; return requests.in_flight === 0 && lanes.active === 0; }, 'nothing is left', 20);
    const small = await server.post('/v1/chat/completions', { messages, max_tokens: 40, temperature: 0, chat_template_kwargs: { enable_thinking: false },
      response_format: { type: 'json_schema', json_schema: { name: 'x', schema: { enum: ['a', 'b'] } } } });
    assert.match(small.json.choices[0].message.content, /^\s*"[ab]"$/);
  } finally {
    assert.equal((await server.stop()).code, 0);
  }
});
