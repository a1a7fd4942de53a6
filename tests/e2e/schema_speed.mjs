// Decoding speed with a schema beside the one without, in alternating rounds; medians of the ratios. Two clocks: the engine's own, and the
// processor time of its process, which others on the machine disturb less.
//
// Answers of a schema and free ones differ in their texts, so drafts are worth differently much in them: with speculation, time per cycle
// tells what the masks cost, tokens/s what a user gets. Under the expression that allows everything the texts are equal, and so is all but
// the masks.

import { readdirSync, readFileSync } from 'node:fs';

const kTokens = 240;

const person = { type: 'object', properties: { name: { type: 'string', maxLength: 40 }, age: { type: 'integer', minimum: 0, maximum: 150 }, email: { type: 'string', format: 'email' },
  born: { type: 'string', format: 'date' }, tags: { type: 'array', items: { enum: ['a', 'b', 'c'] }, maxItems: 5 } }, required: ['name', 'age', 'email', 'born', 'tags'], additionalProperties: false };
const kSchemas = {
  // Each answer is long enough to measure: arrays that must be filled.
  people: { type: 'array', items: person, minItems: 12, maxItems: 12 },
  strings: { type: 'array', items: { type: 'string', minLength: 20, maxLength: 60 }, minItems: 20 },
  numbers: { type: 'array', items: { type: 'number' }, minItems: 100 },
  records: { type: 'array', minItems: 30, items: { anyOf: [{ type: 'object', properties: { kind: { const: 'read' }, path: { type: 'string', pattern: '^/[a-z/]{1,20}$' } }, required: ['kind', 'path'], additionalProperties: false },
    { type: 'object', properties: { kind: { const: 'run' }, command: { type: 'string', maxLength: 30 }, timeout: { type: 'integer', minimum: 1, maximum: 600 } }, required: ['kind', 'command'], additionalProperties: false }] } },
  anything: { type: 'array', minItems: 40 },
};
const words = ['Describe twelve people.', 'Write a list of sentences.', 'Count far.', 'List what an agent does.', 'Write Python code.', 'Write a Python function that adds two numbers.'];

const median = (list) => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)];

// Seconds of processor time of all threads of a process.
function processorTime(pid) {
  return readdirSync(`/proc/${pid}/task`).reduce((sum, task) => sum + Number(readFileSync(`/proc/${pid}/task/${task}/schedstat`, 'utf8').split(' ')[0]) / 1e9, 0);
}

export async function speed(server, rounds) {
  const { pid } = (await server.get('/status')).json.engine_process;
  const ask = async (i, format, { speculate, temperature, seed, whole }) => {
    const cpu = processorTime(pid);
    const { status, json, text } = await server.post('/v1/chat/completions', { messages: [{ role: 'user', content: words[i] }], temperature, seed, max_tokens: kTokens, ignore_eos: !format && !whole,
      speculate, chat_template_kwargs: { enable_thinking: false }, ...(format ? { response_format: format } : {}) });
    if (status !== 200) throw new Error(text);
    const { timing, speculation } = json.foretoken, tokens = json.usage.completion_tokens, content = json.choices[0].message.content;
    return { tokens, content, cpu_ms: 1e3 * (processorTime(pid) - cpu) / tokens, rate: tokens / timing.decode_s, cycle_ms: 1e3 * timing.decode_s / Math.max(1, speculation.cycles), perCycle: tokens / Math.max(1, speculation.cycles) };
  };
  const schema = (s) => ({ type: 'json_schema', json_schema: { name: 's', schema: s } });
  const formats = [...Object.entries(kSchemas).map(([name, s]) => [`schema: ${name}`, schema(s)]), ['expression: all texts', { type: 'regex', pattern: '[\\s\\S]*' }]];
  const lines = [];
  for (const [speculate, temperature] of [[false, 0], [false, 1], [true, 0], [true, 1]]) {
    const mode = `${speculate ? 'speculative' : 'plain'}, T=${temperature}`;
    const all = [];
    for (const [i, [name, format]] of formats.entries()) {
      const whole = format.type === 'regex', pairs = [];
      for (let round = -1; round < rounds; ++round) {  // the first warms up: grammars are compiled
        const how = { speculate, temperature, seed: 100 + Math.max(0, round), whole }, pair = {};
        for (const which of round % 2 ? ['with', 'without'] : ['without', 'with']) pair[which] = await ask(i % words.length, which === 'with' ? format : null, how);
        if (round >= 0 && pair.with.tokens >= 30 && (!whole || pair.with.content === pair.without.content)) pairs.push([pair.with, pair.without]);
      }
      if (!pairs.length) { lines.push(`${mode}, ${name}: answers too short`); continue; }
      const ratio = (value) => median(pairs.map(([a, b]) => value(a, b)));
      const rate = ratio((a, b) => a.rate / b.rate), cpu = ratio((a, b) => b.cpu_ms / a.cpu_ms);
      all.push(cpu);
      lines.push(`${mode}, ${name}: ${median(pairs.map(([a]) => a.rate)).toFixed(0)} tokens/s with, ${median(pairs.map(([, b]) => b.rate)).toFixed(0)} without, ` +
        `ratio ${rate.toFixed(2)}, by processor time ${cpu.toFixed(2)}; of a cycle ${ratio((a, b) => b.cycle_ms / a.cycle_ms).toFixed(2)}, by processor time ` +
        `${ratio((a, b) => b.cpu_ms * b.perCycle / (a.cpu_ms * a.perCycle)).toFixed(2)}; tokens per cycle ${median(pairs.map(([a]) => a.perCycle)).toFixed(2)} and ` +
        `${median(pairs.map(([, b]) => b.perCycle)).toFixed(2)} (${pairs.length} pairs)`);
    }
    lines.push(`${mode}: geometric mean of the ratios by processor time ${Math.exp(all.reduce((s, r) => s + Math.log(r), 0) / all.length).toFixed(2)}, least ${Math.min(...all).toFixed(2)}`);
  }
  return lines;
}
