// The settings of a conversation: preset, system prompt, sampling, output, tools, context, export. An empty field leaves
// the choice to the server.

import { onModels } from "../api/models.js";
import { h } from "../ui/dom.js";
import { iconButton } from "../ui/icons.js";
import { presetField } from "./presets.js";
import { parseSchema, parseTools } from "./request.js";
import { samplingFields } from "./sampling.js";

const SCHEMA = `{
  "type": "object",
  "properties": {
    "title": { "type": "string", "maxLength": 60 },
    "tags": { "type": "array", "items": { "type": "string", "maxLength": 20 }, "maxItems": 4 },
    "score": { "type": "integer", "minimum": 1, "maximum": 10 }
  },
  "required": ["title", "tags", "score"],
  "additionalProperties": false
}`;
const TOOLS = `[
  {
    "name": "get_weather",
    "description": "The weather at a place now.",
    "parameters": {
      "type": "object",
      "properties": { "place": { "type": "string" } },
      "required": ["place"]
    }
  }
]`;

/**
 * @param {() => import("./conversation.js").Conversation} current
 * @param {() => void} changed
 * @param {HTMLElement} exports
 */
export function makePanel(current, changed, exports) {
  const system = h("textarea", { id: "system", rows: 3, placeholder: "Who the model is and how it answers" });
  const tell = () => {
    presets.update();
    changed();
  };
  system.addEventListener("input", () => {
    current().system = system.value;
    tell();
  });
  const presets = presetField(current, () => {
    update();
    changed();
  });
  const sampling = samplingFields(current, tell);
  const schema = textField(current, tell, {
    name: "schema",
    label: "JSON schema",
    placeholder: "Empty: any JSON object",
    example: SCHEMA,
    check: (text) => {
      const { schema: found, error } = parseSchema(text);
      return { error, words: found ? "A valid JSON object" : "Any JSON object" };
    },
  });
  const json = switchField("Answer in JSON", "The reply follows the schema, token by token", current, "json", () => {
    tell();
    show();
  });
  const tools = textField(current, tell, {
    name: "tools",
    label: "Tools",
    placeholder: "Functions, as a JSON list",
    example: TOOLS,
    check: (text) => {
      const { tools: found, error } = parseTools(text);
      const off = current().settings.json && found.length ? "Off while the answer is JSON" : "";
      const count = found.length === 1 ? "1 function" : `${found.length} functions`;
      return { error, words: off || (found.length ? `${count}; you answer the calls by hand` : "No tools") };
    },
  });
  const probabilities = switchField(
    "Token probabilities",
    "Shows what else each token could have been",
    current,
    "probabilities",
    tell,
  );
  const roll = switchField(
    "Leave out the oldest messages",
    "When the context is full, without asking",
    current,
    "roll",
    tell,
  );
  const reset = h("button", {
    type: "button",
    class: "button quiet small",
    on: {
      click: () => {
        sampling.reset();
        update();
        changed();
      },
    },
  }, "Reset");

  function show() {
    schema.element.hidden = !current().settings.json;
    tools.check();
  }
  function update() {
    system.value = current().system;
    for (const field of [presets, sampling, schema, json, tools, probabilities, roll]) field.update();
    show();
  }
  onModels(() => sampling.update());
  const group = (title, more, ...children) =>
    h("section", { class: "group" }, h("div", { class: "group-head" }, h("h3", {}, title), more), ...children);
  const element = h(
    "section",
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
      group("Preset", null, presets.element),
      group("System prompt", null, h("label", { for: "system", class: "hidden-text" }, "System prompt"), system),
      group("Sampling", reset, ...sampling.nodes),
      group("Output", null, json.element, schema.element, probabilities.element),
      group("Tools", null, tools.element),
      group("Context", null, roll.element),
      group("Export this conversation", null, exports),
    ),
  );
  return { element, update };
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
    update: () => {
      input.checked = current().settings[name];
    },
  };
}

/** A setting that is a text of JSON: an area, what is wrong with it, and an example. */
function textField(current, changed, { name, label, placeholder, example, check }) {
  const area = h("textarea", {
    class: "mono",
    rows: name === "schema" ? 9 : 3,
    spellcheck: "false",
    "aria-label": label,
    "aria-describedby": `${name}-state`,
    placeholder,
  });
  const state = h("span", { id: `${name}-state`, class: "hint", role: "status" });
  const fill = h("button", { type: "button", class: "button quiet small", on: { click: () => write(example) } }, "Example");

  function write(text) {
    area.value = text;
    current().settings[name] = text;
    show();
    changed();
  }
  function show() {
    const { error, words } = check(area.value);
    area.setAttribute("aria-invalid", String(error !== ""));
    state.textContent = error || words;
    state.classList.toggle("wrong", error !== "");
    if (name === "tools") area.rows = area.value ? 9 : 3;
  }
  area.addEventListener("input", () => write(area.value));
  return {
    element: h("div", { class: "schema" }, area, h("div", { class: "row between" }, state, fill)),
    check: show,
    update() {
      area.value = current().settings[name];
      show();
    },
  };
}
