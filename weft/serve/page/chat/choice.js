// The model of a conversation, and the adapter on it.

import { modelsOf, noModels, onModels } from "../api/models.js";
import { h } from "../ui/dom.js";

const STATES = { loading: " – loading", unloaded: " – not loaded", failed: " – failed to load" };

/** @param {() => import("./conversation.js").Conversation} current @param {() => void} changed */
export function makeChoice(current, changed) {
  const model = h("select", { "aria-label": "Model", class: "model-choice" });
  const adapter = h("select", { "aria-label": "Adapter", class: "adapter-choice" });
  model.addEventListener("change", () => {
    Object.assign(current(), { model: model.value, adapter: "" });
    update();
    changed();
  });
  adapter.addEventListener("change", () => {
    current().adapter = adapter.value;
    changed();
  });

  function update() {
    const known = modelsOf("generate");
    const one = current();
    model.disabled = adapter.hidden = known.length === 0;
    if (!known.length) {
      model.replaceChildren(h("option", { value: "" }, noModels("No chat model")));
      return;
    }
    if (!known.some((each) => each.name === one.model)) Object.assign(one, { model: known[0].name, adapter: "" });
    model.replaceChildren(
      ...known.map((each) => h("option", { value: each.name }, each.name + (STATES[each.state] ?? ""))),
    );
    model.value = one.model;
    const { adapters } = known.find((each) => each.name === one.model);
    if (!adapters.includes(one.adapter)) one.adapter = "";
    adapter.replaceChildren(
      h("option", { value: "" }, "Base"),
      ...adapters.map((name) => h("option", { value: name }, name)),
    );
    adapter.value = one.adapter;
    adapter.hidden = adapters.length === 0;
  }
  onModels(update);
  return { element: h("div", { class: "choice" }, model, adapter), update };
}
