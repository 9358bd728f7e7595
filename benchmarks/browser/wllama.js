// wllama: llama.cpp with the same weights as weft, on the processor.
import { LoggerWithoutDebug, Wllama } from "@wllama/wllama";

let engine;

export async function load(task, threads) {
  engine = new Wllama({ default: "/npm/@wllama/wllama/esm/wasm/wllama.wasm" }, { logger: LoggerWithoutDebug, suppressNativeLog: true });
  const name = task === "embed" ? "minilm" : "smollm2";
  const data = await (await fetch(`/files/${name}.gguf`)).blob();
  const own = task === "embed" ? { embeddings: true, pooling_type: "mean", n_ctx: 2048, n_batch: 2048, n_ubatch: 2048 } : { n_ctx: 512 };
  await engine.loadModel([data], { n_threads: threads, n_gpu_layers: 0, ...own });
  return `${engine.getNumThreads()} threads, ${engine.isMultithread() ? "shared" : "alone"}`;
}

// One text after the other: eight in a request never came back.
export async function embed(texts) {
  const found = [];
  for (const text of texts) found.push((await engine.createEmbedding({ input: text })).data[0].embedding);
  return found;
}

export async function decode(prompt, count) {
  const times = [];
  let text = "";
  const onData = (chunk) => {
    const piece = chunk.choices[0]?.text ?? "";
    if (!piece) return;
    times.push(performance.now());
    text += piece;
  };
  await engine.createCompletion({ prompt, max_tokens: count, temperature: 0, stream: true, onData });
  return { times, text };
}
