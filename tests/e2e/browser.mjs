// A real browser for tests of the page: Debian's chromium, driven by playwright-core. Tests skip where there is none.
import { spawnSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import path from 'node:path';
import { root } from './server.mjs';

const names = ['chromium', 'chromium-browser', 'google-chrome-stable', 'google-chrome', 'chrome'];
const found = () => names.map((name) => spawnSync('sh', ['-c', `command -v ${name}`], { encoding: 'utf8' }).stdout.trim()).find(Boolean);

export const shots = path.join(process.env.FORETOKEN_BUILD ?? path.join(root, 'build'), 'e2e-screenshots');

// A browser, or the reason why there is none.
export async function launch() {
  const executablePath = found();
  if (!executablePath) return { reason: 'no chromium is installed' };
  let playwright;
  try {
    playwright = await import('playwright-core');
  } catch (error) {
    return { reason: `playwright-core cannot be loaded: ${error.message}` };
  }
  mkdirSync(shots, { recursive: true });
  try {
    return { browser: await playwright.chromium.launch({ executablePath, args: ['--disable-gpu', '--disable-dev-shm-usage', '--font-render-hinting=none'] }) };
  } catch (error) {
    return { reason: `${executablePath} does not start: ${error.message.split('\n')[0]}` };
  }
}

export const desktop = { viewport: { width: 1280, height: 800 } };
export const phone = { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true };

// A fresh visitor's page of a server. `problems` collects what must not happen: errors, refused content, requests to elsewhere.
export async function visit(browser, url, { settings = {}, size = desktop, ...options } = {}) {
  const context = await browser.newContext({ ...size, reducedMotion: 'reduce', permissions: ['clipboard-read', 'clipboard-write'], ...options });
  const page = await context.newPage();
  const problems = [];
  page.on('pageerror', (error) => problems.push(`error: ${error.message}`));
  page.on('console', (message) => {
    // The browser itself reports answers that are errors, which some tests want.
    if (message.type() === 'error' && !/Failed to load resource/.test(message.text())) problems.push(`console: ${message.text()}`);
  });
  page.on('request', (request) => { if (!request.url().startsWith(url) && !request.url().startsWith('data:')) problems.push(`request to ${request.url()}`); });
  page.setDefaultTimeout(20_000);
  await context.addInitScript((value) => {
    if (!localStorage.getItem('foretoken.settings')) localStorage.setItem('foretoken.settings', JSON.stringify(value));
  }, settings);
  await page.goto(url);
  return { context, page, problems };
}

// A stream as the server writes it, for answers that a small model would not give.
export function streamOf(deltas, { reason = 'stop', tokens = [], foretoken, error } = {}) {
  const chunk = (choices, more = {}) => `data: ${JSON.stringify({ id: 'chatcmpl-x', object: 'chat.completion.chunk', created: 0, model: 'm', choices, ...more })}\n\n`;
  const one = (delta, more = {}) => chunk([{ index: 0, delta, finish_reason: null, ...more }]);
  let body = one({ role: 'assistant', content: '' });
  deltas.forEach((delta, i) => { body += one(delta, tokens[i] ? { tokens: tokens[i] } : {}); });
  if (error) return body + `data: ${JSON.stringify({ error })}\n\n`;
  body += chunk([{ index: 0, delta: {}, finish_reason: reason }], { foretoken });
  return `${body}${chunk([], { usage: { completion_tokens: tokens.flat().length || deltas.length } })}data: [DONE]\n\n`;
}

// Answers the page's next requests with these bodies, one after the other; `asked` receives what was asked.
export async function script(page, bodies) {
  const asked = [];
  await page.route('**/v1/chat/completions', async (route) => {
    asked.push(route.request().postDataJSON());
    await route.fulfill({ status: 200, contentType: 'text/event-stream; charset=utf-8', body: bodies[Math.min(asked.length, bodies.length) - 1] });
  });
  return asked;
}
