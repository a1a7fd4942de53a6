// Ajv, set up for one JSON Schema: another implementation's opinion. `require` finds the packages ajv, ajv-formats and ajv-draft-04.
export function schemaValidator(require, schema) {
  const named = (name) => { const found = require(name); return found.default ?? found; };
  // Two drafts spell some keywords differently; a pattern that is no Unicode pattern is tried as an older one.
  const text = JSON.stringify(schema);
  const Draft = named(text.includes('"exclusiveMinimum":true') ? 'ajv-draft-04' : text.includes('"items":[') ? 'ajv' : 'ajv/dist/2020');
  const { $schema, ...rest } = Object(schema);
  const compile = (unicodeRegExp) => {
    const ajv = new Draft({ strict: false, logger: false, unicodeRegExp });
    named('ajv-formats')(ajv);
    return ajv.compile(typeof schema === 'boolean' ? schema : rest);
  };
  try {
    return compile(true);
  } catch {
    return compile(false);
  }
}
