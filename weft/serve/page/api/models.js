// The models that the server has, with their states and adapters, kept for every view that offers a choice.

import { getJson } from "./client.js";

/**
 * @typedef {{name: string, kind: "generate"|"embed", state: string, bytes: number, adapters: string[]}} Model
 */

/** @type {Model[]} */
let models = [];
let known = false;
const listeners = new Set();

export const modelsOf = (kind) => models.filter((model) => model.kind === kind);

/** The state of a model, or of the model that an adapter belongs to. */
export const stateOf = (name) =>
  models.find((model) => model.name === name || model.adapters.includes(name))?.state ?? "";

/** What a choice says that has no models to offer. */
export const noModels = (words) => (known ? words : "Connecting…");

/** Call `react` now and after each change of the list. */
export function onModels(react) {
  listeners.add(react);
  react();
}

/** Take the list out of an answer of /weft/live. */
export function takeModels(live) {
  const next = (live.models ?? []).map((model) => ({
    name: String(model.name),
    kind: model.kind === "embed" ? "embed" : "generate",
    state: String(model.state ?? ""),
    bytes: Number(model.bytes ?? 0),
    adapters: (model.adapters ?? []).map((adapter) => String(adapter.name ?? adapter)),
  }));
  if (known && JSON.stringify(next) === JSON.stringify(models)) return;
  models = next;
  known = true;
  for (const react of listeners) react();
}

/** @param {boolean} [quiet]  nobody asked for it, so it opens no dialog */
export async function refreshModels(quiet = false) {
  takeModels(await getJson("weft/live", { quiet }));
}
