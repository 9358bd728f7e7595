// Requests and models as tables.

import { h } from "../ui/dom.js";
import { bytes, duration, whole } from "../ui/numbers.js";

const MAX_ROWS = 100;

/** @param {{title: string, note: string, empty: string, heads: [string, string?][], rows: (Node|string)[][]}} options */
function tableCard({ title, note, empty, heads, rows }) {
  const head = h("div", { class: "card-head" }, h("h2", {}, title), h("span", { class: "hint numbers" }, note));
  if (!rows.length) return [head, h("p", { class: "nothing" }, empty)];
  const cells = (tag, row) =>
    row.map((cell, i) => h(tag, { class: heads[i][1] ?? null, scope: tag === "th" ? "col" : null }, cell));
  const table = h(
    "table",
    { class: "numbers" },
    h("caption", { class: "hidden-text" }, title),
    h("thead", {}, h("tr", {}, ...cells("th", heads.map(([name]) => name)))),
    h("tbody", {}, ...rows.map((row) => h("tr", {}, ...cells("td", row)))),
  );
  return [head, h("div", { class: "table-box", tabindex: 0, role: "region", "aria-label": title }, table)];
}

const badge = (state) => h("span", { class: "badge", data: { state } }, state);

export function requestsTable(requests) {
  const rows = requests.slice(0, MAX_ROWS).map((request) => [
    h("code", {}, String(request.id).slice(-12)),
    request.model,
    request.kind,
    badge(request.state),
    whole(request.prompt_tokens ?? 0),
    whole(request.output_tokens ?? 0),
    duration(request.age_s ?? 0),
  ]);
  const heads = [["Request"], ["Model"], ["Kind"], ["State"], ["Prompt", "to-right"], ["Output", "to-right"], [
    "Age",
    "to-right",
  ]];
  return tableCard({
    title: "Requests",
    note: requests.length > MAX_ROWS ? `${MAX_ROWS} of ${requests.length}` : "",
    empty: "No request right now. Send one in the chat tab and it shows up here.",
    heads,
    rows,
  });
}

export function modelsTable(models) {
  const rows = models.map((model) => [
    model.name,
    model.kind === "embed" ? "embeds" : "generates",
    badge(model.state),
    (model.adapters ?? []).map((adapter) => adapter.name ?? adapter).join(", ") || "–",
    model.bytes ? bytes(model.bytes) : "–",
  ]);
  const heads = [["Model"], ["Kind"], ["State"], ["Adapters"], ["Memory", "to-right"]];
  return tableCard({ title: "Models", note: "", empty: "This server has no models.", heads, rows });
}
