// Conversations and settings in the browser's own storage, bounded: the oldest conversations give way. It knows no DOM and no server.
// Each conversation is an entry of its own, so that two tabs do not overwrite each other's.

const kPrefix = 'foretoken.chat.';
const kSettings = 'foretoken.settings';
const kKey = 'foretoken.key';
export const kMostConversations = 100;
export const kMostCharacters = 2_000_000;     // of all conversations; browsers give about 5 million
export const kMostTokenCharacters = 60_000;   // of the tokens of one conversation: those of its oldest answers go first

export class Store {
  #kept;
  #tab;

  // `kept` lasts, `tab` ends with the tab: localStorage and sessionStorage. Where neither works, nothing is kept.
  constructor(kept, tab) {
    this.#kept = kept;
    this.#tab = tab;
  }

  // [{id, title, updated}], the newest first.
  list() {
    const all = [];
    for (const key of this.#keys()) {
      const c = this.#read(key);
      if (c) all.push({ id: c.id, title: c.title, updated: c.updated });
    }
    return all.sort((a, b) => b.updated - a.updated);
  }
  get(id) { return this.#read(kPrefix + id); }
  // False where it could not be kept.
  put(conversation) {
    const text = JSON.stringify({ ...conversation, messages: withoutOldTokens(conversation.messages) });
    if (text.length > kMostCharacters) return false;
    this.#makeRoom(kPrefix + conversation.id, text.length);
    for (;;) {
      try {
        this.#kept.setItem(kPrefix + conversation.id, text);
        return true;
      } catch {
        const oldest = this.list().filter((c) => c.id !== conversation.id).at(-1);
        if (!oldest) return false;
        this.remove(oldest.id);
      }
    }
  }
  remove(id) { this.#kept?.removeItem(kPrefix + id); }
  removeAll() { for (const key of this.#keys()) this.#kept.removeItem(key); }
  static isConversation(key) { return key === null || key.startsWith(kPrefix); }

  settings() { return this.#read(kSettings) ?? {}; }
  putSettings(settings) {
    try {
      this.#kept.setItem(kSettings, JSON.stringify(settings));
    } catch { /* they last until the page goes */ }
  }
  key() { return this.#tab?.getItem(kKey) ?? this.#kept?.getItem(kKey) ?? ''; }
  keyIsKept() { return Boolean(this.#kept?.getItem(kKey)); }
  putKey(key, keep) {
    for (const [place, used] of [[this.#kept, keep], [this.#tab, !keep]]) {
      try {
        if (key && used) place.setItem(kKey, key);
        else place.removeItem(kKey);
      } catch { /* asked for again next time */ }
    }
  }

  #keys() {
    const keys = [];
    for (let i = 0; i < (this.#kept?.length ?? 0); ++i) if (this.#kept.key(i).startsWith(kPrefix)) keys.push(this.#kept.key(i));
    return keys;
  }
  #read(key) {
    try {
      const value = JSON.parse(this.#kept.getItem(key));
      return value && typeof value === 'object' ? value : null;
    } catch {
      return null;
    }
  }
  #makeRoom(key, characters) {
    const sizes = new Map(this.#keys().filter((k) => k !== key).map((k) => [k, this.#kept.getItem(k).length]));
    let sum = [...sizes.values()].reduce((a, b) => a + b, 0);
    const oldest = this.list().reverse();
    for (const { id } of oldest) {
      if (sum + characters <= kMostCharacters && sizes.size < kMostConversations) return;
      if (!sizes.has(kPrefix + id)) continue;
      sum -= sizes.get(kPrefix + id);
      sizes.delete(kPrefix + id);
      this.remove(id);
    }
  }
}

function withoutOldTokens(messages) {
  let room = kMostTokenCharacters;
  const out = [...messages];
  for (let i = out.length - 1; i >= 0; --i) {
    if (!out[i].pieces) continue;
    room -= out[i].pieces.reduce((sum, piece) => sum + piece.length + 4, 0);
    if (room < 0) out[i] = { ...out[i], pieces: undefined, routes: undefined };
  }
  return out;
}
