// Server-sent events out of text that arrives in any pieces. It knows no transport and no JSON.

export class EventReader {
  #line = '';
  #data = [];

  // The data of each event that this piece completed. Comments and names of events are left out.
  push(piece) {
    const events = [];
    const lines = (this.#line + piece).split('\n');
    this.#line = lines.pop();
    for (const raw of lines) {
      const line = raw.endsWith('\r') ? raw.slice(0, -1) : raw;
      if (line === '') {
        if (this.#data.length) events.push(this.#data.join('\n'));
        this.#data = [];
      } else if (line.startsWith('data:')) {
        this.#data.push(line.slice(line[5] === ' ' ? 6 : 5));
      }
    }
    return events;
  }
}
