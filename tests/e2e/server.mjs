// Starts `foretoken serve` with the embedded model on a free port and waits for its line. What the tests share besides.
import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import path from 'node:path';

export const root = process.env.FORETOKEN_ROOT ?? path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
export const program = process.env.FORETOKEN ?? path.join(root, 'build', 'foretoken');

export class Server {
  static async start(options = [], environment = {}) {
    const server = new Server();
    server.child = spawn(program, ['serve', ...(options.includes('--port') ? [] : ['--port', '0']), '--host', '127.0.0.1', ...options],
      { stdio: ['ignore', 'pipe', 'pipe'], env: { ...process.env, ...environment } });
    server.log = '';
    const begin = Date.now();
    server.output = '';
    server.child.stderr.on('data', (data) => { server.log += data; });
    server.exited = new Promise((resolve) => server.child.on('exit', (code, signal) => resolve({ code, signal })));
    server.url = await new Promise((resolve, reject) => {
      const timer = setTimeout(() => { server.child.kill('SIGKILL'); reject(new Error(`not ready in 120 s: ${server.log}`)); }, 120_000);
      server.child.on('error', (error) => { clearTimeout(timer); reject(error); });
      server.child.stdout.on('data', (data) => {
        server.output += data;
        const found = /^Ready · .* · (http:\/\/\S+)$/m.exec(server.output);
        if (found) { clearTimeout(timer); server.started_s = (Date.now() - begin) / 1000; resolve(found[1]); }
      });
      server.exited.then(({ code }) => { clearTimeout(timer); reject(new Error(`ended with ${code}: ${server.log}`)); });
    });
    return server;
  }
  async get(route, headers = {}) {
    // A connection that was kept for reuse may be closed by the server at the moment it is used again.
    const response = await fetch(this.url + route, { headers }).catch((error) => {
      if (!['ECONNRESET', 'EPIPE', 'UND_ERR_SOCKET'].includes(error.cause?.code)) throw new Error(`${route}: ${error.message}: ${error.cause?.code} ${error.cause?.message}`);
      return fetch(this.url + route, { headers });
    });
    const text = await response.text();
    let json;
    try { json = JSON.parse(text); } catch { json = undefined; }
    return { status: response.status, headers: response.headers, text, json };
  }
  async post(route, body, headers = {}) {
    const response = await fetch(this.url + route,
      { method: 'POST', headers: { 'content-type': 'application/json', ...headers }, body: typeof body === 'string' ? body : JSON.stringify(body) });
    const text = await response.text();
    let json;
    try { json = JSON.parse(text); } catch { json = undefined; }
    return { status: response.status, headers: response.headers, text, json };
  }
  async stop(signal = 'SIGTERM') {
    this.child.kill(signal);
    const timer = setTimeout(() => this.child.kill('SIGKILL'), 20_000);
    const end = await this.exited;
    clearTimeout(timer);
    return end;
  }
}

// Until `condition` returns something true, or an error after `seconds`.
export async function eventually(condition, what, seconds = 10) {
  const end = Date.now() + seconds * 1000;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (Date.now() > end) throw new Error(`never happened in ${seconds} s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
