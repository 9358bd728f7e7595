// worker: one model on a thread of its own. Messages are {id, method, args}; answers {id, result}, {id, error} and
// {id, progress}. {cancel: id} ends a call at its next step.

import { Core, WeftError } from "./core.js";
import { loadAdapter, loadBundle, loadModule } from "./loading.js";

const STEP_CHARACTERS = 2000; // of texts that are embedded before messages are looked at again
const LOOK_MS = 50; // between looks at whether a text should end
const running = new Map(), adapters = new Map();
let core, model, lastAdapter = 0;

// Lets messages in. A timeout would wait some milliseconds.
const channel = new MessageChannel();
const breath = () =>
  new Promise((go) => {
    channel.port1.onmessage = go;
    channel.port2.postMessage(0);
  });

// While the module runs, no message arrives here. A page that wants a text to end sets the memory `flag`, which both read if
// the page is isolated, or else revokes the address `flag`.
function watch(flag) {
  if (flag instanceof Int32Array) return () => Atomics.load(flag, 0) !== 0;
  let next = performance.now() + LOOK_MS;
  return () => {
    if (!flag || performance.now() < next) return false;
    next = performance.now() + LOOK_MS;
    const asked = new XMLHttpRequest();
    try {
      asked.open("GET", flag, false);
      asked.send();
      return asked.status !== 200;
    } catch {
      return true;
    }
  };
}

// The adapter with this number, which the page was given; nothing for the model alone.
function adapterOf(number) {
  if (number === undefined) return undefined;
  if (!adapters.has(number)) throw new WeftError("input", "[adapter] was freed; load it again");
  return adapters.get(number);
}

function write(method, subject, { flag, adapter, ...options }, tell) {
  const ended = watch(flag);
  return model[method](subject, { ...options, adapter: adapterOf(adapter), onToken: (text, id) => (tell({ text, id }), !ended()) });
}

function stepsOf(texts) {
  const steps = [];
  let size = Infinity;
  for (const text of texts) {
    if (size + text.length > STEP_CHARACTERS) steps.push([]), (size = 0);
    steps.at(-1).push(text);
    size += text.length;
  }
  return steps;
}

// With a team where the page asks for one and it can be had, else alone: the results are the same.
async function startCore({ wasm, threaded, threads, cache }, signal) {
  if (threads > 1) {
    try {
      return await Core.start(loadModule(threaded, { signal, cache }), { threads });
    } catch (error) {
      if (signal.aborted) throw error;
      console.warn(`weft: one thread, because there is no team: ${error.message}`);
    }
  }
  return Core.start(loadModule(wasm, { signal, cache }));
}

const methods = {
  async load({ url, cache, context, ...start }, { signal, tell }) {
    core = await startCore({ ...start, cache }, signal);
    const { files, trustDigests, kept } = await loadBundle(core, url, { onProgress: tell, signal, cache });
    model = core.open(files, { trustDigests, context });
    return { ...model.info, version: core.version, kept, heapBytes: core.heapBytes };
  },
  async loadAdapter({ url, cache }, { signal }) {
    const adapter = model.loadAdapter(await loadAdapter(url, { signal, cache }));
    adapters.set(++lastAdapter, adapter);
    return { number: lastAdapter, info: adapter.info };
  },
  freeAdapter({ number }) {
    adapters.get(number)?.free();
    adapters.delete(number);
  },
  async embed({ texts, role, truncate, adapter }, { signal, tell }) {
    const dimension = model.info.dimension ?? 0, vectors = new Float32Array(texts.length * dimension);
    let done = 0;
    for (const step of stepsOf(texts)) {
      await breath();
      if (signal.aborted) throw new WeftError("cancelled", "[embed] was cancelled");
      vectors.set(model.embed(step, { role, truncate, adapter: adapterOf(adapter) }), done * dimension);
      done += step.length;
      tell({ done, total: texts.length });
    }
    return vectors;
  },
  generate({ prompt, options }, { tell }) {
    return write("generate", prompt, options, tell);
  },
  chat({ messages, options }, { tell }) {
    return write("chat", messages, options, tell);
  },
  tokenise({ text, special }) {
    return model.tokenise(text, { special });
  },
  heap() {
    return core.heapBytes;
  },
};

onmessage = async ({ data }) => {
  if (data.cancel !== undefined) return running.get(data.cancel)?.abort();
  const { id, method, args } = data, stop = new AbortController();
  running.set(id, stop);
  try {
    const result = await methods[method](args, { signal: stop.signal, tell: (progress) => postMessage({ id, progress }) });
    postMessage({ id, result }, result?.buffer ? [result.buffer] : []);
  } catch (error) {
    const code = error instanceof WeftError ? error.code : stop.signal.aborted ? "aborted" : "internal";
    postMessage({ id, error: { code, message: error.message } });
  } finally {
    running.delete(id);
  }
};
