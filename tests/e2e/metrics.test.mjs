// /status holds what its documentation names, /metrics is well-formed and says the same, and neither ever holds text of a prompt or an answer.
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { eventually, root, Server } from './server.mjs';

// Families and samples of the text format, every rule of it checked.
function parse(text) {
  const samples = new Map(), types = new Map(), ended = new Set();
  let family;
  assert.ok(text.endsWith('\n'));
  for (const line of text.trimEnd().split('\n')) {
    let match;
    if ((match = /^# (HELP|TYPE) (foretoken_\w+) (.+)$/.exec(line))) {
      if (match[1] === 'HELP') {
        if (family) ended.add(family);
        family = match[2];
        assert.ok(!ended.has(family), `${family} in one place`);
      } else {
        assert.equal(match[2], family);
        assert.match(match[3], /^(gauge|counter|summary)$/);
        if (match[3] === 'counter') assert.match(family, /_total$/);
        types.set(family, match[3]);
      }
    } else if ((match = /^(foretoken_\w+)(\{(?:\w+="[^"\\]*",?)+\})? (-?[\d.e+-]+)$/.exec(line))) {
      assert.ok(match[1] === family || (types.get(family) === 'summary' && [`${family}_sum`, `${family}_count`].includes(match[1])), line);
      assert.ok(!samples.has(match[1] + (match[2] ?? '')), `once: ${line}`);
      samples.set(match[1] + (match[2] ?? ''), Number(match[3]));
    } else {
      assert.fail(`no line of the format: ${line}`);
    }
  }
  return samples;
}

const at = (object, keys) => keys.split('.').reduce((value, key) => value?.[key], object);
const same = {
  foretoken_engine_restarts_total: 'engine_process.restarts', 'foretoken_lanes{state="active"}': 'lanes.active', 'foretoken_lanes{state="waiting"}': 'lanes.waiting',
  'foretoken_lanes{state="suspended"}': 'lanes.suspended', foretoken_lanes_limit: 'lanes.total', foretoken_queue_waiting: 'queue.waiting', foretoken_queue_limit: 'queue.limit',
  foretoken_kv_pages: 'pages.in_use', foretoken_kv_pages_limit: 'pages.limit', foretoken_kv_page_bytes: 'pages.page_bytes', foretoken_requests_in_flight: 'requests.in_flight',
  'foretoken_requests_total{outcome="length"}': 'requests.ended.length', foretoken_prompt_tokens_total: 'requests.prompt_tokens', foretoken_cached_tokens_total: 'requests.cached_tokens',
  foretoken_completion_tokens_total: 'requests.completion_tokens', foretoken_engine_requests_submitted_total: 'engine_requests.submitted',
  foretoken_engine_emitted_tokens_total: 'tokens.emitted', foretoken_engine_prompt_rows_total: 'tokens.prompt_rows', 'foretoken_engine_passes_total{kind="decode"}': 'passes.decode',
  'foretoken_engine_passes_total{kind="prefill"}': 'passes.prefill', foretoken_prefix_cache_lookups_total: 'prefix_cache.lookups', foretoken_prefix_cache_hits_total: 'prefix_cache.hits',
  foretoken_prefix_cache_restored_tokens_total: 'prefix_cache.restored_tokens', foretoken_prefix_cache_evictions_total: 'prefix_cache.evictions',
  foretoken_prefix_cache_entries: 'prefix_cache.entries', foretoken_prefix_cache_bytes: 'prefix_cache.ram_bytes', foretoken_prefix_cache_disk_bytes: 'prefix_cache.disk_bytes',
  'foretoken_prefix_cache_dropped_total{reason="no_room"}': 'prefix_cache.dropped.no_room', foretoken_memory_planned_bytes: 'memory.planned_bytes',
  foretoken_speculation_cycles_total: 'speculation.cycles', 'foretoken_speculation_drafted_total{drafter="dflash"}': 'speculation.by_drafter.dflash.drafted',
  'foretoken_speculation_accepted_total{drafter="dflash"}': 'speculation.by_drafter.dflash.accepted', foretoken_time_to_first_token_seconds_count: 'latency_ms.ttft.count',
  foretoken_inter_token_seconds_count: 'latency_ms.inter_token.count' };

test('status and metrics agree, are complete, and hold no text', async () => {
  const server = await Server.start(['--lanes', '2', '--speculate', 'dflash', '--width', '7']);  // pinned: what is drafted does not follow the clock
  try {
    const words = 'Tell me about zymurgy and its quixotic vexations';
    let said = '';
    for (let i = 0; i < 3; ++i) {
      const answer = await server.post('/v1/chat/completions', { messages: [{ role: 'user', content: words }], max_tokens: 40, temperature: 0, ignore_eos: true });
      const { content, reasoning_content } = answer.json.choices[0].message;
      said += `${content ?? ''} ${reasoning_content ?? ''}`;
    }
    const status = (await server.get('/status')).json, text = (await server.get('/metrics')).text, samples = parse(text);
    for (const [sample, keys] of Object.entries(same)) assert.equal(samples.get(sample), at(status, keys), `${sample} and ${keys}`);
    for (const sample of ['foretoken_engine_emitted_tokens_total', 'foretoken_speculation_cycles_total', 'foretoken_prefix_cache_hits_total', 'foretoken_lanes_limit'])
      assert.ok(samples.get(sample) > 0, sample);
    const plans = [...samples.keys()].filter((sample) => sample.startsWith('foretoken_speculation_plan_cycles_total'));
    assert.equal(plans.length, Object.keys(status.speculation.plans).length);
    assert.ok([...samples.keys()].some((sample) => sample.startsWith('foretoken_build_info{version=') && sample.includes(status.model.fingerprint)));

    const documented = fs.readFileSync(path.join(root, 'docs/serving.md'), 'utf8').split('## Status')[1];
    for (const key of Object.keys(status)) assert.ok(documented.includes(`\`${key}\``), `docs/serving.md names ${key}`);
    const required = ['ready', 'model.name', 'model.fingerprint', 'build.version', 'speculation.resolved', 'speculation.why', 'numerics', 'memory', 'lanes.active', 'lanes.waiting', 'lanes.suspended', 'queue.waiting',
      'prefix_cache.lookups', 'prefix_cache.hits', 'prefix_cache.restored_tokens', 'prefix_cache.evictions', 'prefix_cache.ram_bytes', 'prefix_cache.disk_bytes', 'prefix_cache.dropped.no_room',
      'speculation.plans', 'speculation.by_drafter.dflash.drafted', 'speculation.by_drafter.dflash.verified', 'speculation.by_drafter.dflash.accepted', 'phases_ms.forward', 'latency_ms.ttft.p50', 'latency_ms.ttft.p99',
      'latency_ms.inter_token.p50', 'engine_process.restarts', 'engine_process.last_reason'];
    for (const keys of required) assert.notEqual(at(status, keys), undefined, `status holds ${keys}`);

    assert.ok(said.length > 50);
    const all = JSON.stringify(status) + text + server.log;
    for (const word of new Set(`${words} ${said}`.toLowerCase().match(/[a-z]{7,}/g)))
      if (!/speculat|process|request|command|default/.test(word)) assert.ok(!all.toLowerCase().includes(word), `"${word}" is nowhere`);

    process.kill(status.engine_process.pid, 'SIGKILL');
    await eventually(async () => {  // its connection ends a moment before its process is known to have
      const now = (await server.get('/status')).json;
      return now.ready === false && now.engine_process.last_reason !== null;
    }, 'it recovers');
    const recovering = (await server.get('/status')).json;
    assert.deepEqual([recovering.model, recovering.build, recovering.numerics], [status.model, status.build, status.numerics], 'what runs is known meanwhile');
    assert.match(recovering.engine_process.last_reason, /signal 9/);
    const down = parse((await server.get('/metrics')).text);
    assert.equal(down.get('foretoken_ready'), 0);
    assert.equal(down.get('foretoken_engine_restarts_total'), 1);
  } finally {
    await server.stop();
  }
});
