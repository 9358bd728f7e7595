// core: weft.wasm and its C interface (csrc/capi/weft.h), called from JavaScript. Everything here is synchronous once the
// module is there; worker.js keeps it off the page's thread, and Node uses it as it is.

export const CODES = [
  "ok", "input", "too_long", "format", "unsupported", "not_found", "memory", "space", "cancelled", "internal",
];

/** Something that weft refused or could not do. `code` is one of CODES, "network" and "aborted" while loading, or "lost" (a GPU). */
export class WeftError extends Error {
  constructor(code, message) {
    super(message);
    this.name = "WeftError";
    this.code = code;
  }
}

const FINISHES = ["stop", "length", "cancelled"];
const WANTED = ["nothing", "largest", "logits", "vectors"];
const STEP_BYTES = 52; // of weft_step
const INITIAL_PAGES = 256; // of the threaded module, as it was linked
const MOST_PAGES = [65535, 32767, 16383]; // an address space that some devices do not have
const STACK_BYTES = 1 << 20;
const START_MS = 10_000; // for a worker to be there
const encoder = new TextEncoder(), decoder = new TextDecoder();
const NOT_THERE = 52; // ENOSYS

// The module was built for a system with files and a clock: the clock is here, the files are not.
function systemOf(memoryOf) {
  const there = {
    clock_time_get(_clock, _precision, at) {
      const nanoseconds = BigInt(Math.round(performance.now() * 1e6));
      new DataView(memoryOf().buffer).setBigUint64(at, nanoseconds, true);
      return 0;
    },
    proc_exit(code) {
      throw new WeftError("internal", `[weft] the module ended with code ${code}`);
    },
  };
  return new Proxy(there, { get: (known, name) => known[name] ?? (() => NOT_THERE) });
}

async function compile(source) {
  const given = await source;
  if (typeof Response === "undefined" || !(given instanceof Response)) {
    return given instanceof WebAssembly.Module ? given : WebAssembly.compile(given);
  }
  if (!given.ok) throw new WeftError("network", `[weft.wasm] the server answered ${given.status}`);
  const typed = given.headers.get("content-type")?.startsWith("application/wasm");
  return typed ? WebAssembly.compileStreaming(given) : WebAssembly.compile(await given.arrayBuffer());
}

/** An instance of the module: `memory` is for the one that imports it, `token` is told of tokens. */
export async function instantiate(module, { memory, token = () => 1 } = {}) {
  let instance;
  const system = systemOf(() => memory ?? instance.exports.memory);
  const imports = { wasi_snapshot_preview1: {}, weft: { token }, env: { memory } };
  for (const { module: from, name } of WebAssembly.Module.imports(module)) imports[from][name] ??= system[name];
  instance = await WebAssembly.instantiate(module, imports);
  return instance;
}

function sharedMemory() {
  for (const maximum of MOST_PAGES) {
    try {
      return new WebAssembly.Memory({ initial: INITIAL_PAGES, maximum, shared: true });
    } catch {
      continue;
    }
  }
  throw new WeftError("memory", "[memory] the browser gives no memory that workers share");
}

// A worker, in a page or in Node, which is there when it says so.
async function startThread(given) {
  const address = new URL("./thread.js", import.meta.url), node = globalThis.process?.versions?.node;
  const worker = node ? new (await import("node:worker_threads")).Worker(address) : new Worker(address, { type: "module" });
  const on = (event, tell) => (node ? worker.once(event, tell) : worker.addEventListener(event, tell, { once: true }));
  let timer;
  try {
    await new Promise((there, failed) => {
      const refused = (why) => (why?.preventDefault?.(), failed(new WeftError("internal", `[thread.js] ${why?.message ?? "did not start"}`)));
      on("message", there);
      on("error", refused);
      timer = setTimeout(refused, START_MS);
      worker.postMessage(given);
    });
  } catch (error) {
    worker.terminate();
    throw error;
  } finally {
    clearTimeout(timer);
  }
  worker.unref?.(); // Node ends when nothing but the team is left
  return worker;
}

export class Core {
  threads = 1;
  #team = [];

  /**
   * `source` is the module's bytes, a Response (or a promise of one), or a WebAssembly.Module. A team of `threads` needs
   * weft-threads.wasm, an isolated page, and a caller that may wait: a worker, or Node.
   */
  static async start(source, { threads = 1 } = {}) {
    const core = new Core(), module = await compile(source);
    const shares = WebAssembly.Module.imports(module).some(({ kind }) => kind === "memory");
    const token = (id, at, count) => core.onToken(id, decoder.decode(core.bytes(at, count).slice()));
    const memory = shares ? sharedMemory() : undefined;
    core.exports = (await instantiate(module, { memory, token })).exports;
    core.memory = memory ?? core.exports.memory;
    core.exports._initialize?.();
    if (shares) await core.#gather(module, threads);
    return core;
  }

  async #gather(module, threads) {
    const { memory } = this, starting = [];
    for (let index = 1; index < threads; ++index) {
      const tls = this.take(this.exports.__tls_size.value), stack = (this.take(STACK_BYTES) + STACK_BYTES) & ~15;
      starting.push(startThread({ module, memory, index, stack, tls }));
    }
    const started = await Promise.allSettled(starting), refused = started.find(({ status }) => status === "rejected");
    this.#team = started.flatMap(({ value }) => value ?? []);
    if (refused) {
      this.end();
      throw refused.reason;
    }
    this.threads = threads;
  }

  /** Ends the team; nothing may be called afterwards. */
  end() {
    for (const worker of this.#team) worker.terminate();
    this.#team = [];
  }

  get version() {
    return this.text(this.exports.weft_version());
  }

  get heapBytes() {
    return this.memory.buffer.byteLength;
  }

  // Memory grows and its buffer is another one then: views are made when they are used.
  bytes(at, count) {
    return new Uint8Array(this.memory.buffer, at, count);
  }

  text(at) {
    const all = new Uint8Array(this.memory.buffer);
    return decoder.decode(all.slice(at, all.indexOf(0, at)));
  }

  take(count) {
    const at = count < 2 ** 32 ? this.exports.malloc(Math.max(count, 1)) >>> 0 : 0; // of more the module would see a remainder
    if (!at) throw new WeftError("memory", `[memory] the browser refused ${count} bytes`);
    return at;
  }

  give(...places) {
    for (const at of places) if (at) this.exports.free(at);
  }

  // A string with a zero behind it.
  put(text) {
    if (text.includes("\0")) throw new WeftError("input", "[text] a text has a zero character in it; leave it out");
    const encoded = encoder.encode(text), at = this.take(encoded.length + 1);
    const to = this.bytes(at, encoded.length + 1);
    to.set(encoded);
    to[encoded.length] = 0;
    return at;
  }

  words(...values) {
    const at = this.take(4 * values.length);
    new Uint32Array(this.memory.buffer, at, values.length).set(values);
    return at;
  }

  check(status) {
    if (status) throw new WeftError(CODES[status] ?? "internal", this.text(this.exports.weft_last_error()));
  }

  /** Room for a file of a bundle: write its bytes into `core.bytes(at, count)`. */
  room(count) {
    return { at: this.take(count), count };
  }

  /**
   * Opens a bundle. `files` are of room(), or bytes, by name. With `stepTokens` the caller computes steps, of so many tokens
   * at most: files of weights are not needed then.
   */
  open(files, { trustDigests = false, context = 0, stepTokens = 0 } = {}) {
    const names = Object.keys(files), held = [], passing = [];
    try {
      const table = this.take(12 * names.length);
      passing.push(table);
      names.forEach((name, i) => {
        let file = files[name];
        if (file.count === undefined) {
          const bytes = file;
          file = this.room(bytes.byteLength);
          this.bytes(file.at, file.count).set(new Uint8Array(bytes.buffer ?? bytes, bytes.byteOffset ?? 0, bytes.byteLength));
        }
        held.push(file.at);
        passing.push(this.put(name));
        new Uint32Array(this.memory.buffer, table + 12 * i, 3).set([passing.at(-1), file.at, file.count]);
      });
      const options = this.words(32, this.threads, 0, trustDigests ? 1 : 0, 0, 0, context, stepTokens), out = this.words(0);
      passing.push(options, out);
      this.check(this.exports.weft_open_memory(table, names.length, options, out));
      return new Model(this, new Uint32Array(this.memory.buffer, out, 1)[0], held);
    } catch (error) {
      this.give(...held);
      throw error;
    } finally {
      this.give(...passing);
    }
  }
}

/** A LoRA adapter beside an open bundle. `info` is {name, rank, sha256}. */
export class Adapter {
  constructor(core, handle) {
    Object.assign(this, { core, handle });
    this.info = JSON.parse(core.text(core.exports.weft_adapter_info(handle)));
  }

  /** Its memory, back; calls may not name it any more. */
  free() {
    this.core.exports.weft_adapter_free(this.handle);
    this.handle = 0;
  }
}

// Where an adapter is; 0 for the model alone.
function handleOf(adapter) {
  if (adapter === undefined || adapter === null) return 0;
  if (!(adapter instanceof Adapter) || !adapter.handle) throw new WeftError("input", "[adapter] must be what loadAdapter gave, and not freed");
  return adapter.handle;
}

/** An open bundle. */
export class Model {
  constructor(core, handle, held) {
    Object.assign(this, { core, handle, held });
    this.info = JSON.parse(core.text(core.exports.weft_info(handle)));
  }

  /** An adapter from the bytes of its file, which `weft export --adapter FOLDER --alone` wrote. */
  loadAdapter(bytes) {
    const { core } = this, at = core.take(bytes.byteLength), out = core.words(0);
    try {
      core.bytes(at, bytes.byteLength).set(new Uint8Array(bytes.buffer ?? bytes, bytes.byteOffset ?? 0, bytes.byteLength));
      core.check(core.exports.weft_adapter_load_memory(this.handle, at, bytes.byteLength, out));
      return new Adapter(core, new Uint32Array(core.memory.buffer, out, 1)[0]);
    } finally {
      core.give(at, out);
    }
  }

  /** One vector for each text, one after the other in one Float32Array. */
  embed(texts, given = {}) {
    const { core } = this, dimension = core.exports.weft_dimension(this.handle), passing = [];
    const keep = (at) => (passing.push(at), at);
    try {
      const [table, options] = this.#texts(texts, given, keep);
      const vectors = keep(core.take(4 * texts.length * dimension));
      core.check(core.exports.weft_embed(this.handle, table, texts.length, options, vectors));
      return new Float32Array(core.memory.buffer, vectors, texts.length * dimension).slice();
    } finally {
      core.give(...passing);
    }
  }

  // A table of texts and weft_embed_options in memory.
  #texts(texts, { role, truncate = false, adapter }, keep) {
    const { core } = this, table = keep(core.take(4 * texts.length));
    texts.forEach((text, i) => {
      const at = keep(core.put(text));
      new Uint32Array(core.memory.buffer, table + 4 * i, 1)[0] = at;
    });
    return [table, keep(core.words(16, role === undefined ? 0 : keep(core.put(role)), truncate ? 1 : 0, handleOf(adapter)))];
  }

  // The next step that the caller computes, with copies of its arrays; null at the end.
  #next(at) {
    const { core } = this;
    core.bytes(at, STEP_BYTES).fill(0);
    new Uint32Array(core.memory.buffer, at, 1)[0] = STEP_BYTES;
    core.check(core.exports.weft_next_step(this.handle, at));
    const [, wanted, tokens, sequences, rows, width, ...places] = new Uint32Array(core.memory.buffer, at, STEP_BYTES / 4);
    if (!sequences) return null;
    const [ids, positions, types, segments, spans, chosen, pages] = places;
    const read = (from, count) => (from && count ? new Int32Array(core.memory.buffer, from, count).slice() : new Int32Array());
    const arrays = {
      ids: read(ids, tokens), positions: read(positions, tokens), types: read(types, tokens),
      segments: read(segments, sequences + 1), spans: read(spans, sequences + 1),
      rows: read(chosen, rows), pages: read(pages, sequences * width),
    };
    return { wanted: WANTED[wanted], tokens, sequences, rows, arrays };
  }

  /** As embed, with steps that `run(step)` computes: their vectors, or a promise of them. `onStep` is told how many are done. */
  async embedOn(run, texts, { onStep, ...given } = {}) {
    const { core } = this, passing = [], keep = (at) => (passing.push(at), at);
    const dimension = core.exports.weft_dimension(this.handle), vectors = new Float32Array(texts.length * dimension);
    try {
      const [table, options] = this.#texts(texts, given, keep);
      core.check(core.exports.weft_begin_embed(this.handle, table, texts.length, options));
      const at = keep(core.take(STEP_BYTES));
      for (let step, done = 0; (step = this.#next(at)); ) {
        const found = await run(step);
        if (found?.length !== step.sequences * dimension) throw new WeftError("format", "[gpu.json] gives other vectors than the manifest says; export the model again");
        vectors.set(found, done * dimension);
        onStep?.((done += step.sequences));
      }
      return vectors;
    } finally {
      core.give(...passing);
    }
  }

  /** The ids of a text; `special` adds the tokens around it. */
  tokenise(text, { special = true } = {}) {
    const { core } = this, encoded = encoder.encode(text), at = core.take(encoded.length), count = core.words(0);
    let ids = 0;
    try {
      core.bytes(at, encoded.length).set(encoded);
      const call = (capacity) =>
        core.exports.weft_tokenise(this.handle, at, encoded.length, special ? 1 : 0, ids, capacity, count);
      const size = () => new Uint32Array(core.memory.buffer, count, 1)[0];
      const status = call(0);
      if (CODES[status] !== "space") core.check(status);
      const found = size();
      ids = core.take(4 * found);
      core.check(call(found));
      return new Int32Array(core.memory.buffer, ids, found).slice();
    } finally {
      core.give(at, count, ids);
    }
  }

  // weft_generate_options in memory; what is left out has the header's defaults.
  #options(given, keep) {
    const { core } = this, adapter = handleOf(given.adapter), at = keep(core.take(72));
    const stops = (given.stop ?? []).map((text) => keep(core.put(text)));
    const table = stops.length ? keep(core.words(...stops)) : 0;
    const view = new DataView(core.memory.buffer, at, 72);
    view.setUint32(0, 72, true);
    view.setInt32(4, given.maxTokens ?? 256, true);
    view.setInt32(8, given.topK ?? 0, true);
    view.setFloat64(16, given.temperature ?? 0, true);
    view.setFloat64(24, given.topP ?? 1, true);
    view.setFloat64(32, given.minP ?? 0, true);
    view.setFloat64(40, given.repetitionPenalty ?? 1, true);
    view.setBigUint64(48, BigInt(given.seed ?? 0), true);
    view.setUint32(56, table, true);
    view.setUint32(60, stops.length, true);
    view.setUint32(64, adapter, true);
    return at;
  }

  // What collects the text that the module gives, until `end` is called.
  #listen(given) {
    const { core } = this, heard = { text: "", failed: undefined };
    core.onToken = (id, piece) => {
      heard.text += piece;
      try {
        return given.onToken?.(piece, id) === false ? 1 : 0;
      } catch (error) {
        heard.failed = error;
        return 1;
      }
    };
    heard.end = (status, result) => {
      if (heard.failed) throw heard.failed;
      const [promptTokens, tokens, finish] = new Uint32Array(core.memory.buffer, result, 3);
      if (CODES[status] !== "cancelled") core.check(status);
      return { text: heard.text, promptTokens, tokens, finish: FINISHES[finish] };
    };
    return heard;
  }

  #run(call, given) {
    const { core } = this, passing = [], keep = (at) => (passing.push(at), at), heard = this.#listen(given);
    try {
      const result = keep(core.words(0, 0, 0));
      return heard.end(call(keep, this.#options(given, keep), result), result);
    } finally {
      core.onToken = undefined;
      core.give(...passing);
    }
  }

  // The same, with steps that `run(step)` computes.
  async #runOn(run, begin, given) {
    const { core } = this, { exports } = core, passing = [], keep = (at) => (passing.push(at), at), heard = this.#listen(given);
    let begun = false;
    try {
      const result = keep(core.words(0, 0, 0)), at = keep(core.take(STEP_BYTES));
      core.check(begin(keep, this.#options(given, keep)));
      begun = true;
      for (let step; (step = this.#next(at)); ) this.#take(await run(step));
      begun = false;
      return heard.end(exports.weft_finish_steps(this.handle, result), result);
    } finally {
      core.onToken = undefined;
      if (begun) exports.weft_finish_steps(this.handle, 0);
      core.give(...passing);
    }
  }

  // What was computed of the last step: logits, the ids of the largest, or null.
  #take(found) {
    const { core } = this, { weft_take_logits: logits, weft_take_largest: largest } = core.exports;
    if (found instanceof Int32Array) return core.check(largest(this.handle, found[0]));
    const count = found?.length ?? 0, at = count ? core.take(4 * count) : 0;
    try {
      if (count) new Float32Array(core.memory.buffer, at, count).set(found);
      core.check(logits(this.handle, at, count));
    } finally {
      core.give(at);
    }
  }

  #messages(messages, keep) {
    return keep(this.core.words(...messages.flatMap(({ role, content }) => [keep(this.core.put(role)), keep(this.core.put(content))])));
  }

  /** Continues a prompt. `onToken(text, id)` may return false to end it. */
  generate(prompt, given = {}) {
    const { weft_page_generate } = this.core.exports;
    return this.#run((keep, options, result) => weft_page_generate(this.handle, keep(this.core.put(prompt)), options, result), given);
  }

  /** Answers a conversation: a list of {role, content}. */
  chat(messages, given = {}) {
    const { weft_page_chat } = this.core.exports;
    return this.#run((keep, options, result) => weft_page_chat(this.handle, this.#messages(messages, keep), messages.length, options, result), given);
  }

  /** As generate and chat, with steps that `run(step)` computes. */
  generateOn(run, prompt, given = {}) {
    const { weft_page_begin_generate } = this.core.exports;
    return this.#runOn(run, (keep, options) => weft_page_begin_generate(this.handle, keep(this.core.put(prompt)), options), given);
  }

  chatOn(run, messages, given = {}) {
    const { weft_page_begin_chat } = this.core.exports;
    return this.#runOn(run, (keep, options) => weft_page_begin_chat(this.handle, this.#messages(messages, keep), messages.length, options), given);
  }

  close() {
    if (!this.handle) return;
    this.core.exports.weft_close(this.handle);
    this.core.give(...this.held);
    this.handle = 0;
    this.held = [];
  }
}
