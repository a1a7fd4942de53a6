// Streams an answer of a running server (foretoken serve) with OpenAI's client for Node: npm install openai. OPENAI_BASE_URL and
// OPENAI_API_KEY, where set, say where the server is and its key.
import OpenAI from 'openai';

const client = new OpenAI({ baseURL: process.env.OPENAI_BASE_URL ?? 'http://127.0.0.1:8000/v1', apiKey: process.env.OPENAI_API_KEY ?? 'none' });
const question = process.argv.slice(2).join(' ') || 'What does the command ls do?';
const [model] = (await client.models.list()).data;
const stream = await client.chat.completions.create({ model: model.id, messages: [{ role: 'user', content: question }], stream: true });
for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? '');
process.stdout.write('\n');
