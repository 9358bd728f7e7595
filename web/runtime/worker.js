// worker: one model on a thread of its own. Messages are {id, method, args}; answers {id, result}, {id, error} and
// {id, progress}. {cancel: id} ends a call at its next step.

import { Core, WeftError } from "./core.js";
import { findGpu } from "./gpu.js";
import { findBundle, loadAdapter, loadModule } from "./loading.js";

const STEP_CHARACTERS = 2000; // of texts that are embedded before messages are looked at again
const LOOK_MS = 50; // between looks at whether a text should end
const DEFAULT_CONTEXT = 4096; // of decoders that read more: csrc/capi/generator.cpp
const running = new Map(), adapters = new Map();
let core, model, runner, lastAdapter = 0, turn = Promise.resolve();

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
  const ended = watch(flag), onToken = (text, id) => (tell({ text, id }), !ended());
  const given = { ...options, adapter: adapterOf(adapter), onToken };
  return runner ? model[`${method}On`](onGpu, subject, given) : model[method](subject, given);
}

const onGpu = (step) => runner.run(step);

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

// The model on a GPU: the module makes texts into steps and chooses tokens, and has no weights.
async function openOnGpu(bundle, found, { context, start, signal, tell }) {
  runner = found.runner;
  const { names } = bundle;
  bundle.follow(names, tell);
  core = await startCore({ ...start, threads: 1 }, signal);
  const { files, trustDigests } = await bundle.intoModule(core, names.filter((name) => !bundle.hasWeights(name)));
  model = core.open(files, { trustDigests, context, stepTokens: runner.stepTokens });
  await runner.start((name) => bundle.bytesOf(name));
  return { kind: "gpu", name: found.name, why: found.why };
}

async function openHere(bundle, why, { context, start, signal, tell }) {
  const { names } = bundle;
  bundle.follow(names, tell);
  core = await startCore(start, signal);
  const { files, trustDigests } = await bundle.intoModule(core, names);
  model = core.open(files, { trustDigests, context });
  return { kind: "wasm", name: `${core.threads} ${core.threads === 1 ? "thread" : "threads"}`, why };
}

// The device that was asked for; "auto" takes a GPU that has what the model needs, and says why it took none. Whatever is wrong
// with a GPU, its driver or the launches, the module needs none of them.
async function openOn(device, bundle, given) {
  if (device === "wasm") return openHere(bundle, "it was asked for", given);
  if (device === "auto" && bundle.manifest.adapters) return openHere(bundle, "the bundle has room for adapters, which GPUs do not run", given);
  const contextOf = ({ generate }) => given.context || Math.min(Number(generate?.context), DEFAULT_CONTEXT);
  let found = {};
  try {
    found = await findGpu(device, bundle, { contextOf });
    const why = device === "gpu" ? "it was asked for" : "it has all that the model needs";
    if (found.runner) return await openOnGpu(bundle, { ...found, why }, given);
    if (device === "gpu") throw new WeftError("unsupported", `[gpu] ${found.why}; load the model with device "wasm"`);
  } catch (error) {
    found.runner?.close();
    if (device === "gpu" || given.signal.aborted || error.code === "input") throw error;
    model?.close();
    model = runner = undefined;
    found = { why: `the GPU could not take the model: ${error.message}` };
  }
  return openHere(bundle, found.why, given);
}

const methods = {
  async load({ url, cache, context, device, ...start }, { signal, tell }) {
    const bundle = await findBundle(url, { signal, cache });
    const chosen = await openOn(device, bundle, { context, start: { ...start, cache }, signal, tell });
    await bundle.forgetOthers();
    const compute = runner ? "f32" : model.info.compute; // shaders have no other
    return { ...model.info, compute, version: core.version, kept: bundle.kept, heapBytes: core.heapBytes, device: chosen };
  },
  async loadAdapter({ url, cache }, { signal }) {
    if (runner) throw new WeftError("unsupported", '[adapter] a model on a GPU takes no adapters; load it with device "wasm"');
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
    if (runner) {
      const onStep = (count) => {
        if (signal.aborted) throw new WeftError("cancelled", "[embed] was cancelled");
        tell({ done: count, total: texts.length });
      };
      return model.embedOn(onGpu, texts, { role, truncate, onStep });
    }
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
    // One call at a time: while a GPU computes, messages arrive.
    const work = () => methods[method](args, { signal: stop.signal, tell: (progress) => postMessage({ id, progress }) });
    const result = await (turn = turn.then(work, work));
    postMessage({ id, result }, result?.buffer ? [result.buffer] : []);
  } catch (error) {
    const code = error instanceof WeftError ? error.code : stop.signal.aborted ? "aborted" : "internal";
    postMessage({ id, error: { code, message: error.message } });
  } finally {
    running.delete(id);
  }
};
