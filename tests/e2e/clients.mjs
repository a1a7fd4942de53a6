// Clients that load tests share: streams that may leave, raw sockets, and what a process holds.
import fs from 'node:fs';
import http from 'node:http';
import net from 'node:net';

export const agent = new http.Agent({ keepAlive: false, maxSockets: Infinity });

// A streamed answer; `go(chunks)`: whether the client leaves now. Resolves to what it got.
export function stream(url, body, go = () => false) {
  return new Promise((resolve, reject) => {
    const request = http.request(url + '/v1/chat/completions', { method: 'POST', agent, headers: { 'content-type': 'application/json' } }, (response) => {
      let text = '', chunks = 0;
      response.on('data', (data) => {
        text += data;
        if (go(++chunks)) { request.destroy(); resolve({ status: response.statusCode, text, left: true }); }
      });
      response.on('end', () => resolve({ status: response.statusCode, text, left: false }));
      response.on('error', () => resolve({ status: response.statusCode, text, left: true }));
    });
    request.on('error', (error) => (request.destroyed ? resolve({ left: true }) : reject(error)));
    request.end(JSON.stringify(body));
  });
}

export const body = (i, tokens) => ({ stream: true, stream_options: { include_usage: true }, max_tokens: tokens, temperature: 0, ignore_eos: true,
  messages: [{ role: 'user', content: `Number ${i % 50}` }], chat_template_kwargs: { enable_thinking: false } });

// The text of a streamed answer.
export const content = (text) => text.split('\n').filter((line) => line.startsWith('data: {')).map((line) => JSON.parse(line.slice(6)).choices[0]?.delta?.content ?? '').join('');

// MiB of a process's own memory.
export const resident = (pid) => Number(/RssAnon:\s+(\d+)/.exec(fs.readFileSync(`/proc/${pid}/status`, 'utf8'))[1]) / 1024;

// A socket that says `pieces`, one every `pause` ms, and hears until the other side ends or `patience` s are over.
export function raw(url, pieces, { pause = 0, patience = 30 } = {}) {
  const { hostname, port } = new URL(url);
  return new Promise((resolve) => {
    const begin = performance.now(), socket = net.connect(Number(port), hostname);
    let text = '', next = 0;
    const timer = setTimeout(() => socket.destroy(), patience * 1000);
    const say = () => {
      if (next < pieces.length && !socket.destroyed) socket.write(pieces[next++], () => (pause ? setTimeout(say, pause) : say()));
    };
    socket.on('connect', say);
    socket.on('data', (data) => { text += data.toString('latin1'); });
    socket.on('error', () => {});
    socket.on('close', () => { clearTimeout(timer); resolve({ text, status: Number(/^HTTP\/1\.1 (\d+)/.exec(text)?.[1] ?? 0), seconds: (performance.now() - begin) / 1000 }); });
  });
}

// Numbers below one, the same every time.
export function seeded(seed) {
  return () => (seed = (seed * 48271) % 2147483647) / 2147483647;
}
