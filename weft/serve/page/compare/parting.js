// Where two answers part, and what log probabilities say. Pure functions.

/** How many tokens both answers have in common from their beginning on. */
export function partingOf(first, second) {
  let at = 0;
  while (at < first.length && at < second.length && first[at].text === second[at].text) at += 1;
  return at;
}

/** What to say of two whole answers. */
export function partingWords(first, second) {
  const at = partingOf(first, second);
  if (at === first.length && at === second.length) return `The same ${at} tokens.`;
  return at === 0 ? "The first tokens differ already." : `The same for ${at} tokens; token ${at + 1} differs.`;
}

/** The perplexity of a text from the log probability of each of its tokens but the first; null without any. */
export function perplexityOf(logprobs) {
  const known = logprobs.filter((value) => typeof value === "number" && Number.isFinite(value));
  return known.length ? Math.exp(-known.reduce((sum, value) => sum + value, 0) / known.length) : null;
}

/** Tokens a second between the first and the last token; null where there are fewer than two. */
export function speedOf(times) {
  const spent = times.length > 1 ? times.at(-1) - times[0] : 0;
  return spent > 0 ? (times.length - 1) / (spent / 1000) : null;
}
