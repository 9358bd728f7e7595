// The settings of a conversation: system prompt, sampling, JSON schema, probabilities, export. An empty field leaves the
// choice to the server.

import { freshId, h } from "../ui/dom.js";
import { iconButton } from "../ui/icons.js";
import { DEFAULTS } from "./conversation.js";
import { parseSchema } from "./request.js";

/** A setting, its label, the least, the most, the step, what it does, and where its slider stands when it is not set. */
const NUMBERS = [
  ["temperature", "Temperature", 0, 2, 0.05, "0 always takes the likeliest token", 1],
  ["top_p", "Top-p", 0.01, 1, 0.01, "the likeliest tokens that make up this much", 1],
  ["min_p", "Min-p", 0, 1, 0.01, "tokens at least this likely, compared with the likeliest", 0],
  ["top_k", "Top-k", 0, 1000, 1, "this many of the likeliest tokens; 0 means all"],
  ["max_tokens", "Max tokens", 1, 1_000_000, 1, "the reply ends here at the latest"],
  ["presence_penalty", "Presence penalty", -2, 2, 0.1, "against tokens that were there already"],
  ["frequency_penalty", "Frequency penalty", -2, 2, 0.1, "against tokens, by how often they were there"],
  ["repetition_penalty", "Repetition penalty", 0.1, 5, 0.05, "divides the scores of repeated tokens; 1 is none"],
  ["seed", "Seed", 0, 4_294_967_295, 1, "the same seed gives the same reply"],
];

const EXAMPLE = `{
  "type": "object",
  "properties": {
    "title": { "type": "string", "maxLength": 60 },
    "tags": { "type": "array", "items": { "type": "string", "maxLength": 20 }, "maxItems": 4 },
    "score": { "type": "integer", "minimum": 1, "maximum": 10 }
  },
  "required": ["title", "tags", "score"],
  "additionalProperties": false
}`;

/**
 * @param {() => import("./conversation.js").Conversation} current
 * @param {() => void} changed
 * @param {HTMLElement} exports
 */
export function makePanel(current, changed, exports) {
  const system = h("textarea", { id: "system", rows: 3, placeholder: "Who the model is and how it answers" });
  system.addEventListener("input", () => {
    current().system = system.value;
    changed();
  });
  const numbers = NUMBERS.map((row) => numberField(row, current, changed));
  const [sliders, plain] = [numbers.filter((field) => field.slider), numbers.filter((field) => !field.slider)];
  const schema = schemaField(current, changed);
  const probabilities = switchField(
    "Token probabilities",
    "Each token of the next replies with what else it could have been",
    current,
    "probabilities",
    changed,
  );
  const reset = h("button", {
    type: "button",
    class: "button quiet small",
    on: {
      click: () => {
        for (const [name] of NUMBERS) current().settings[name] = DEFAULTS[name];
        changed();
        update();
      },
    },
  }, "Reset");

  function update() {
    system.value = current().system;
    for (const field of [...numbers, schema, probabilities]) field.update();
  }
  const group = (title, more, ...children) =>
    h("section", { class: "group" }, h("div", { class: "group-head" }, h("h3", {}, title), more), ...children);
  const element = h(
    "aside",
    { class: "side settings-side", "aria-label": "Settings", id: "settings" },
    h(
      "div",
      { class: "side-head" },
      h("h2", {}, "Settings"),
      iconButton("close", "Close", () => {}, { class: "close" }),
    ),
    h(
      "div",
      { class: "side-body groups" },
      group("System prompt", null, h("label", { for: "system", class: "hidden-text" }, "System prompt"), system),
      group(
        "Sampling",
        reset,
        ...sliders.map((field) => field.element),
        h(
          "div",
          { class: "pairs" },
          ...plain.map((field) => field.element),
        ),
      ),
      group("Output", null, schema.element, probabilities.element),
      group("Export", null, exports),
    ),
  );
  return { element, update };
}

function numberField([name, label, min, max, step, hint, usual], current, changed) {
  const id = freshId("setting");
  const limits = { min, max, step };
  const input = h("input", {
    id,
    type: "number",
    inputmode: "decimal",
    placeholder: "auto",
    title: hint,
    data: { setting: name },
    ...limits,
  });
  const slider = usual === undefined
    ? null
    : h("input", { type: "range", "aria-label": `${label}, slider`, ...limits });

  function set(text) {
    const value = text === "" ? null : Number(text);
    const good = value === null
      ? input.validity.valid
      : value >= min && value <= max && (step < 1 || Number.isInteger(value));
    input.setAttribute("aria-invalid", String(!good));
    if (!good) return;
    current().settings[name] = value;
    showSlider(value);
    changed();
  }
  function showSlider(value) {
    if (!slider) return;
    slider.value = value ?? usual;
    slider.classList.toggle("unset", value === null);
  }
  input.addEventListener("input", () => set(input.value));
  slider?.addEventListener("input", () => {
    input.value = slider.value;
    set(slider.value);
  });
  return {
    slider,
    element: h(
      "div",
      { class: slider ? "number with-slider" : "number", title: hint },
      h("label", { for: id }, label),
      slider,
      input,
    ),
    update() {
      const value = current().settings[name];
      input.value = value ?? "";
      input.setAttribute("aria-invalid", "false");
      showSlider(value);
    },
  };
}

function switchField(label, words, current, name, changed) {
  const input = h("input", { type: "checkbox", role: "switch", data: { setting: name } });
  input.addEventListener("change", () => {
    current().settings[name] = input.checked;
    changed();
  });
  const element = h(
    "label",
    { class: "switch" },
    h("span", { class: "switch-words" }, label, h("small", {}, words)),
    input,
  );
  return {
    element,
    input,
    update: () => {
      input.checked = current().settings[name];
    },
  };
}

function schemaField(current, changed) {
  const area = h("textarea", {
    class: "mono",
    rows: 9,
    spellcheck: "false",
    "aria-label": "JSON schema",
    "aria-describedby": "schema-state",
    placeholder: "Empty: any JSON object",
  });
  const state = h("span", { id: "schema-state", class: "hint", role: "status" });
  const example = h(
    "button",
    { type: "button", class: "button quiet small", on: { click: () => write(EXAMPLE) } },
    "Example",
  );
  const box = h("div", { class: "schema" }, area, h("div", { class: "row between" }, state, example));
  const field = switchField("Answer in JSON", "The reply follows the schema, token by token", current, "json", () => {
    changed();
    show();
  });

  function write(text) {
    area.value = text;
    current().settings.schema = text;
    show();
    changed();
  }
  function show() {
    const { schema, error } = parseSchema(area.value);
    box.hidden = !current().settings.json;
    area.setAttribute("aria-invalid", String(error !== ""));
    state.textContent = error || (schema ? "A valid JSON object" : "Any JSON object");
    state.classList.toggle("wrong", error !== "");
  }
  area.addEventListener("input", () => write(area.value));
  return {
    element: h("div", { class: "stack" }, field.element, box),
    update() {
      field.update();
      area.value = current().settings.schema;
      show();
    },
  };
}
