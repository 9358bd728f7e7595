// transformers.js with onnxruntime-web: a model in float32 for texts, one of 8-bit weights for tokens, its default in wasm and
// quicker there than 4-bit blocks.
import { AutoModelForCausalLM, AutoTokenizer, BaseStreamer, env, pipeline } from "@huggingface/transformers";

env.allowLocalModels = true;
env.allowRemoteModels = false;
env.localModelPath = "/files/onnx/";
env.useBrowserCache = false;
env.useWasmCache = false;
let extract, model, tokenizer;

export async function load(task, threads) {
  env.backends.onnx.wasm.numThreads = threads;
  env.backends.onnx.wasm.wasmPaths = "/npm/onnxruntime-web/dist/";
  if (task === "embed") extract = await pipeline("feature-extraction", "minilm", { dtype: "fp32", device: "wasm" });
  else {
    tokenizer = await AutoTokenizer.from_pretrained("smollm2");
    model = await AutoModelForCausalLM.from_pretrained("smollm2", { dtype: "q8", device: "wasm" });
  }
  return `${env.backends.onnx.wasm.numThreads} threads`;
}

export async function embed(texts) {
  const found = await extract(texts, { pooling: "mean", normalize: true });
  return found.tolist();
}

class Clock extends BaseStreamer {
  times = [];
  put() {
    this.times.push(performance.now());
  }
  end() {}
}

export async function decode(prompt, count) {
  const streamer = new Clock(), inputs = tokenizer(prompt);
  const ids = await model.generate({ ...inputs, max_new_tokens: count, min_new_tokens: count, do_sample: false, streamer });
  return { times: streamer.times.slice(1), text: tokenizer.decode(ids.tolist()[0]).slice(prompt.length) }; // the prompt is put first
}
