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

/** What a response with an error status said, or that no whole response came. */
export class ApiError extends Error {}

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

async function send(path, { method = "GET", body, signal, quiet = false }) {
  const used = key;
  const headers = { accept: "application/json" };
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
    // Another request may have asked for the key meanwhile.
    if (key !== used || (await newKey(used !== ""))) return send(path, { method, body, signal });
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

async function errorOf(response) {
  let words = "";
  try {
    const answer = await response.json();
    words = answer.error?.message ?? answer.message ?? answer.detail ?? "";
  } catch { /* not JSON: the status has to do */ }
  if (!words && response.status === 401) words = "The server wants a key.";
  return new ApiError(typeof words === "string" && words ? words : `The server answered ${response.status}.`);
}

/** GET and read JSON. `quiet` requests never open the key dialog. */
export async function getJson(path, options = {}) {
  return (await send(path, options)).json();
}

export async function postJson(path, body, options = {}) {
  return (await send(path, { ...options, method: "POST", body })).json();
}

/**
 * POST and read server-sent events, each parsed, up to [DONE].
 * @returns {AsyncGenerator<any>}
 */
export async function* postStream(path, body, options = {}) {
  const response = await send(path, { ...options, method: "POST", body });
  try {
    for await (const data of readEvents(response.body)) {
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(event.error.message ?? "The server stopped with an error.");
      yield event;
    }
  } catch (error) {
    if (error instanceof ApiError || error.name === "AbortError") throw error;
  }
  throw new ApiError("The answer broke off.");
}
