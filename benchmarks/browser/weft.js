// weft in the page of benchmarks/browser.py. Every engine has these four functions.
import { Weft } from "/weft/weft.js";

let model;

export async function load(task, threads) {
  const name = task === "embed" ? "minilm" : "smollm2";
  model = await Weft.load(`/files/${name}.weft/`, { threads, cache: false, context: 512 });
  return `${model.info.level}, ${model.info.threads} threads, ${model.info.compute}`;
}

export const embed = (texts) => model.embed(texts);

/** Times at which tokens came. */
export async function decode(prompt, count) {
  const times = [];
  const { text } = await model.generate(prompt, { maxTokens: count, onToken: (_, id) => id >= 0 && times.push(performance.now()) });
  return { times, text };
}
