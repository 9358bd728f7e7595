// What a run is started with: a model, rows, and the few settings that matter.

import { postJson } from "../api/client.js";
import { modelsOf, noModels, onModels } from "../api/models.js";
import { freshId, h } from "../ui/dom.js";
import { chooseFiles } from "../ui/files.js";
import { icon } from "../ui/icons.js";
import { recall, remember } from "../ui/memory.js";
import { kindOf, parseRows } from "./rows.js";

const ROWS = "weft.training.rows";
const LARGEST = 8_000_000; // bytes: what the server takes in one request
const WEEK = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
/** Name, label, value, and what a number must be. */
const NUMBERS = [
  ["epochs", "Epochs", 3, { min: 1, max: 1000, step: 1 }],
  ["lr", "Learning rate", 0.0005, { min: 0.0000001, max: 1, step: "any" }],
  ["rank", "Rank", 8, { min: 1, max: 256, step: 1 }],
  ["batch_tokens", "Tokens a step", 512, { min: 16, max: 65536, step: 1 }],
  ["held_out", "Held out, %", 10, { min: 0, max: 50, step: 1 }],
];

/** Which day comes after another one: a task that a small model learns in a minute, and that everybody can check. */
function example() {
  const rows = WEEK.flatMap((day, i) =>
    [1, 2, 3, 4].map((days) => ({
      messages: [
        { role: "user", content: `Which day is ${days} ${days === 1 ? "day" : "days"} after ${day}?` },
        { role: "assistant", content: JSON.stringify({ day: WEEK[(i + days) % 7] }) },
      ],
    }))
  );
  return rows.map((row) => JSON.stringify(row)).join("\n");
}

/** @param {(run: any) => void} started */
export function trainingForm(started) {
  const model = h("select", { id: "training-model" });
  const name = h("input", {
    id: "training-name",
    type: "text",
    required: true,
    maxlength: 64,
    pattern: "[A-Za-z0-9_][A-Za-z0-9_.\\-]*",
    title: "Letters, digits, and . _ -",
    autocomplete: "off",
    spellcheck: "false",
    value: "my-adapter",
  });
  const area = h("textarea", {
    id: "training-rows",
    rows: 10,
    spellcheck: "false",
    value: recall(ROWS) ?? "",
    placeholder: '{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}',
  });
  const count = h("span", { class: "hint numbers", role: "status" });
  const go = h("button", { type: "submit", class: "button primary" }, icon("play"), "Train");
  const problem = h("div", { class: "notice bad", role: "alert", hidden: true });
  const inputs = Object.fromEntries(NUMBERS.map(([key, , value, limits]) => [
    key,
    h("input", { id: freshId("training"), type: "number", required: true, value, ...limits }),
  ]));
  const fill = (text) => {
    area.value = text;
    typed();
    area.focus();
  };
  const button = (label, click) => h("button", { type: "button", class: "button quiet small", on: { click } }, label);
  const sources = h(
    "span",
    { class: "row" },
    button("Example", () => fill(example())),
    button("File", async () => {
      const files = await chooseFiles(".jsonl,.ndjson,.json", LARGEST);
      if (files) fill(files.map((file) => file.text.trim()).join("\n"));
    }),
  );
  const form = h(
    "form",
    { class: "training-form" },
    h("div", { class: "field" }, h("label", { for: "training-model" }, "Model"), model),
    h("div", { class: "field" }, h("label", { for: "training-name" }, "Name of the adapter"), name),
    h(
      "div",
      { class: "field" },
      h("div", { class: "row between" }, h("label", { for: "training-rows", class: "label" }, "Rows"), sources),
      area,
      count,
    ),
    h(
      "div",
      { class: "training-numbers" },
      ...NUMBERS.map(([key, label]) =>
        h("div", { class: "field" }, h("label", { for: inputs[key].id }, label), inputs[key])
      ),
    ),
    h("div", { class: "row" }, go),
    problem,
  );
  let rows = [];
  let busy = false;

  function complain(words) {
    problem.hidden = !words;
    problem.replaceChildren(icon("warning"), h("div", {}, words));
  }
  function typed() {
    if (area.value.length < 1_000_000) remember(ROWS, area.value || null);
    let wrong = "";
    try {
      rows = parseRows(area.value);
    } catch (error) {
      rows = [];
      wrong = error.message;
    }
    const kind = kindOf(rows) === "dpo" ? ", preferences" : "";
    count.textContent = wrong || `${rows.length} ${rows.length === 1 ? "row" : "rows"}${kind}`;
    count.classList.toggle("wrong", Boolean(wrong));
    go.disabled = busy || rows.length < 2 || !model.value;
  }
  async function start() {
    busy = true;
    typed();
    complain("");
    const { held_out: part, ...settings } = Object.fromEntries(
      Object.entries(inputs).map(([key, input]) => [key, Number(input.value)]),
    );
    const body = { name: name.value, model: model.value, rows, kind: kindOf(rows), held_out: part / 100, settings };
    try {
      started(await postJson("v1/training/runs", body));
    } catch (error) {
      complain(error.message);
    }
    busy = false;
    typed();
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!go.disabled) start();
  });
  area.addEventListener("input", typed);
  onModels(() => {
    const known = modelsOf("generate");
    const kept = model.value;
    model.replaceChildren(
      ...(known.length
        ? known.map((each) => h("option", { value: each.name }, each.name))
        : [h("option", { value: "" }, noModels("No model that generates text"))]),
    );
    if (known.some((each) => each.name === kept)) model.value = kept;
    typed();
  });
  return form;
}
