// What the browser keeps for this page. A browser may refuse (private windows, a full store): then nothing is kept and
// the page works all the same.

export function recall(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

/** Keep a text, or forget the key when it is null. False when there was no room. */
export function remember(key, text) {
  try {
    if (text === null) localStorage.removeItem(key);
    else localStorage.setItem(key, text);
    return true;
  } catch {
    return false;
  }
}

/** Every key that starts with `prefix`. */
export function keysOf(prefix) {
  try {
    return Object.keys(localStorage).filter((key) => key.startsWith(prefix));
  } catch {
    return [];
  }
}

/** JSON that was kept, or `otherwise` where there is none or it does not parse. */
export function recallJson(key, otherwise) {
  try {
    return JSON.parse(recall(key) ?? "null") ?? otherwise;
  } catch {
    return otherwise;
  }
}
