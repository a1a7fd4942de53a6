// Decoding speed with a schema beside the one without, plain and speculative, in alternating rounds; medians of the ratios. The clock is
// the processor time of the engine's process, without what the prompt takes, which others on the machine disturb less.
//
// What speculation brings depends on the text, and a schema changes the text. So there are three kinds of pairs:
//   asked:   the question asks for JSON, and the schema is that of the model's own free answer: the texts are alike. This is what the ratio
//            with and without a schema means;
//   foreign: the schema has nothing to do with the question, so the text is one that the model would not have written: the ratio compares
//            two texts as well. The gain within the schema, speculative beside plain decoding of one text, is free of that;
//   all:     an expression that every text matches: the texts are equal, and the ratio is that of the masks alone.

import { readdirSync, readFileSync } from 'node:fs';

const kTokens = 240;

const person = { type: 'object', properties: { name: { type: 'string', maxLength: 40 }, age: { type: 'integer', minimum: 0, maximum: 150 }, email: { type: 'string', format: 'email' },
  born: { type: 'string', format: 'date' }, tags: { type: 'array', items: { enum: ['a', 'b', 'c'] }, maxItems: 5 } }, required: ['name', 'age', 'email', 'born', 'tags'], additionalProperties: false };
const kForeign = {
  // Each answer is long enough to measure: arrays that must be filled.
  people: ['Describe twelve people.', { type: 'array', items: person, minItems: 12, maxItems: 12 }],
  strings: ['Write a list of sentences.', { type: 'array', items: { type: 'string', minLength: 20, maxLength: 60 }, minItems: 20 }],
  numbers: ['Count far.', { type: 'array', items: { type: 'number' }, minItems: 100 }],
  records: ['List what an agent does.', { type: 'array', minItems: 30, items: { anyOf: [{ type: 'object', properties: { kind: { const: 'read' }, path: { type: 'string', pattern: '^/[a-z/]{1,20}$' } }, required: ['kind', 'path'], additionalProperties: false },
    { type: 'object', properties: { kind: { const: 'run' }, command: { type: 'string', maxLength: 30 }, timeout: { type: 'integer', minimum: 1, maximum: 600 } }, required: ['kind', 'command'], additionalProperties: false }] } }],
  anything: ['Write Python code.', { type: 'array', minItems: 40 }],
};
const kAsked = ['Convert this CSV to JSON:\n\nname,age,city\nAnna,31,Oslo\nBen,27,Rome\nCleo,45,Paris\nDan,38,Oslo\n', 'List the numbers from 1 to 30 as a JSON array.', 'Write JSON for a user named Anna, 31, from Oslo.',
  'Make a JSON list of five people with name, age, job and city.', 'Write a JSON object that describes a product.', 'List all the even numbers from 1 to 50 as JSON.'];

const median = (list) => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)];
const mean = (list) => Math.exp(list.reduce((sum, x) => sum + Math.log(x), 0) / list.length);

// Seconds of processor time of all threads of a process.
function processorTime(pid) {
  return readdirSync(`/proc/${pid}/task`).reduce((sum, task) => sum + Number(readFileSync(`/proc/${pid}/task/${task}/schedstat`, 'utf8').split(' ')[0]) / 1e9, 0);
}

// The schema that a value suggests: its types and its names, all of them required, and nothing else.
function schemaOf(value) {
  if (Array.isArray(value)) return { type: 'array', items: value.length ? schemaOf(value[0]) : {}, minItems: value.length };
  if (value === null || typeof value !== 'object') return { type: value === null ? 'null' : typeof value };
  return { type: 'object', properties: Object.fromEntries(Object.entries(value).map(([name, v]) => [name, schemaOf(v)])), required: Object.keys(value), additionalProperties: false };
}

const format = (schema) => ({ type: 'json_schema', json_schema: { name: 's', schema } });

class Measurement {
  constructor(server, pid, temperature) { Object.assign(this, { server, pid, temperature }); }

  async ask(question, { format: response_format, speculate, seed, tokens, ignore_eos }) {
    const begin = processorTime(this.pid);
    const { status, json, text } = await this.server.post('/v1/chat/completions', { messages: [{ role: 'user', content: question }], temperature: this.temperature, seed, max_tokens: tokens, ignore_eos, speculate,
      chat_template_kwargs: { enable_thinking: false }, ...(response_format ? { response_format } : {}) });
    if (status !== 200) throw new Error(text);
    const count = json.usage.completion_tokens;
    return { tokens: count, content: json.choices[0].message.content, cpu: processorTime(this.pid) - begin, perCycle: count / Math.max(1, json.foretoken.speculation.cycles) };
  }
  // Answers of one round in the four ways, as processor time of a token; null when an answer is too short to say anything.
  async round(question, response_format, seed, { ignore_eos, same }) {
    const ways = [[true, true], [true, false], [false, true], [false, false]].map(([bound, speculate]) => ({ bound, speculate }));
    if (seed % 2) ways.reverse();
    const found = {};
    for (const { bound, speculate } of ways) {
      const how = { speculate, seed, ...(bound ? { format: response_format } : { ignore_eos }) };
      const prompt = await this.ask(question, { ...how, tokens: 1 }), whole = await this.ask(question, { ...how, tokens: kTokens });
      if (whole.tokens < 30) return null;
      found[`${bound ? 'with' : 'without'}${speculate ? 'Drafts' : ''}`] = { ms: 1e3 * (whole.cpu - prompt.cpu) / (whole.tokens - 1), perCycle: whole.perCycle, content: whole.content };
    }
    return same && found.with.content !== found.without.content ? null : found;
  }
  // A line of figures, and the ratios of speeds (1: a schema costs nothing).
  async compare(name, question, response_format, rounds, options = {}) {
    const all = [];
    for (let i = -1; i < rounds; ++i) {  // the first warms up: grammars are compiled
      const one = await this.round(question, response_format, 100 + Math.max(0, i), options);
      if (i >= 0 && one) all.push(one);
    }
    if (!all.length) return { line: `${name}: answers too short` };
    const ratio = (a, b) => median(all.map((r) => r[a].ms / r[b].ms));
    const plain = ratio('without', 'with'), drafts = ratio('withoutDrafts', 'withDrafts');
    const tokens = (way) => median(all.map((r) => r[way].perCycle)).toFixed(2);
    return { plain, drafts, line: `${name}: with of without, plain ${plain.toFixed(2)}, speculative ${drafts.toFixed(2)}; gain by speculation ${ratio('with', 'withDrafts').toFixed(2)} with, ` +
      `${ratio('without', 'withoutDrafts').toFixed(2)} without; tokens per cycle ${tokens('withDrafts')} and ${tokens('withoutDrafts')} (${all.length} rounds)` };
  }
}

export async function speed(server, rounds, temperatures = [0, 1]) {
  const { pid } = (await server.get('/status')).json.engine_process;
  const lines = [];
  for (const temperature of temperatures) {
    const m = new Measurement(server, pid, temperature);
    const kinds = { asked: [], foreign: [], all: [] };
    const add = async (kind, name, ...rest) => {
      const result = await m.compare(`T=${temperature}, ${kind}, ${name}`, ...rest);
      lines.push(result.line);
      if (result.plain) kinds[kind].push(result);
    };
    for (const question of kAsked) {
      const free = await new Measurement(server, pid, 0).ask(question, { tokens: kTokens, seed: 1, speculate: true });
      const body = /```json\n([\s\S]*?)\n?```/.exec(free.content)?.[1];
      let value;
      try { value = JSON.parse(body); } catch { continue; }
      await add('asked', JSON.stringify(question.slice(0, 30)), question, format(schemaOf(value)), rounds);
    }
    for (const [name, [question, schema]] of Object.entries(kForeign)) await add('foreign', name, question, format(schema), rounds, { ignore_eos: true });
    await add('all', 'any text', 'Write a Python function that adds two numbers.', { type: 'regex', pattern: '[\\s\\S]*' }, rounds, { same: true });
    for (const [kind, results] of Object.entries(kinds))
      if (results.length)
        lines.push(`T=${temperature}, ${kind}: geometric mean of with of without by processor time of a token: plain ${mean(results.map((r) => r.plain)).toFixed(2)}, speculative ` +
          `${mean(results.map((r) => r.drafts)).toFixed(2)} (least ${Math.min(...results.map((r) => r.drafts)).toFixed(2)}) of ${results.length}`);
  }
  return lines;
}
