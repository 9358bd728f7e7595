// The models that the server has, with their states, sizes and defaults, kept for every view that offers a choice.

import { getJson } from "./client.js";

/**
 * A model. `bytes` is the memory it takes when loaded, `fileBytes` its size on disk; `sampling` are the settings that a
 * request gets which leaves them unset, `source` says where these come from.
 * @typedef {{name: string, kind: "generate"|"embed"|"rerank", state: string, bytes: number, fileBytes: number,
 *   sees: boolean, context: number, parameters: number, quantisation: string, family: string, licence: string, adapters: string[],
 *   sampling: Record<string, number>, source: string}} Model
 */

/** @type {Model[]} */
let models = [];
/** What the server lets this page do: download models, and how many tokens a reply has that sets no limit. */
let server = { downloads: false, replyTokens: 0 };
let known = false;
const listeners = new Set();
const KINDS = ["generate", "embed", "rerank"];

export const allModels = () => models;
export const modelsOf = (kind) => models.filter((model) => model.kind === kind);
export const serverFacts = () => server;

/** A model by its name, or the model that an adapter belongs to. */
export const modelNamed = (name) => models.find((model) => model.name === name || model.adapters.includes(name));

export const stateOf = (name) => modelNamed(name)?.state ?? "";

/** Why a model gets no pictures, as the end of a sentence and what to do; "" for one that sees. */
export function blindWords(name) {
  const model = modelNamed(name);
  if (model?.sees) return "";
  const others = models.filter(({ sees, kind }) => sees && kind === "generate").map((one) => one.name);
  const advice = others.length ? `Choose a model that sees: ${others.join(", ")}.` : "No model of this server sees.";
  return `${model?.name ?? "the model"} reads text only. ${advice}`;
}

/** What a choice says that has no models to offer. */
export const noModels = (words) => (known ? words : "Connecting…");

/** Call `react` now and after each change of the list. */
export function onModels(react) {
  listeners.add(react);
  react();
}

const text = (value) => (typeof value === "string" ? value : "");
const number = (value) => (typeof value === "number" && Number.isFinite(value) ? value : 0);

function read(model) {
  const sampling = Object.entries(model.sampling ?? {}).filter(([, value]) => typeof value === "number");
  return {
    name: String(model.name),
    kind: KINDS.includes(model.kind) ? model.kind : "generate",
    state: text(model.state),
    bytes: number(model.bytes),
    fileBytes: number(model.file_bytes),
    sees: model.sees === true,
    context: number(model.context),
    parameters: number(model.parameters),
    quantisation: text(model.quantisation),
    family: text(model.model_type),
    licence: text(model.licence),
    adapters: (model.adapters ?? []).map((adapter) => String(adapter.name ?? adapter)),
    sampling: Object.fromEntries(sampling),
    source: text(model.sampling_source),
  };
}

/** Take the list out of an answer of /weft/live. */
export function takeModels(live) {
  const next = (live.models ?? []).map(read);
  server = { downloads: live.downloads === true, replyTokens: number(live.default_tokens) };
  if (known && JSON.stringify(next) === JSON.stringify(models)) return;
  models = next;
  known = true;
  for (const react of listeners) react();
}

/** @param {boolean} [quiet]  nobody asked for it, so it opens no dialog */
export async function refreshModels(quiet = false) {
  takeModels(await getJson("weft/live", { quiet }));
}
