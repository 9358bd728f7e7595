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

// Reads a body into its place. False when it is longer or shorter than the place, or cut off.
async function fill(core, place, response, tell, signal) {
  const reader = response.body.getReader();
  let at = 0;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return at === place.count;
      if (signal?.aborted) throw new WeftError("aborted", "[load] was cancelled");
      if (at + value.length > place.count) return false;
      core.bytes(place.at + at, value.length).set(value);
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

/**
 * The files of the bundle at `base`, in the module's memory: {files, trustDigests, kept}. `onProgress` gets
 * {file, loaded, total, cached} in bytes.
 */
export async function loadBundle(core, base, { onProgress = () => {}, signal, cache: wanted = true } = {}) {
  const cache = await openCache(wanted);
  const address = (name) => new URL(name, base.endsWith("/") ? base : `${base}/`).href;
  const { manifest, bytes } = await readManifest(address("manifest.json"), cache, signal);
  const total = Object.values(manifest.files).reduce((sum, file) => sum + file.bytes, 0);
  // Without a secure context the browser has no digests: the module computes them itself when it opens the bundle.
  const checks = globalThis.crypto?.subtle !== undefined;
  const files = {}, taken = [];
  let before = 0, kept = cache !== null;
  try {
    const place = (count) => {
      const room = core.room(count);
      taken.push(room.at);
      return room;
    };
    files["manifest.json"] = place(bytes.length);
    core.bytes(files["manifest.json"].at, bytes.length).set(bytes);
    for (const [name, { bytes: size, sha256 }] of Object.entries(manifest.files)) {
      const room = (files[name] = place(size)), key = keyOf(address(name), sha256);
      const whole = async (response, cached) => {
        const tell = (loaded) => onProgress({ file: name, loaded: before + loaded, total, cached });
        if (!(await fill(core, room, response, tell, signal))) return false;
        return !checks || (await digestOf(core.bytes(room.at, size))) === sha256;
      };
      const held = await cache?.match(key);
      if (!held || !(await whole(held, true))) {
        await cache?.delete(key);
        const response = await ask(address(name), signal), copy = cache ? response.clone() : null;
        // A full disk, or one that the browser does not give: the model works, and is fetched again next time.
        const keeping = copy && cache.put(key, copy).then(() => true, () => false);
        let good = false;
        try {
          good = await whole(response, false);
        } finally {
          if (!(await keeping)) kept = false;
          if (!good) await cache?.delete(key);
        }
        if (!good) throw new WeftError("format", `[${name}] is damaged: it is not what the manifest describes`);
      }
      before += size;
    }
    await forgetBundle(base, new Set(Object.entries(manifest.files).map(([name, file]) => keyOf(address(name), file.sha256))));
    return { files, trustDigests: checks, kept };
  } catch (error) {
    core.give(...taken);
    throw error;
  }
}
