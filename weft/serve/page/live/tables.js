// Requests and models as tables. A table stays in place and only its rows change, so that it keeps the focus.

import { h } from "../ui/dom.js";
import { bytes, duration, whole } from "../ui/numbers.js";

const MAX_ROWS = 100;

/**
 * @param {string} title
 * @param {string} empty  what stands there without rows
 * @param {string[]} heads  those that end in > are aligned to the right
 * @param {(item: any) => (Node|string)[]} cells
 */
function makeTable(title, empty, heads, cells) {
  const sides = heads.map((head) => (head.endsWith(">") ? "to-right" : null));
  const note = h("span", { class: "hint numbers" });
  const body = h("tbody");
  const head = h(
    "tr",
    {},
    ...heads.map((name, i) => h("th", { scope: "col", class: sides[i] }, name.replace(">", ""))),
  );
  const caption = h("caption", { class: "hidden-text" }, title);
  const table = h("table", { class: "numbers" }, caption, h("thead", {}, head), body);
  const box = h("div", { class: "table-box", tabindex: 0, role: "region", "aria-label": title }, table);
  const nothing = h("p", { class: "nothing" }, empty);
  const element = h(
    "section",
    { class: "card wide" },
    h("div", { class: "card-head" }, h("h2", {}, title), note),
    box,
    nothing,
  );
  return {
    element,
    update(items) {
      const rows = items.slice(0, MAX_ROWS).map(cells);
      body.replaceChildren(
        ...rows.map((row) => h("tr", {}, ...row.map((cell, i) => h("td", { class: sides[i] }, cell)))),
      );
      box.hidden = rows.length === 0;
      nothing.hidden = rows.length > 0;
      note.textContent = items.length > MAX_ROWS ? `${MAX_ROWS} of ${whole(items.length)}` : "";
    },
  };
}

const badge = (state) => h("span", { class: "badge", data: { state } }, state);

export function requestsTable() {
  const empty = "No request is running. Requests appear here while they run.";
  const heads = ["Request", "Model", "Kind", "State", "Prompt>", "Output>", "Age>"];
  return makeTable("Requests", empty, heads, (request) => [
    h("code", {}, String(request.id).slice(-12)),
    request.model,
    request.kind,
    badge(request.state),
    whole(request.prompt_tokens ?? 0),
    whole(request.output_tokens ?? 0),
    duration(request.age_s ?? 0),
  ]);
}

export function modelsTable() {
  const heads = ["Model", "Kind", "State", "Adapters", "Memory>"];
  return makeTable("Models", "This server has no models.", heads, (model) => [
    model.name,
    { generate: "chat", embed: "embeddings", rerank: "reranking" }[model.kind] ?? model.kind,
    badge(model.state),
    (model.adapters ?? []).map((adapter) => adapter.name ?? adapter).join(", ") || "–",
    memory(model),
  ]);
}

function memory(model) {
  if (!model.bytes) return "–";
  return model.state === "unloaded" ? `${bytes(model.bytes)} when loaded` : bytes(model.bytes);
}
