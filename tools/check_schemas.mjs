// Asks another validator about our JSON Schema cases: node tools/check_schemas.mjs [BUILD] (default build).
// Every instance of tests/data/text/schema_cases.json must be valid or not as the case says, and every text that the tests
// of the text room generated (BUILD/schema_walks.jsonl, written by text_test) must be valid. Needs Node and the packages that
// tools/e2e.sh installs into BUILD/e2e.
import { createRequire } from 'node:module';
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { schemaValidator } from '../tests/e2e/schema_validator.mjs';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const build = process.argv[2] ?? join(root, 'build');
const require = createRequire(resolve(build, 'e2e', 'package.json'));
const validator = (c) => schemaValidator(require, c.schema);
try {
  require.resolve('ajv');
} catch (error) {
  console.error(`check_schemas: ${error.message.split('\n')[0]}; tools/e2e.sh installs it`);
  process.exit(2);
}

const cases = JSON.parse(readFileSync(join(root, 'tests/data/text/schema_cases.json'), 'utf8'));
const validators = new Map();
let checked = 0, wrong = 0;
function expect(name, validate, value, valid) {
  ++checked;
  if (validate(value) === valid) return;
  ++wrong;
  console.log(`WRONG ${name}: ${JSON.stringify(value).slice(0, 200)} is ${valid ? 'not ' : ''}valid`);
}
for (const c of cases) {
  if (c.refused) continue;
  const validate = validator(c);
  validators.set(c.name, validate);
  for (const value of c.accept) expect(c.name, validate, value, true);
  for (const text of c.accept_text ?? []) expect(c.name, validate, JSON.parse(text), true);
  for (const value of c.narrowed ?? []) expect(c.name, validate, value, true);
  for (const value of c.reject) expect(c.name, validate, value, false);
}
console.log(`${checked} instances of ${validators.size} schemas, ${wrong} wrong`);

const walks = join(build, 'schema_walks.jsonl');
if (existsSync(walks)) {
  let texts = 0, invalid = 0;
  for (const line of readFileSync(walks, 'utf8').split('\n').filter(Boolean)) {
    const { name, text } = JSON.parse(line);
    ++texts;
    if (validators.get(name)(JSON.parse(text))) continue;
    ++invalid;
    console.log(`WRONG ${name}: generated ${text.slice(0, 300)}`);
  }
  console.log(`${texts} generated texts, ${invalid} invalid`);
  wrong += invalid;
} else {
  console.log(`no ${walks}: run text_test first to check generated texts too`);
}
process.exit(wrong ? 1 : 0);
