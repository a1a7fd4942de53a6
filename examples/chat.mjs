// Streams an answer of a running server (foretoken serve) with the official client: npm install openai
import OpenAI from 'openai';

const client = new OpenAI({ baseURL: 'http://127.0.0.1:8000/v1', apiKey: process.env.FORETOKEN_API_KEY ?? 'none' });
const question = process.argv.slice(2).join(' ') || 'What does the command ls do?';
const [model] = (await client.models.list()).data;
const stream = await client.chat.completions.create({ model: model.id, messages: [{ role: 'user', content: question }], stream: true });
for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? '');
process.stdout.write('\n');
