// One model as a card: what it is, how large it is, whether it is in memory, and what can be done with it.

import { postJson } from "../api/client.js";
import { refreshModels } from "../api/models.js";
import { h } from "../ui/dom.js";
import { icon } from "../ui/icons.js";
import { bytes, whole } from "../ui/numbers.js";
import { toast } from "../ui/toast.js";

const KINDS = { generate: "Chat", embed: "Embeddings", rerank: "Reranking" };
const STATES = { ready: "Loaded", loading: "Loading", unloaded: "Not loaded", failed: "Failed to load" };

/** 1,500,000,000 as 1.5 B, 22,700,000 as 23 M. */
export function parameters(count) {
  if (count >= 1e9) return `${(count / 1e9).toFixed(count >= 1e10 ? 0 : 1)} B`;
  return count >= 1e6 ? `${Math.round(count / 1e6)} M` : whole(count);
}

/** Names and values of what is known of a model. */
function facts(model) {
  const rows = [
    ["Parameters", model.parameters && parameters(model.parameters)],
    ["Weights", model.quantisation],
    ["File size", model.fileBytes && bytes(model.fileBytes)],
    [model.state === "ready" ? "Memory" : "Memory when loaded", model.bytes && bytes(model.bytes)],
    ["Context", model.context && `${whole(model.context)} tokens`],
    ["Architecture", model.family],
    ["Adapters", model.adapters.join(", ")],
    ["Licence", model.licence],
  ];
  return rows.filter(([, value]) => value);
}

/**
 * @param {import("../api/models.js").Model} model
 * @param {{chat: (name: string) => void, embed: () => void}} actions
 */
export function modelCard(model, actions) {
  const button = (label, name, click, kind = "") =>
    h("button", { type: "button", class: `button small ${kind}`, on: { click } }, icon(name), label);
  const change = (path) => async (event) => {
    event.currentTarget.disabled = true;
    try {
      await Promise.all([postJson(path, { model: model.name }), refreshModels(true)]);
    } catch (error) {
      toast(error.message);
    }
    refreshModels(true).catch(() => {});
  };
  const loaded = model.state === "ready";
  const use = model.kind === "generate"
    ? button("Chat", "chat", () => actions.chat(model.name))
    : model.kind === "embed"
    ? button("Embed", "search", actions.embed)
    : null;
  const move = loaded
    ? button("Unload", "eject", change("models/unload"))
    : model.state === "loading"
    ? null
    : button("Load", "play", change("models/load"), "primary");
  return h(
    "li",
    { class: "card model-card", data: { model: model.name } },
    h(
      "div",
      { class: "model-head" },
      h("h2", {}, model.name),
      h("span", { class: "badge", data: { state: model.state } }, STATES[model.state] ?? model.state),
    ),
    h("p", { class: "model-kind" }, KINDS[model.kind]),
    h("dl", { class: "facts numbers" }, ...facts(model).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    model.state === "loading" ? h("div", { class: "progress", role: "progressbar", "aria-label": "Loading" }, h("span")) : null,
    h("div", { class: "row model-actions" }, move, use),
  );
}
