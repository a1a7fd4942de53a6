// Decoding speed with a schema beside the one without, on the engine's own clock, in alternating rounds; medians of the ratios.
//
// Answers of a schema and free ones differ in their texts, so drafts are worth differently much in them: with speculation, time per cycle
// tells what the masks cost, tokens/s what a user gets. Under the expression that allows everything the texts are equal, and so is all but
// the masks.

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
  anything: {},
};
const words = ['Describe twelve people.', 'Write a list of sentences.', 'Count far.', 'List what an agent does.', 'Write Python code.'];

const median = (list) => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)];

export async function speed(server, rounds) {
  const ask = async (i, format, speculate, seed) => {
    const { status, json, text } = await server.post('/v1/chat/completions', { messages: [{ role: 'user', content: words[i] }], temperature: 1, seed, max_tokens: kTokens, ignore_eos: !format,
      speculate, chat_template_kwargs: { enable_thinking: false }, ...(format ? { response_format: format } : {}) });
    if (status !== 200) throw new Error(text);
    const { timing, speculation } = json.foretoken, tokens = json.usage.completion_tokens;
    return { tokens, rate: tokens / timing.decode_s, cycle_ms: 1e3 * timing.decode_s / Math.max(1, speculation.cycles), perCycle: tokens / Math.max(1, speculation.cycles) };
  };
  const schema = (s) => ({ type: 'json_schema', json_schema: { name: 's', schema: s } });
  const formats = [...Object.entries(kSchemas).map(([name, s]) => [`schema: ${name}`, schema(s)]), ['expression: all texts', { type: 'regex', pattern: '[\\s\\S]*' }]];
  const lines = [];
  for (const speculate of [false, true]) {
    const all = [];
    for (const [i, [name, format]] of formats.entries()) {
      const pairs = [];
      for (let round = -1; round < rounds; ++round) {  // the first warms up: grammars are compiled
        const seed = 100 + Math.max(0, round);
        const at = i % words.length;
        const both = round % 2 ? [await ask(at, format, speculate, seed), await ask(at, null, speculate, seed)] : [await ask(at, null, speculate, seed), await ask(at, format, speculate, seed)].reverse();
        if (round >= 0 && both[0].tokens >= 60) pairs.push(both);
      }
      if (!pairs.length) { lines.push(`${speculate ? 'speculative' : 'plain'}, ${name}: answers too short`); continue; }
      const rate = median(pairs.map(([a, b]) => a.rate / b.rate)), cycle = median(pairs.map(([a, b]) => b.cycle_ms / a.cycle_ms));
      all.push(rate);
      lines.push(`${speculate ? 'speculative' : 'plain'}, ${name}: ${median(pairs.map(([a]) => a.rate)).toFixed(0)} tokens/s with, ${median(pairs.map(([, b]) => b.rate)).toFixed(0)} without, ` +
        `ratio ${rate.toFixed(2)}; cycles ${cycle.toFixed(2)} as fast; tokens per cycle ${median(pairs.map(([a]) => a.perCycle)).toFixed(2)} and ${median(pairs.map(([, b]) => b.perCycle)).toFixed(2)} (${pairs.length} pairs)`);
    }
    lines.push(`${speculate ? 'speculative' : 'plain'}: geometric mean of the ratios ${Math.exp(all.reduce((s, r) => s + Math.log(r), 0) / all.length).toFixed(2)}, least ${Math.min(...all).toFixed(2)}`);
  }
  return lines;
}
