// loading: the files of a bundle, from the network or from the browser's cache, straight into the module's memory, each
// compared with its digest on the way. What is damaged in the cache is fetched again; what arrives damaged is refused.

import { WeftError } from "./core.js";

const CACHE = "weft-bundles-1";
const decoder = new TextDecoder();

const ADAPTER = "?adapter"; // behind the address of one that is kept

// Files are kept by their digest, so that a new export under the same address is not mistaken for the old one.
const keyOf = (address, digest) => `${address}?sha256=${digest}`;

async function openCache(wanted) {
  if (!wanted || typeof caches === "undefined") return null;
  try {
    return await caches.open(CACHE);
  } catch {
    return null; // private windows of some browsers
  }
}

async function ask(address, signal) {
  let response;
  try {
    response = await fetch(address, { signal });
  } catch (error) {
    if (signal?.aborted) throw new WeftError("aborted", "[load] was cancelled");
    throw new WeftError("network", `[${address}] cannot be fetched: ${error.message}`);
  }
  if (!response.ok) {
    throw new WeftError(response.status === 404 ? "not_found" : "network", `[${address}] the server answered ${response.status}`);
  }
  return response;
}

// What the server has now; without a network, what was kept.
async function askOrKept(address, cache, signal, key = address) {
  try {
    const response = await ask(address, signal);
    await cache?.put(key, response.clone()).catch(() => {});
    return response;
  } catch (error) {
    const kept = error.code === "network" ? await cache?.match(key) : undefined;
    if (!kept) throw error;
    return kept;
  }
}

/** Deletes what is kept of the bundle or the adapter at `base`, or of all; with `still` of a bundle's files all but those. */
export async function forgetBundle(base, still) {
  const cache = await openCache(true), folder = base && (base.endsWith("/") ? base : `${base}/`);
  for (const { url } of (await cache?.keys()) ?? []) {
    const inside = !folder || (url.startsWith(folder) && !url.slice(folder.length).includes("/"));
    const file = inside && url.includes("?sha256="), adapter = !still && url.endsWith(ADAPTER) && (inside || url === `${base}${ADAPTER}`);
    if ((file || adapter) && !still?.has(url)) await cache.delete(url);
  }
}

/** The module itself, kept for times without a network. */
export async function loadModule(address, { signal, cache = true } = {}) {
  return askOrKept(address, await openCache(cache), signal);
}

/** The bytes of an adapter's file, which the module compares with their digest; kept as well. */
export async function loadAdapter(address, { signal, cache = true } = {}) {
  const response = await askOrKept(address, await openCache(cache), signal, `${address}${ADAPTER}`);
  try {
    return new Uint8Array(await response.arrayBuffer());
  } catch (error) {
    throw signal?.aborted ? new WeftError("aborted", "[load] was cancelled") : new WeftError("network", `[${address}] was cut off: ${error.message}`);
  }
}

async function readManifest(address, cache, signal) {
  const response = await askOrKept(address, cache, signal);
  const bytes = new Uint8Array(await response.arrayBuffer());
  try {
    const manifest = JSON.parse(decoder.decode(bytes));
    for (const [name, { bytes: size, sha256 }] of Object.entries(manifest.files)) {
      if (!/^[a-z0-9_-][a-z0-9._-]{0,99}$/.test(name) || !Number.isSafeInteger(size) || size < 0 || !/^[0-9a-f]{64}$/.test(sha256)) throw name;
    }
    return { manifest, bytes };
  } catch {
    throw new WeftError("format", `[${address}] is not the manifest of a bundle`);
  }
}

async function digestOf(bytes) {
  const own = bytes.buffer instanceof ArrayBuffer ? bytes : bytes.slice(); // browsers refuse memory that is shared
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", own));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// Reads a body into `view(at, count)`, memory of `size` bytes. False when it is longer or shorter, or cut off.
async function fill(view, size, response, tell, signal) {
  const reader = response.body.getReader();
  let at = 0;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return at === size;
      if (signal?.aborted) throw new WeftError("aborted", "[load] was cancelled");
      if (at + value.length > size) return false;
      view(at, value.length).set(value);
      at += value.length;
      tell(at);
    }
  } catch (error) {
    if (signal?.aborted) throw new WeftError("aborted", "[load] was cancelled");
    if (error instanceof WeftError) throw error;
    return false;
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** The bundle at `base`: its manifest is there, its files are read when they are asked for. */
export async function findBundle(base, { signal, cache: wanted = true } = {}) {
  const cache = await openCache(wanted), folder = base.endsWith("/") ? base : `${base}/`;
  const { manifest, bytes } = await readManifest(new URL("manifest.json", folder).href, cache, signal);
  return new Bundle({ folder, cache, manifest, bytes, signal });
}

class Bundle {
  onProgress = () => {};
  // Without a secure context the browser has no digests: the module computes them itself when it opens the bundle.
  checks = globalThis.crypto?.subtle !== undefined;
  #done = 0;

  constructor(given) {
    Object.assign(this, given, { kept: given.cache !== null });
  }

  #address(name) {
    return new URL(name, this.folder).href;
  }

  /** The files that every host needs, those with weights among them. */
  get names() {
    return Object.keys(this.manifest.files).filter((name) => this.manifest.files[name].for === undefined);
  }

  hasWeights(name) {
    return (this.manifest.weights ?? []).some(({ file }) => file === name);
  }

  /** `onProgress` gets {file, loaded, total, cached} in bytes, of the files `names`. */
  follow(names, onProgress) {
    const total = names.reduce((sum, name) => sum + this.manifest.files[name].bytes, 0);
    this.onProgress = (progress) => onProgress?.({ ...progress, total });
    this.#done = 0;
  }

  // A file into `view(at, count)`, from the cache or the network.
  async #read(name, view) {
    const { cache, signal, manifest, checks } = this, { bytes: size, sha256 } = manifest.files[name];
    const key = keyOf(this.#address(name), sha256);
    const whole = async (response, cached) => {
      const tell = (loaded) => this.onProgress({ file: name, loaded: this.#done + loaded, cached });
      if (!(await fill(view, size, response, tell, signal))) return false;
      return !checks || (await digestOf(view(0, size))) === sha256;
    };
    const held = await cache?.match(key);
    if (!held || !(await whole(held, true))) {
      await cache?.delete(key);
      const response = await ask(this.#address(name), signal), copy = cache ? response.clone() : null;
      // A full disk, or one that the browser does not give: the model works, and is fetched again next time.
      const keeping = copy && cache.put(key, copy).then(() => true, () => false);
      let good = false;
      try {
        good = await whole(response, false);
      } finally {
        if (!(await keeping)) this.kept = false;
        if (!good) await cache?.delete(key);
      }
      if (!good) throw new WeftError("format", `[${name}] is damaged: it is not what the manifest describes`);
    }
    this.#done += size;
  }

  /** The bytes of a file. */
  async bytesOf(name) {
    if (!Object.hasOwn(this.manifest.files, name)) throw new WeftError("format", `[manifest.json] does not list the file ${name}`);
    const count = this.manifest.files[name].bytes;
    let bytes;
    try {
      bytes = new Uint8Array(count);
    } catch {
      throw new WeftError("memory", `[${name}] the browser refused ${count} bytes`);
    }
    await this.#read(name, (at, count) => bytes.subarray(at, at + count));
    return bytes;
  }

  /** The manifest and the files `names` in the module's memory: {files, trustDigests}. */
  async intoModule(core, names) {
    const files = {}, taken = [];
    const place = (count) => {
      const room = core.room(count);
      taken.push(room.at);
      return room;
    };
    try {
      const { at, count } = (files["manifest.json"] = place(this.bytes.length));
      core.bytes(at, count).set(this.bytes);
      for (const name of names) {
        const room = (files[name] = place(this.manifest.files[name].bytes));
        await this.#read(name, (start, length) => core.bytes(room.at + start, length));
      }
    } catch (error) {
      core.give(...taken);
      throw error;
    }
    return { files, trustDigests: this.checks };
  }

  /** Deletes what the cache has of other exports at this address. */
  async forgetOthers() {
    await forgetBundle(this.folder, new Set(Object.entries(this.manifest.files).map(([name, file]) => keyOf(this.#address(name), file.sha256))));
  }
}
