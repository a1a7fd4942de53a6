// Every schema of tests/data/text/schema_cases.json that is not refused, through the server with the embedded model: each constrained answer
// must be JSON, satisfy its schema by ajv's judgement, and have the ids of plain constrained decoding; greedy and sampled, with and without
// thinking, as the arguments of calls, at 1, 8 and 32 lanes. Then the speed of decoding with a schema beside the one without.
// Usage: tools/e2e.sh BUILD schema.test.mjs once (it installs the packages), then node tools/schema_suite.mjs [BUILD] [--only suite|speed] [--every N] [--threads N]
// [--rounds N] [--plan "--speculate dflash,grammar --width 7"] [--temperature 0] (of the speed; without a plan what a user gets, auto).
import path from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';

const root = path.join(path.dirname(fileURLToPath(import.meta.url)), '..');
const { values, positionals } = parseArgs({ allowPositionals: true, options: { only: { type: 'string' }, every: { type: 'string', default: '1' }, rounds: { type: 'string', default: '7' }, threads: { type: 'string' }, plan: { type: 'string' }, temperature: { type: 'string', default: '0,1' } } });
const build = path.resolve(positionals[0] ?? path.join(root, 'build'));
process.env.FORETOKEN ??= path.join(build, 'foretoken');
process.env.FORETOKEN_ROOT ??= root;
const inBuild = (name) => import(pathToFileURL(path.join(build, 'e2e', name)));
const { Server } = await inBuild('server.mjs');
const { schemas, Suite } = await inBuild('schema_suite.mjs');
const { speed } = await inBuild('schema_speed.mjs');

const more = values.threads ? ['--threads', values.threads] : [];
let failed = false;
if (values.only !== 'speed') {
  const suite = new Suite(schemas(Number(values.every)));
  console.log(`${suite.cases.length} schemas, ${suite.jobs.length} ways to ask for them`);
  let before = 0;
  for (const lanes of [1, 8, 32]) {
    const server = await Server.start(['--lanes', String(lanes), '--speculate', 'dflash,grammar', '--width', '7', ...more]);  // what is drafted does not follow the clock
    const begin = Date.now();
    await suite.run(server, lanes);
    const { speculation } = (await server.get('/status')).json;
    await server.stop();
    const { answers, ...all } = suite.figures;
    console.log(`${lanes} lanes: ${answers - before} answers in ${((Date.now() - begin) / 1000).toFixed(0)} s, ${speculation.tokens_per_cycle} tokens per cycle; so far ${JSON.stringify(all)}`);
    before = answers;
  }
  console.log(`${suite.distinct} different plain answers; ${suite.problems.length} problems`);
  console.log(`never complete: ${[...suite.never].join('; ') || 'none'}`);
  for (const problem of suite.problems.slice(0, 50)) console.log(`PROBLEM ${problem}`);
  failed = suite.problems.length > 0 || suite.figures.ids_equal !== suite.figures.answers || suite.figures.answers === 0;
}
if (values.only !== 'suite') {
  const server = await Server.start(['--lanes', '1', ...(values.plan ? values.plan.split(' ') : []), ...more]);
  for (const line of await speed(server, Number(values.rounds), values.temperature.split(',').map(Number))) console.log(line);
  await server.stop();
}
process.exit(failed ? 1 : 0);
