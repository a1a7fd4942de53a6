// Streams an answer with Anthropic's client for Node: npm install @anthropic-ai/sdk. ANTHROPIC_BASE_URL and ANTHROPIC_AUTH_TOKEN, where
// set, say where the server is and its key.
import Anthropic from '@anthropic-ai/sdk';

const client = new Anthropic({ baseURL: process.env.ANTHROPIC_BASE_URL ?? 'http://127.0.0.1:8000', authToken: process.env.ANTHROPIC_AUTH_TOKEN ?? 'none', apiKey: null });
const question = process.argv.slice(2).join(' ') || 'What does the command ls do?';
const [model] = (await client.models.list()).data;
const stream = client.messages.stream({ model: model.id, max_tokens: 400, messages: [{ role: 'user', content: question }] });
stream.on('text', (text) => process.stdout.write(text));
await stream.finalMessage();
process.stdout.write('\n');
