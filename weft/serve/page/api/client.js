// Requests to this server and no other. A 401 asks for the key once and tries again; the key lives as long as the tab.

import { readEvents } from "./events.js";

const KEY = "weft.key";
let key = "";
try {
  key = sessionStorage.getItem(KEY) ?? "";
} catch { /* kept in memory only */ }

/** @type {(refused: boolean) => Promise<string|null>} */
let askForKey = () => Promise.resolve(null);
/** @type {Promise<string|null>|null} */
let asking = null;
/** @type {(up: boolean) => void} */
let reachable = () => {};

/** What a response with an error status said, or that no whole response came. Programs look at `code`. */
export class ApiError extends Error {
  constructor(words, code = "") {
    super(words);
    this.code = code;
  }
}
/** A stream that ended before it was whole. */
export class BrokenOff extends ApiError {}

/** Say how a key is asked for, and who hears whether the server answers. */
export function configureClient({ ask, heard }) {
  askForKey = ask;
  reachable = heard;
}

async function newKey(refused) {
  asking ??= askForKey(refused).finally(() => {
    asking = null;
  });
  const given = await asking;
  if (given === null) return false;
  key = given.trim();
  try {
    sessionStorage.setItem(KEY, key);
  } catch { /* kept in memory only */ }
  return true;
}

async function send(path, { method = "GET", body, signal, quiet = false, headers: more = {} }) {
  const used = key;
  const headers = { accept: "application/json", ...more };
  if (used) headers.authorization = `Bearer ${used}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const options = {
    method,
    headers,
    signal,
    cache: "no-store",
    body: body === undefined ? undefined : JSON.stringify(body),
  };
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    reachable(false);
    throw new ApiError("The server does not answer. Is it still running?");
  }
  reachable(true);
  if (response.status === 401 && !quiet) {
    // Another request may have asked for the key in the meantime.
    if (key !== used || (await newKey(used !== ""))) return send(path, { method, body, signal, headers: more });
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

async function errorOf(response) {
  let words = "";
  let code = "";
  try {
    const answer = await response.json();
    words = answer.error?.message ?? answer.error ?? answer.message ?? answer.detail ?? "";
    code = answer.error?.code ?? "";
  } catch { /* not JSON: the status has to do */ }
  if (!words && response.status === 401) words = "The server needs a key.";
  const said = typeof words === "string" && words ? words : `The server answered with status ${response.status}.`;
  return new ApiError(said, String(code));
}

/** GET and read JSON. `quiet` requests never open the key dialog. */
export async function getJson(path, options = {}) {
  return (await send(path, options)).json();
}

export async function postJson(path, body, options = {}) {
  return (await send(path, { ...options, method: "POST", body })).json();
}

export async function deleteJson(path) {
  return (await send(path, { method: "DELETE" })).json();
}

/** DELETE, and do not wait for the answer: nobody looks at it. */
export function sendDelete(path) {
  send(path, { method: "DELETE", quiet: true }).catch(() => {});
}

/**
 * Read server-sent events, each parsed and with its number, up to [DONE]. With a `body` it is a POST; `opened` gets the
 * response when its headers are there.
 * @returns {AsyncGenerator<{chunk: any, number: number}>}
 */
export async function* readStream(path, { body, opened = () => {}, ...options } = {}) {
  const response = await send(path, { ...options, method: body === undefined ? "GET" : "POST", body });
  opened(response);
  try {
    for await (const { data, id } of readEvents(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(chunk.error.message ?? "The server stopped with an error.", chunk.error.code);
      yield { chunk, number: id === "" ? -1 : Number(id) };
    }
  } catch (error) {
    if (error instanceof ApiError || error.name === "AbortError") throw error;
  }
  throw new BrokenOff("The answer broke off.");
}

/**
 * POST and read lines of JSON, as Ollama's routes send them.
 * @returns {AsyncGenerator<any>}
 */
export async function* readLines(path, body, options = {}) {
  const response = await send(path, { ...options, method: "POST", body });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const lines = (rest + (value ?? "")).split("\n");
    rest = done ? "" : lines.pop();
    for (const line of lines) {
      if (!line.trim()) continue;
      const item = JSON.parse(line);
      if (item.error) throw new ApiError(item.error);
      yield item;
    }
    if (done) return;
  }
}
