// Constrained answers through the server: each is JSON, satisfies its schema by another implementation's judgement, and has the ids of
// plain constrained decoding. Used by schema.test.mjs with a few schemas, and by tools/schema_suite.mjs with all.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { schemaValidator } from './schema_validator.mjs';
import { root } from './server.mjs';

const require = createRequire(import.meta.url);

// [{name, schema}]: the schemas of the text room's cases that are not refused. `step`: every so many, beginning with the first.
export function schemas(step = 1) {
  const cases = JSON.parse(readFileSync(path.join(root, 'tests/data/text/schema_cases.json'), 'utf8'));
  return cases.filter((c) => !c.refused).filter((_, i) => i % step === 0).map(({ name, schema }) => ({ name, schema }));
}

// How a schema is asked for. `tools`: as the arguments of a call that must be made; objects alone.
export const modes = [
  { name: 'T=0', temperature: 0 },
  { name: 'T=1', temperature: 1 },
  { name: 'T=0, thinking', temperature: 0, thinking: true },
  { name: 'T=1, thinking', temperature: 1, thinking: true },
  { name: 'T=1, arguments', temperature: 1, tools: true },
];

const isObject = (schema) => schema.type === 'object';

export function requestOf({ name, schema }, mode, seed) {
  const request = { messages: [{ role: 'user', content: `Write an example of this: ${name}.` }], temperature: mode.temperature, seed, max_tokens: 160, return_tokens: true,
    chat_template_kwargs: { enable_thinking: Boolean(mode.thinking) } };
  if (mode.thinking) request.thinking_budget = 40;
  if (mode.tools) return { ...request, tools: [{ type: 'function', function: { name: 'store', strict: true, parameters: schema } }], tool_choice: 'required', parallel_tool_calls: false };
  return { ...request, response_format: { type: 'json_schema', json_schema: { name: 'answer', schema } } };
}

// `work` for every item, `width` at a time.
async function spread(items, width, work) {
  const rest = items.entries();
  await Promise.all(Array.from({ length: width }, async () => { for (const [i, item] of rest) await work(item, i); }));
}

export class Suite {
  // complete: ended by the model. cut: by max_tokens, the beginning of a text; such a question is put again, with a
  // bias towards what closes strings, arrays and objects, and a penalty against loops.
  // drafted: by whichever drafter; foreseen: by the grammar.
  // refused: arguments that the model's way to write calls cannot spell, or that nothing counts there.
  figures = { questions: 0, answers: 0, complete: 0, cut: 0, never_complete: 0, refused: 0, ids_equal: 0, tokens: 0, drafted: 0, foreseen: 0 };
  problems = [];
  never = new Set();
  #plain = new Map();
  #validators = new Map();

  constructor(cases) {
    this.jobs = cases.flatMap((c, i) => modes.filter((m) => !m.tools || isObject(c.schema)).map((mode) => ({ ...c, mode, seed: 1000 + i, key: `${c.name}, ${mode.name}` })));
    this.cases = cases;
  }
  // All jobs on a running server, `lanes` at a time, speculating; plain answers are asked for once, from the first server.
  async run(server, lanes) {
    const closing = {};
    for (const [mark, bias] of [['"', 60], [']', 40], ['}', 40]]) closing[(await server.post('/tokenize', { content: mark })).json.tokens[0]] = bias;
    await spread(this.jobs, lanes, async (job) => {
      ++this.figures.questions;
      const first = await this.#compare(server, job, {});
      if (first?.finish !== 'length') return;
      const second = await this.#compare(server, { ...job, key: `${job.key}, closing` }, { logit_bias: closing, frequency_penalty: 2, max_tokens: 400 });
      if (second?.finish !== 'length') return;
      ++this.figures.never_complete;
      this.never.add(job.key);
    });
  }
  async #compare(server, job, more) {
    const fast = await this.#ask(server, job, more);
    if (!fast) return null;
    if (!this.#plain.has(job.key)) this.#plain.set(job.key, await this.#ask(server, job, { ...more, speculate: false }));
    const plain = this.#plain.get(job.key);
    this.#check(job, fast);
    if (plain && fast.ids === plain.ids && fast.text === plain.text && fast.finish === plain.finish) ++this.figures.ids_equal;
    else this.problems.push(`${job.key}: ${JSON.stringify(fast.text.slice(0, 200))} with speculation, ${JSON.stringify(plain?.text.slice(0, 200))} without`);
    if (plain?.drafted > 0) this.problems.push(`${job.key}: the reference speculated`);
    return fast;
  }
  // Different answers among the plain ones: the reference is not trivial.
  get distinct() { return new Set([...this.#plain.values()].filter(Boolean).map((p) => p.ids)).size; }

  async #ask(server, job, more) {
    const answer = await server.post('/v1/chat/completions', { ...requestOf(job, job.mode, job.seed), ...more });
    if (job.mode.tools && answer.status === 400 && /has no XML form/.test(answer.text)) {
      ++this.figures.refused;
      return null;
    }
    if (answer.status !== 200) {
      this.problems.push(`${job.key}: status ${answer.status}, ${answer.text.slice(0, 300)}`);
      return null;
    }
    const [choice] = answer.json.choices, { message } = choice;
    return { ids: choice.tokens.map((t) => t.id).join(), drafted: choice.tokens.filter((t) => t.drafted !== null).length, foreseen: choice.tokens.filter((t) => t.drafted === 'grammar').length, count: choice.tokens.length,
      text: job.mode.tools ? message.tool_calls?.[0]?.function.arguments ?? message.content : message.content, finish: choice.finish_reason, reasoning: message.reasoning_content };
  }
  #check(job, answer) {
    const f = this.figures;
    ++f.answers;
    f.tokens += answer.count;
    f.drafted += answer.drafted;
    f.foreseen += answer.foreseen;
    if (job.mode.thinking && !answer.reasoning) this.problems.push(`${job.key}: it did not think`);
    if (answer.finish === 'length') {
      ++f.cut;
      return;
    }
    ++f.complete;
    if (!this.#validators.has(job.name)) this.#validators.set(job.name, schemaValidator(require, job.schema));
    try {
      const value = JSON.parse(answer.text);
      const validate = this.#validators.get(job.name);
      if (!validate(value)) this.problems.push(`${job.key}: ${answer.text.slice(0, 300)} is not valid: ${JSON.stringify(validate.errors?.[0])}`);
    } catch (error) {
      this.problems.push(`${job.key}: ${JSON.stringify(answer.text).slice(0, 300)}: ${error.message}`);
    }
  }
}
