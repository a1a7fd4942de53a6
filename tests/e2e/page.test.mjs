// The chat page in a real browser, at desktop and phone size, against the real server; scripted streams stand in where the embedded model
// would not write what a test needs to see. Screenshots go to BUILD/e2e-screenshots.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { desktop, launch, phone, script, shots, streamOf, visit } from './browser.mjs';
import { eventually, Server } from './server.mjs';

const { browser, reason } = await launch();
const options = browser ? {} : { skip: reason };
const question = 'Write a Python function that adds two numbers.';
const steady = { temperature: 0, thinking: 'off', max_tokens: 60 };
let server;

before(async () => { if (browser) server = await Server.start(['--lanes', '2', '--speculate', 'dflash', '--width', '7']); });
after(async () => {
  await browser?.close();
  if (server) assert.equal((await server.stop()).code, 0);
});

const shot = (page, name) => page.screenshot({ path: path.join(shots, `${name}.png`) });
const field = (page) => page.getByLabel('Message', { exact: true });
const answerDone = (page) => page.locator('.message.assistant').last().and(page.locator('[aria-busy=false]')).waitFor();

const figuresOf = async (answer) => Object.fromEntries(await answer.locator('.figures div').evaluateAll((all) => all.map((d) => [d.children[0].textContent, d.children[1].textContent])));

async function ask(page, text) {
  await field(page).fill(text);
  await page.getByRole('button', { name: 'Send', exact: true }).click();
  await answerDone(page);
}

// A test with a page of its own, which must end without a problem.
function onPage(name, visitor, body) {
  test(name, options, async () => {
    const { context, page, problems } = await visit(browser, visitor.url ?? server.url, visitor);
    try {
      await body(page, context);
      assert.deepEqual(problems, []);
    } catch (error) {
      await shot(page, `failed ${name.replace(/[^\w ]/g, '').slice(0, 60)}`).catch(() => {});
      throw error;
    } finally {
      await context.close();
    }
  });
}

for (const [name, size] of [['desktop', desktop], ['phone', phone]]) {
  onPage(`${name}: an answer, its figures and drafted tokens are shown, and a reload keeps it`, { size, settings: steady }, async (page) => {
    await page.getByText('demo-dense').first().waitFor();
    await shot(page, `${name}-1-welcome`);
    // What the API says to the same question.
    const api = (await server.post('/v1/chat/completions', { messages: [{ role: 'user', content: question }], temperature: 0, max_tokens: 60, return_tokens: true,
      chat_template_kwargs: { enable_thinking: false } })).json;
    const expected = api.choices[0].message.content, tokens = api.choices[0].tokens;
    assert.ok(expected.length > 20 && tokens.length > 10);

    await ask(page, question);
    assert.equal(await page.locator('.message.user .bubble').textContent(), question);
    const answer = page.locator('.message.assistant');
    const kept = await page.evaluate(() => JSON.parse(localStorage.getItem(Object.keys(localStorage).find((k) => k.startsWith('foretoken.chat.')))).messages[1]);
    assert.equal(kept.content, expected);
    const figures = await figuresOf(answer);
    assert.match(figures['tokens/s'], /^[\d.,]+$/);
    assert.equal(figures.tokens, String(tokens.length));
    assert.ok(Math.abs(figures['tokens/cycle'] - api.foretoken.speculation.tokens_per_cycle) < 0.01, 'the engine’s own figure');
    assert.equal(figures.drafted, `${Math.round(100 * tokens.filter((t) => t.drafted).length / tokens.length)} %`);
    await shot(page, `${name}-2-answer`);

    // The drafted tokens, one by one.
    const toggle = answer.getByRole('button', { name: 'Drafted tokens' });
    assert.equal(await toggle.getAttribute('aria-pressed'), 'false');
    await toggle.click();
    assert.equal(await toggle.getAttribute('aria-pressed'), 'true');
    const drafted = tokens.filter((t) => t.drafted !== null && t.text !== '');
    assert.ok(drafted.length > 0 && drafted.length < tokens.length);
    assert.deepEqual(await answer.locator('.token-text .by-d').allTextContents(), drafted.map((t) => t.text));
    assert.equal(await answer.locator('.token-text').textContent(), tokens.map((t) => t.text).join(''));
    await answer.locator('.drafts').scrollIntoViewIfNeeded();
    await shot(page, `${name}-3-drafted`);
    await toggle.click();
    await answer.locator('.drafts').waitFor({ state: 'hidden' });

    // Kept here, and still there after a reload.
    const shown = await page.locator('#log .prose').innerText();
    await page.reload();
    assert.equal(await page.locator('#log .prose').innerText(), shown);
    assert.match(await page.title(), /Write a Python function/);
    await page.locator('.message.assistant').getByRole('button', { name: 'Drafted tokens' }).click();
    assert.equal(await page.locator('.token-text .by-d').count(), drafted.length);

    // Nothing is wider than the screen.
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
    if (name === 'desktop') return;
    await page.getByRole('button', { name: 'Conversations' }).tap();
    await page.getByRole('button', { name: question, exact: true }).waitFor();
    assert.equal(await page.evaluate(() => document.activeElement.id), 'close-sidebar');
    await shot(page, 'phone-4-conversations');
    await page.keyboard.press('Escape');
    await page.waitForFunction(() => document.activeElement.id === 'open-sidebar');
  });
}

onPage('an answer streams; stop ends it on the page and in the engine, and what came stays', { settings: { temperature: 0, thinking: 'off' } }, async (page) => {
  await page.route('**/v1/chat/completions', (route) => route.continue({ postData: JSON.stringify({ ...route.request().postDataJSON(), ignore_eos: true, max_tokens: 20000 }) }));
  await field(page).fill('Tell me everything.');
  await field(page).press('Enter');
  // It grows while it runs; a short answer may be whole within one frame of a busy browser.
  for (let steps = 0, length = 40; steps < 3; ++steps)
    length = await (await page.waitForFunction((least) => { const now = document.querySelector('.message.assistant .prose')?.textContent.length ?? 0; return now > least && now; }, length)).jsonValue();
  await page.getByText('tokens/s').waitFor();
  const early = Number((await figuresOf(page.locator('.message.assistant'))).tokens.replace(',', ''));
  await page.getByRole('button', { name: 'Drafted tokens' }).click();  // while it runs
  await page.waitForFunction((least) => document.querySelectorAll('.token-text .token').length > least + 20, early);
  assert.ok(Number((await figuresOf(page.locator('.message.assistant'))).tokens.replace(',', '')) > early, 'the strip is live');
  await shot(page, 'desktop-streaming');
  await page.getByRole('button', { name: 'Stop the answer' }).click();
  await answerDone(page);
  await page.getByText('Stopped.', { exact: true }).first().waitFor();
  await eventually(async () => (await server.get('/status')).json.requests.in_flight === 0, 'the request is cancelled', 5);
  const text = await page.locator('.prose').innerText();
  assert.ok(text.length > 40);
  await page.reload();
  assert.equal(await page.locator('.prose').innerText(), text);
});

const hostile = `# Plan\n\nText with **bold**, *emphasis*, \`code\` and a [link](https://a.example/x).\n\n<img src=x onerror="window.pwned=1"><script>window.pwned=2</script>\n\n` +
  `[bad](javascript:window.pwned=3) ![shown](https://tracker.example/p.png)\n\n1. first\n2. second\n   - inner\n   - [x] done\n\n\`\`\`python\ndef f(x):\n    return "<b>" + x  # a comment\n\`\`\`\n\n` +
  `| Command | Lines |\n|---|--:|\n| \`ls -l\` | 12 |\n| \`cat\` | 7 |\n\n> A quoted thought.\n\n---\n\nThe end.`;

onPage('Markdown and code: elements for marks, text for markup, copies that are exact', {}, async (page) => {
  await script(page, [streamOf(hostile.match(/[^]{1,7}/g).map((content) => ({ content })))]);
  await ask(page, 'Show me.');
  const prose = page.locator('.prose');
  assert.equal(await prose.locator('strong').textContent(), 'bold');
  assert.equal(await prose.locator('h3').textContent(), 'Plan');
  assert.equal(await prose.locator('ol > li').count(), 2);
  assert.equal(await prose.locator('ol ul > li').count(), 2);
  assert.equal(await prose.locator('tbody tr').count(), 2);
  assert.equal(await prose.locator('blockquote').innerText(), 'A quoted thought.');
  assert.deepEqual(await prose.locator('a').evaluateAll((all) => all.map((a) => [a.getAttribute('href'), a.rel])),
    [['https://a.example/x', 'noopener noreferrer nofollow'], ['https://tracker.example/p.png', 'noopener noreferrer nofollow']]);
  assert.equal(await prose.locator('img, script, style, iframe').count(), 0);
  assert.ok((await prose.innerText()).includes('<img src=x onerror="window.pwned=1">'));
  assert.equal(await page.evaluate(() => window.pwned), undefined);
  await prose.getByRole('button', { name: 'Copy code, python' }).click();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), 'def f(x):\n    return "<b>" + x  # a comment');
  await page.getByRole('button', { name: 'Copy answer' }).click();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), hostile);
  await page.locator('#scroller').evaluate((s) => { s.scrollTop = 0; });
  await shot(page, 'desktop-markdown');
  await page.emulateMedia({ colorScheme: 'dark' });
  await shot(page, 'desktop-markdown-dark');
  await page.setViewportSize(phone.viewport);
  await shot(page, 'phone-markdown-dark');
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
});

test('the policy stands: nothing of the page is inline, evaluated or foreign, and the browser refuses what is', options, async () => {
  const { headers, text: html } = await server.get('/');
  const policy = headers.get('content-security-policy');
  assert.doesNotMatch(policy, /unsafe|\*|http/);
  for (const part of ["default-src 'none'", "script-src 'sha256-", "style-src 'sha256-", "connect-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"]) assert.ok(policy.includes(part), part);
  assert.equal(html.match(/<script/g).length, 1);
  assert.doesNotMatch(html, /\s(?:on\w+|style)="|\ssrc="|href="(?!#|data:)/);
  const { context, page } = await visit(browser, server.url);
  const refused = await page.evaluate(() => new Promise((resolve) => {
    const seen = [];
    document.addEventListener('securitypolicyviolation', (event) => {
      seen.push(event.effectiveDirective);
      if (event.effectiveDirective === 'img-src') resolve(seen);
    });
    try { document.getElementById('log').innerHTML = '<b>x</b>'; } catch (error) { seen.push(error.name); }
    document.head.append(Object.assign(document.createElement('link'), { rel: 'stylesheet', href: 'https://a.example/x.css' }));
    setTimeout(() => document.body.append(Object.assign(document.createElement('img'), { src: 'https://a.example/x.png' })), 200);
  }));
  assert.deepEqual(refused.sort(), ['TypeError', 'img-src', 'require-trusted-types-for', 'style-src-elem']);
  await context.close();
});

onPage('thinking is folded away once the answer begins, and opens again', { settings: { temperature: 0, max_tokens: 400 } }, async (page) => {
  const asked = [];
  page.on('request', (request) => { if (request.url().endsWith('/completions')) asked.push(request.postDataJSON()); });
  await page.getByLabel('Thinking').selectOption('256');
  await ask(page, 'What is 12 + 30?');
  assert.equal(asked[0].thinking_budget, 256);
  const kept = await page.evaluate(() => JSON.parse(localStorage.getItem(Object.keys(localStorage).find((k) => k.startsWith('foretoken.chat.')))).messages[1]);
  assert.ok(kept.reasoning.length > 20 && kept.content.length > 0);
  const fold = page.locator('details.thinking');
  assert.equal(await fold.evaluate((d) => d.open), false);
  assert.match(await fold.locator('summary').innerText(), /Thought/);
  await fold.locator('summary').click();
  assert.equal(await fold.locator('div').innerText(), kept.reasoning.trim());
  await shot(page, 'desktop-thinking');
});

onPage('calls of tools are shown, take results, and the conversation goes on', {}, async (page) => {
  const call = (index, id, name) => ({ tool_calls: [{ index, id, type: 'function', function: { name, arguments: '' } }] });
  const args = (index, text) => ({ tool_calls: [{ index, function: { arguments: text } }] });
  const asked = await script(page, [
    streamOf([{ content: 'Let me look.' }, call(0, 'call_0', 'weather'), args(0, '{"city": '), args(0, '"Bern"}'), call(1, 'call_1', 'clock'), args(1, '{}')], { reason: 'tool_calls' }),
    streamOf([{ content: 'It is sunny.' }])]);
  await page.getByRole('button', { name: 'Settings' }).click();
  await page.getByLabel('Tools').fill('[{"type": "function"');
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByText('The tools are no JSON').waitFor();
  const tools = [{ type: 'function', function: { name: 'weather', parameters: { type: 'object', properties: { city: { type: 'string' } } } } }];
  await page.getByLabel('Tools').fill(JSON.stringify(tools));
  await page.getByLabel('Temperature').fill('0.5');
  await shot(page, 'desktop-settings');
  await page.getByRole('button', { name: 'Save' }).click();
  await ask(page, 'Weather in Bern?');
  assert.deepEqual(asked[0].tools, tools);
  assert.equal(asked[0].temperature, 0.5);
  const card = page.getByRole('region', { name: 'Call of weather' });
  assert.match(await card.locator('pre').innerText(), /"city": "Bern"/);
  await card.getByLabel('Result').fill('sunny, 21 °C');
  await page.getByRole('region', { name: 'Call of clock' }).getByLabel('Result').fill('noon');
  await shot(page, 'desktop-tools');
  await page.getByRole('button', { name: 'Send the results' }).click();
  await page.getByText('It is sunny.').first().waitFor();
  const sent = asked[1].messages;
  assert.deepEqual(sent.map((m) => m.role), ['user', 'assistant', 'tool', 'tool']);
  assert.equal(sent[1].tool_calls[0].function.arguments, '{"city": "Bern"}');
  assert.equal(sent[2].content, 'sunny, 21 °C');
  assert.equal(sent[2].tool_call_id, 'call_0');
});

onPage('errors say what to do: in the answer, in the stream, and in place of either', { settings: steady }, async (page) => {
  let turn = 0;
  const error = (status, code, message, headers = {}) => ({ status, contentType: 'application/json', headers, body: JSON.stringify({ error: { message, type: 'x', param: null, code } }) });
  const turns = [
    error(429, 'queue_full', '12 requests are running or waiting; try again later', { 'retry-after': '7' }),
    error(400, 'context_length_exceeded', 'the prompt has 99999 tokens'),
    { status: 200, contentType: 'text/event-stream', body: streamOf([{ content: 'Half an ans' }], { error: { message: 'the engine ended with signal 9', code: 'engine_recovering' } }) },
    { status: 200, contentType: 'text/event-stream', body: 'data: {"choices":[{"index":0,"delta":{"content":"Cut"}}]}\n\n' },
    { status: 502, contentType: 'text/html', body: '<h1>Bad gateway</h1>' },
    'abort',
    'pass'];
  await page.route('**/v1/chat/completions', (route) => {
    const next = turns[turn++];
    return next === 'abort' ? route.abort('connectionreset') : next === 'pass' ? route.continue() : route.fulfill(next);
  });
  await ask(page, question);
  const failure = page.locator('.failure p');
  assert.equal(await failure.innerText(), '12 requests are running or waiting; try again later. Ask again in 7 s.');
  const again = async () => {
    await page.getByRole('button', { name: 'Try again' }).click();
    await answerDone(page);
  };
  await again();
  assert.equal(await failure.innerText(), 'The prompt has 99999 tokens');
  await again();
  assert.equal(await failure.innerText(), 'The engine ended with signal 9');
  assert.equal(await page.locator('.prose').innerText(), 'Half an ans');
  await shot(page, 'desktop-error');
  await again();
  assert.equal(await failure.innerText(), 'The answer broke off.');
  await again();
  assert.equal(await failure.innerText(), 'The server answered with status 502.');
  await again();
  assert.equal(await failure.innerText(), 'The server does not answer.');
  await again();
  assert.equal(await page.locator('.failure').count(), 0);
  assert.ok((await page.locator('.prose').innerText()).length > 20);
  assert.equal(turn, turns.length);
});

onPage('with the keyboard alone, in an order that makes sense, and back where one was', { settings: steady }, async (page) => {
  const focused = () => page.evaluate(() => document.activeElement.getAttribute('aria-label') || document.activeElement.labels?.[0]?.textContent.trim() || document.activeElement.textContent.trim());
  await page.waitForFunction(() => document.activeElement.id === 'prompt');
  await page.keyboard.type('a line');
  await page.keyboard.press('Shift+Enter');
  await page.keyboard.type(question);
  assert.equal(await field(page).inputValue(), `a line\n${question}`);
  await page.keyboard.press('Enter');
  await answerDone(page);
  assert.equal(await page.evaluate(() => document.activeElement.id), 'prompt');
  assert.ok(await page.evaluate(() => document.querySelector('a, button, input, select, textarea, [tabindex="0"]').className) === 'skip', 'the link comes first');
  await page.locator('.skip').focus();
  const order = [await focused()];
  for (let i = 0; i < 16; ++i) {
    await page.keyboard.press('Tab');
    order.push(await focused());
    if (order.at(-1) === 'Message') break;
    const visible = await page.evaluate(() => {
      const outline = getComputedStyle(document.activeElement);
      return outline.outlineStyle !== 'none' || document.activeElement.id === 'scroller';
    });
    assert.ok(visible, `focus is seen on ${order.at(-1)}`);
  }
  const at = (name) => { const i = order.findIndex((o) => o.includes(name)); assert.ok(i >= 0, `${name} in ${order.join(' > ')}`); return i; };
  assert.equal(order[0], 'Skip to the message field');
  assert.ok(at('Settings') < at('New conversation') && at('New conversation') < at('Copy answer') && at('Copy answer') < at('Answer again') && at('Answer again') < at('Drafted tokens') &&
    at('Drafted tokens') < at('Message'));
  // Into a dialog and out of it.
  await page.getByRole('button', { name: 'Settings' }).focus();
  await page.keyboard.press('Enter');
  await page.getByRole('dialog', { name: 'Settings' }).waitFor();
  await page.keyboard.press('Escape');
  await page.getByRole('dialog', { name: 'Settings' }).waitFor({ state: 'hidden' });
  assert.equal(await focused(), 'Settings');
  // Escape stops.
  await page.route('**/v1/chat/completions', (route) => route.continue({ postData: JSON.stringify({ ...route.request().postDataJSON(), ignore_eos: true, max_tokens: 20000 }) }));
  await field(page).focus();
  await page.keyboard.type('More.');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => (document.querySelectorAll('.message.assistant .prose')[1]?.textContent.length ?? 0) > 5);
  await page.keyboard.press('Escape');
  await answerDone(page);
  // The list: delete asks first.
  await page.getByRole('button', { name: /^Delete: a line/ }).focus();
  await page.keyboard.press('Enter');
  await page.getByRole('dialog').waitFor();
  await page.keyboard.press('Escape');
  await page.getByRole('dialog').waitFor({ state: 'hidden' });
  assert.equal(await page.locator('#conversations li').count(), 1);
  await page.getByRole('button', { name: /^Delete: a line/ }).focus();
  await page.keyboard.press('Enter');
  await page.getByRole('dialog').waitFor();
  await page.keyboard.press('Tab');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.querySelectorAll('#conversations li').length === 0);
  assert.equal(await page.locator('.message').count(), 0);
});

test('every screen has names, roles and contrast: light and dark, desktop and phone', options, async () => {
  const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
  for (const [name, size, colorScheme] of [['desktop', desktop, 'light'], ['phone', phone, 'dark']]) {
    const { context, page } = await visit(browser, server.url, { size, colorScheme, bypassCSP: true });
    const tokens = [[{ id: 1, text: 'Text', drafted: null }, { id: 2, text: ' with', drafted: 'dflash' }, { id: 3, text: ' marks', drafted: 'copy' }, { id: 4, text: '.', drafted: 'mtp' }]];
    await script(page, [streamOf([{ reasoning_content: 'Hm.' }, { content: hostile }, { tool_calls: [{ index: 0, id: 'c', function: { name: 'f', arguments: '{"a":1}' } }] }], { tokens, reason: 'tool_calls' }),
      streamOf([], { error: { message: 'it broke' } })]);
    const check = async (screen) => {
      await page.evaluate(axe);
      const { violations } = await page.evaluate(() => window.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] }));
      assert.deepEqual(violations.map((v) => `${v.id}: ${v.nodes.map((n) => `${n.html.slice(0, 120)} ${n.any[0]?.message ?? ''}`).slice(0, 3).join(' | ')}`), [], `${name}, ${screen}`);
    };
    await page.getByText('demo-dense').first().waitFor();
    await check('welcome');
    await ask(page, 'Show me.');
    await page.getByRole('button', { name: 'Drafted tokens' }).click();
    await page.locator('summary').click();
    await check('an answer');
    await page.getByLabel('Result', { exact: true }).fill('1');
    await page.getByRole('button', { name: 'Send the result' }).click();
    await page.getByText('It broke').first().waitFor();
    await check('a failure');
    await page.getByRole('button', { name: 'Settings' }).click();
    await check('settings');
    if (name === 'phone') await shot(page, 'phone-settings-dark');
    await page.keyboard.press('Escape');
    if (name === 'phone') {
      await page.getByRole('button', { name: 'Conversations' }).click();
      await check('the list');
    }
    await context.close();
  }
});

onPage('what is said aloud: the answer by paragraphs, and its end', {}, async (page) => {
  await script(page, [streamOf([{ content: 'One paragraph.\n\n' }, { content: 'Another **one**.\n\n```\nx\n```\n\n' }, { content: 'Last.' }])]);
  await page.evaluate(() => {
    window.spoken = [];
    new MutationObserver(() => window.spoken.push(document.getElementById('spoken').textContent)).observe(document.getElementById('spoken'), { childList: true });
  });
  await ask(page, 'Speak.');
  await page.waitForFunction(() => window.spoken.join('\n').includes('complete'));
  const spoken = (await page.evaluate(() => window.spoken)).join('\n');
  for (const text of ['One paragraph.', 'Another one.', 'Code.', 'Last.', 'The answer is complete.']) assert.equal(spoken.split(text).length, 2, `${text} is said once: ${spoken}`);
  assert.equal(await page.locator('#log').getAttribute('role'), 'log');
});

test('a server with a key asks for it once; a wrong one is said to be wrong', options, async () => {
  const locked = await Server.start(['--lanes', '1'], { FORETOKEN_API_KEY: 'open sesame' });
  const { context, page, problems } = await visit(browser, locked.url, { settings: steady });
  try {
    const dialog = page.getByRole('dialog', { name: 'This server wants its API key' });
    await dialog.waitFor();
    assert.equal(await page.evaluate(() => document.activeElement.name), 'key');
    await shot(page, 'desktop-key');
    await dialog.getByLabel('API key').fill('wrong');
    await dialog.getByRole('button', { name: 'Continue' }).click();
    await page.getByText('The server did not take the key').waitFor();
    await dialog.getByLabel('API key').fill('open sesame');
    await dialog.getByRole('button', { name: 'Continue' }).click();
    await page.getByText('demo-dense').first().waitFor();
    await ask(page, question);
    assert.ok((await page.locator('.prose').innerText()).length > 20);
    assert.ok(await page.evaluate(() => !JSON.stringify(localStorage).includes('sesame')), 'not kept unless wanted');
    await page.reload();
    await page.getByText('demo-dense').first().waitFor();
    const fresh = await context.newPage();
    await fresh.goto(locked.url);
    await fresh.getByRole('dialog', { name: 'This server wants its API key' }).waitFor();
    assert.deepEqual(problems, []);
  } finally {
    await context.close();
    await locked.stop();
  }
});

test('a server that goes and comes back: the page says so and goes on', options, async () => {
  let passing = await Server.start(['--lanes', '1']);
  const { context, page, problems } = await visit(browser, passing.url, { settings: steady });
  try {
    await page.getByText('demo-dense').first().waitFor();
    await ask(page, question);
    const text = await page.locator('.prose').innerText();
    process.kill((await passing.get('/status')).json.engine_process.pid, 'SIGKILL');
    await field(page).fill('And now?');
    await eventually(async () => (await passing.get('/ready')).status === 503, 'the engine is gone');
    await field(page).press('Enter');
    await answerDone(page);
    assert.match(await page.locator('.failure p').innerText(), /engine|signal/);
    await page.locator('#server').getByText('Getting ready').waitFor();
    await page.locator('#server').getByText('demo-dense').waitFor();
    await page.getByRole('button', { name: 'Try again' }).click();
    await answerDone(page);
    assert.equal(await page.locator('.failure').count(), 0);
    const port = new URL(passing.url).port;
    await passing.stop();
    await ask(page, 'Hello?');
    assert.equal(await page.locator('.failure p').innerText(), 'The server does not answer.');
    await page.locator('#server').getByText('Not reachable').waitFor();
    await shot(page, 'desktop-down');
    passing = await Server.start(['--lanes', '1', '--port', port]);
    await page.locator('#server').getByText('demo-dense').waitFor();
    await page.getByRole('button', { name: 'Try again' }).click();
    await answerDone(page);
    assert.equal(await page.locator('.failure').count(), 0);
    assert.equal(await page.locator('.prose').first().innerText(), text);
    assert.deepEqual(problems, []);
  } finally {
    await context.close();
    await passing.stop();
  }
});

test('--no-webui leaves the page out', options, async () => {
  const bare = await Server.start(['--lanes', '1', '--no-webui']);
  const response = await bare.get('/');
  await bare.stop();
  assert.equal(response.status, 404);
});
