// weft: a model in a worker, so that the page never waits for it.
//
//   const weft = await Weft.load("/models/minilm.weft", { onProgress });
//   const [a, b] = await weft.embed(["a cat", "a kitten"]);

import { WeftError } from "./core.js";
import { forgetBundle } from "./loading.js";

export { WeftError };

// What ends a text: memory that the worker shares where the page is isolated, else an address that is revoked.
function flagOf() {
  if (!globalThis.crossOriginIsolated) {
    const address = URL.createObjectURL(new Blob(["1"]));
    return [address, () => URL.revokeObjectURL(address)];
  }
  const shared = new Int32Array(new SharedArrayBuffer(4));
  return [shared, () => Atomics.store(shared, 0, 1)];
}

const DEVICES = ["auto", "gpu", "wasm"];

const here = (name) => new URL(name, import.meta.url);

// Workers share memory in isolated pages only. More than eight are seldom quicker: memory is the limit.
const teamOf = (asked) => (globalThis.crossOriginIsolated ? asked || Math.min(globalThis.navigator?.hardwareConcurrency ?? 1, 8) : 1);

/** A LoRA adapter beside a model: `name`, `rank` and `sha256` of its file. */
class WeftAdapter {
  #free;

  constructor({ name, rank, sha256 }, free) {
    Object.assign(this, { name, rank, sha256 });
    this.#free = free;
  }

  /** Gives its memory back; calls may not name it any more. */
  free() {
    return this.#free();
  }
}

export class Weft {
  /** Loads the bundle at `url`, a folder that `weft export` wrote. */
  static async load(
    url,
    { onProgress, signal, cache = true, context = 0, threads = 0, device = "auto", wasm = here("./weft.wasm"), threaded = here("./weft-threads.wasm") } = {},
  ) {
    if (!Number.isInteger(threads) || threads < 0 || threads > 64) throw new WeftError("input", `[load] threads must be 0 to 64, not ${threads}`);
    if (!DEVICES.includes(device)) throw new WeftError("input", `[load] device must be one of ${DEVICES.join(", ")}, not ${device}`);
    const weft = new Weft();
    const args = { device, url: new URL(url, globalThis.location?.href).href, wasm: String(wasm), threaded: String(threaded), threads: teamOf(threads), cache, context };
    try {
      weft.info = await weft.#call("load", args, { onProgress, signal });
      // A GPU compiles shaders without a look at messages.
      if (signal?.aborted) throw new WeftError("aborted", "[load] was cancelled");
    } catch (error) {
      weft.close();
      throw error;
    }
    return weft;
  }

  /** Where the model runs, and why: {kind, name, why}. */
  get device() {
    return this.info.device;
  }

  /** Deletes what the browser keeps of the bundle or the adapter at `url`, or of all of this origin. Open models stay open. */
  static forget(url) {
    return forgetBundle(url === undefined ? "" : new URL(url, globalThis.location?.href).href);
  }

  #worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  #calls = new Map();
  #next = 0;
  #closed = false;
  #adapters = new Map(); // the worker's numbers of adapters

  constructor() {
    this.#worker.onmessage = ({ data: { id, result, error, progress } }) => {
      const call = this.#calls.get(id);
      if (!call) return;
      if (progress) return call.onProgress?.(progress);
      this.#calls.delete(id);
      if (error) call.reject(new WeftError(error.code, error.message));
      else call.resolve(result);
    };
    this.#worker.onerror = (event) => this.#fail(new WeftError("internal", `[worker] ${event.message ?? "did not start"}`));
  }

  #fail(error) {
    for (const call of this.#calls.values()) call.reject(error);
    this.#calls.clear();
  }

  #call(method, args, { onProgress, signal } = {}) {
    if (this.#closed) return Promise.reject(new WeftError("input", "[weft] this model was closed"));
    if (signal?.aborted) return Promise.reject(new WeftError("cancelled", `[${method}] was cancelled`));
    const id = ++this.#next;
    const stop = () => this.#worker.postMessage({ cancel: id });
    signal?.addEventListener("abort", stop, { once: true });
    return new Promise((resolve, reject) => {
      this.#calls.set(id, { resolve, reject, onProgress });
      this.#worker.postMessage({ id, method, args });
    }).finally(() => signal?.removeEventListener("abort", stop));
  }

  /**
   * A LoRA adapter from the file at `url`, which `weft export --adapter FOLDER --alone` wrote, for calls that name it. The bundle
   * must have room for adapters: `info.adapters`.
   */
  async loadAdapter(url, { signal, cache = true } = {}) {
    const { number, info } = await this.#call("loadAdapter", { url: new URL(url, globalThis.location?.href).href, cache }, { signal });
    const adapter = new WeftAdapter(info, () => {
      const known = this.#adapters.delete(adapter);
      return known ? this.#call("freeAdapter", { number }) : Promise.resolve();
    });
    this.#adapters.set(adapter, number);
    return adapter;
  }

  // The worker's number of an adapter; undefined for the model alone.
  #numberOf(adapter) {
    if (adapter === undefined || adapter === null) return undefined;
    if (!this.#adapters.has(adapter)) throw new WeftError("input", "[adapter] must be what loadAdapter of this model gave, and not freed");
    return this.#adapters.get(adapter);
  }

  /** One Float32Array for each text. */
  async embed(texts, { role, truncate = false, adapter, onProgress, signal } = {}) {
    const list = typeof texts === "string" ? [texts] : [...texts];
    if (!list.every((text) => typeof text === "string")) throw new WeftError("input", "[embed] texts must be strings");
    const vectors = await this.#call("embed", { texts: list, role, truncate, adapter: this.#numberOf(adapter) }, { onProgress, signal });
    const size = vectors.length / Math.max(list.length, 1);
    return list.map((_, i) => vectors.subarray(i * size, (i + 1) * size));
  }

  async #write(method, args, { onToken, signal, ...given }) {
    const options = { ...given, adapter: this.#numberOf(given.adapter) };
    if (signal?.aborted) throw new WeftError("cancelled", `[${method}] was cancelled`);
    const [flag, end] = signal ? flagOf() : [];
    signal?.addEventListener("abort", end, { once: true });
    try {
      const onProgress = onToken && (({ text, id }) => onToken(text, id));
      return await this.#call(method, { ...args, options: { ...options, flag } }, { onProgress });
    } finally {
      signal?.removeEventListener("abort", end);
      end?.();
    }
  }

  /** Continues a prompt; `onToken` gets the text as it comes. A text that `signal` ends has the finish "cancelled". */
  generate(prompt, options = {}) {
    return this.#write("generate", { prompt: String(prompt) }, options);
  }

  /** Answers a conversation, a list of {role, content}. */
  chat(messages, options = {}) {
    const list = messages.map(({ role, content }) => ({ role: String(role), content: String(content) }));
    return this.#write("chat", { messages: list }, options);
  }

  /** The ids of a text. */
  tokenise(text, { special = true } = {}) {
    return this.#call("tokenise", { text, special });
  }

  /** How many bytes of memory the module has now. */
  heapBytes() {
    return this.#call("heap");
  }

  /** Ends the worker and gives its memory back; calls that are running are refused. */
  close() {
    this.#closed = true;
    this.#worker.terminate();
    this.#fail(new WeftError("cancelled", "[weft] this model was closed"));
  }
}
