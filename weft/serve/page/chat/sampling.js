// The sampling settings: two fields are open, the others folded. A field that is not set shows the value that the model
// gets from the server, and its slider stands there.

import { modelNamed, serverFacts } from "../api/models.js";
import { freshId, h } from "../ui/dom.js";
import { DEFAULTS } from "./conversation.js";

/** A setting, its label, the least, the most, the step, what it does, and whether it has a slider. */
const NUMBERS = [
  ["temperature", "Temperature", 0, 2, 0.05, "0 always takes the likeliest token; higher values vary more", true],
  ["max_tokens", "Max tokens", 1, 1_000_000, 1, "the reply ends here at the latest", false],
  ["top_p", "Top-p", 0.01, 1, 0.01, "keep the likeliest tokens that together have this probability", true],
  ["min_p", "Min-p", 0, 1, 0.01, "keep tokens at least this likely, relative to the likeliest", true],
  ["top_k", "Top-k", 0, 1000, 1, "keep this many of the likeliest tokens; 0 keeps all", false],
  ["seed", "Seed", 0, 4_294_967_295, 1, "the same seed gives the same reply", false],
  ["presence_penalty", "Presence penalty", -2, 2, 0.1, "lowers tokens that have appeared", false],
  ["frequency_penalty", "Frequency penalty", -2, 2, 0.1, "lowers tokens by how often they have appeared", false],
  ["repetition_penalty", "Repetition penalty", 0.1, 5, 0.05, "divides the scores of repeated tokens; 1 is off", false],
];
const OPEN = ["temperature", "max_tokens"];
/** What a setting is that neither the user nor the model states. */
const NEUTRAL = {
  temperature: 1,
  top_p: 1,
  min_p: 0,
  top_k: 0,
  presence_penalty: 0,
  frequency_penalty: 0,
  repetition_penalty: 1,
};

/** The values that a conversation's unset fields get; null for the seed, which is drawn anew each time. */
export function effectiveValues(conversation) {
  const model = modelNamed(conversation.model);
  const most = serverFacts().replyTokens;
  const tokens = most && model?.context ? Math.min(most, model.context) : most || null;
  return { ...NEUTRAL, max_tokens: tokens, seed: null, ...model?.sampling };
}

/**
 * @param {() => import("./conversation.js").Conversation} current
 * @param {() => void} changed
 */
export function samplingFields(current, changed) {
  const fields = NUMBERS.map((row) => numberField(row, current, changed));
  const [open, folded] = [
    fields.filter(({ name }) => OPEN.includes(name)),
    fields.filter(({ name }) => !OPEN.includes(name)),
  ];
  const source = h("p", { class: "hint" });
  const count = h("span", { class: "hint numbers" });
  const more = h(
    "details",
    { class: "more" },
    h("summary", {}, "More sampling settings", count),
    h(
      "div",
      { class: "stack" },
      ...folded.filter(({ slider }) => slider).map(({ element }) => element),
      h("div", { class: "pairs" }, ...folded.filter(({ slider }) => !slider).map(({ element }) => element)),
    ),
  );

  function update() {
    const usual = effectiveValues(current());
    for (const field of fields) field.update(usual[field.name]);
    showCount();
    const said = modelNamed(current().model)?.source;
    source.textContent = said ? `Grey values are used where you set none. They come from ${said}.` : "";
    source.hidden = !said;
  }
  function showCount() {
    const set = folded.filter(({ name }) => current().settings[name] !== null).length;
    count.textContent = set ? `${set} set` : "";
  }
  for (const field of fields) field.onChange(showCount);
  return {
    nodes: [...open.map(({ element }) => element), more, source],
    update,
    reset() {
      for (const [name] of NUMBERS) current().settings[name] = DEFAULTS[name];
    },
  };
}

function numberField([name, label, min, max, step, hint, slides], current, changed) {
  const id = freshId("setting");
  const limits = { min, max, step };
  const input = h("input", {
    id,
    type: "number",
    inputmode: "decimal",
    title: hint,
    data: { setting: name },
    ...limits,
  });
  const slider = slides ? h("input", { type: "range", "aria-label": `${label}, slider`, title: hint, ...limits }) : null;
  let usual = null;
  let told = () => {};

  function set(text) {
    const value = text === "" ? null : Number(text);
    const good = value === null
      ? input.validity.valid
      : value >= min && value <= max && (step < 1 || Number.isInteger(value));
    input.setAttribute("aria-invalid", String(!good));
    if (!good) return;
    current().settings[name] = value;
    showSlider(value);
    told();
    changed();
  }
  function showSlider(value) {
    if (!slider) return;
    slider.value = value ?? usual ?? min;
    slider.classList.toggle("unset", value === null);
  }
  input.addEventListener("input", () => set(input.value));
  slider?.addEventListener("input", () => {
    input.value = slider.value;
    set(slider.value);
  });
  return {
    name,
    slider,
    onChange: (react) => {
      told = react;
    },
    element: h(
      "div",
      { class: slider ? "number with-slider" : "number", title: hint },
      h("label", { for: id }, label),
      slider,
      input,
    ),
    /** @param {number|null} effective  what the field is where it is empty */
    update(effective) {
      usual = effective;
      const value = current().settings[name];
      input.value = value ?? "";
      input.placeholder = usual === null ? (name === "seed" ? "random" : "") : String(usual);
      input.setAttribute("aria-invalid", "false");
      showSlider(value);
    },
  };
}
