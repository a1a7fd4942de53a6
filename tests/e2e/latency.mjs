// What the server adds: to the first token at idle, and to decoding by streaming. Prints figures and judges nothing; tools/serve_load.sh
// runs it.
import net from 'node:net';
import { Server } from './server.mjs';

const tries = Number(process.env.TRIES ?? 200), rounds = Number(process.env.ROUNDS ?? 9), tokens = 512;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const quantile = (values, q) => values.slice().sort((a, b) => a - b)[Math.min(values.length - 1, Math.floor(values.length * q))];

// One connection that stays; an answer is heard until `end` stands in it.
class Client {
  constructor(url) {
    const { hostname, port } = new URL(url);
    this.socket = net.connect(Number(port), hostname);
    this.socket.setNoDelay(true);
    this.socket.on('data', (data) => this.heard?.(data));
  }
  ask(body, end) {
    const text = JSON.stringify(body), begin = performance.now();
    this.socket.write(`POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ${Buffer.byteLength(text)}\r\n\r\n${text}`);
    return new Promise((resolve) => {
      let all = '', first;
      this.heard = (data) => {
        all += data.toString('latin1');
        if (first === undefined && all.includes('"content":"')) first = performance.now() - begin;
        if (all.includes(end)) resolve({ all, first, total: performance.now() - begin });
      };
    });
  }
}

const request = (i, more) => ({ messages: [{ role: 'user', content: `Say something about number ${i}.` }], temperature: 0, ignore_eos: true, chat_template_kwargs: { enable_thinking: false }, ...more });

async function first_token(server) {
  const client = new Client(server.url), added = [], whole = [];
  for (let i = 0; i < tries; ++i) {
    await sleep(5);
    const { all, first } = await client.ask(request(i, { stream: true, max_tokens: 4 }), 'data: [DONE]');
    const timing = JSON.parse(/"timing":(\{[^}]*\})/.exec(all)[1]);
    whole.push(first);
    added.push(first - 1e3 * (timing.queue_s + timing.prefill_s));
  }
  client.socket.destroy();
  console.log(`first token at idle, ${tries} requests: ${quantile(whole, 0.5).toFixed(2)} ms median, of which not prefill ${quantile(added, 0.5).toFixed(2)} ms median, ${quantile(added, 0.9).toFixed(2)} ms at 90 %`);
}

// Four answers at once, streamed and whole in turn: the same tokens, so the ratio of times is what streaming costs.
async function streaming(server) {
  const clients = Array.from({ length: 4 }, () => new Client(server.url));
  const run = async (stream) => {
    const begin = performance.now();
    await Promise.all(clients.map((client, i) => client.ask(request(i, { stream, max_tokens: tokens, ...(stream ? {} : {}) }), stream ? 'data: [DONE]' : '"cache_note"')));
    return performance.now() - begin;
  };
  await run(true);
  await run(false);
  const ratios = [], rates = [];
  for (let i = 0; i < rounds; ++i) {
    const order = i % 2 ? [true, false] : [false, true], times = {};
    for (const stream of order) times[stream] = await run(stream);
    ratios.push(times.true / times.false);
    rates.push(4 * tokens / times.true * 1e3);
  }
  clients.forEach((client) => client.socket.destroy());
  console.log(`4 lanes, ${tokens} tokens each, ${rounds} rounds: streamed ${quantile(rates, 0.5).toFixed(0)} tokens/s, time of streamed over whole ${quantile(ratios, 0.5).toFixed(3)} median (${Math.min(...ratios).toFixed(3)} to ${Math.max(...ratios).toFixed(3)})`);
}

const server = await Server.start(['--lanes', '4']);
try {
  await first_token(server);
  await streaming(server);
} finally {
  await server.stop();
}
