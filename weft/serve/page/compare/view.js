// The compare tab: two models, or two quantisations of one, answer the same prompt beside each other.

import { h } from "../ui/dom.js";
import { icon } from "../ui/icons.js";
import { partingWords } from "./parting.js";
import { startSide } from "./side.js";

const TOKENS = 128;
const QUESTION = "Explain what a loom does in three sentences.";

/** @param {HTMLElement} view */
export function startCompare(view) {
  const prompt = h("textarea", { id: "compare-prompt", rows: 3, value: QUESTION });
  const limit = h("input", { id: "compare-tokens", type: "number", min: 1, max: 4096, required: true, value: TOKENS });
  const turns = h("input", { id: "compare-turns", type: "checkbox", checked: true });
  const text = h("textarea", { id: "compare-text", rows: 3, placeholder: "A text whose perplexity is measured" });
  const go = h("button", { type: "submit", class: "button primary" }, icon("play"), "Answer");
  const stop = h("button", { type: "button", class: "button", disabled: true }, icon("stop"), "Stop");
  const score = h("button", { type: "button", class: "button" }, "Measure");
  const said = h("p", { class: "compare-said", role: "status" });
  let under = null;

  const ready = () => {
    const busy = under !== null;
    go.disabled = busy || !prompt.value.trim() || sides.some((side) => !side.model());
    score.disabled = busy || !text.value.trim() || sides.some((side) => !side.model());
    stop.disabled = !busy;
    for (const side of sides) side.busy(busy);
  };
  const sides = [];
  const changed = () => {
    said.textContent = "";
    if (sides.length === 2) ready();
  };
  sides.push(startSide("A", 0, changed));
  sides.push(startSide("B", 1, changed));

  const draw = () => sides.forEach((side, i) => side.draw(sides[1 - i].tokens()));

  /** Do `work` for both sides, one after the other or at once, and let it be stopped. */
  async function both(work, inTurn) {
    under = new AbortController();
    const { signal } = under;
    ready();
    const one = async (side) => {
      try {
        if (!signal.aborted) await work(side, signal);
      } catch (error) {
        if (error.name !== "AbortError") side.fail(error.message);
      }
    };
    if (inTurn) {
      for (const side of sides) await one(side);
    } else await Promise.all(sides.map(one));
    under = null;
    ready();
  }

  const form = h(
    "form",
    { class: "compare-form" },
    h("div", { class: "field" }, h("label", { for: "compare-prompt" }, "Prompt"), prompt),
    h(
      "div",
      { class: "row compare-row" },
      go,
      stop,
      h("label", { for: "compare-tokens" }, "Tokens"),
      limit,
      h("label", { class: "check" }, turns, "One after the other, so that each speed is its own"),
    ),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (go.disabled) return;
    said.textContent = "";
    for (const side of sides) side.forget();
    await both((side, signal) => side.ask(prompt.value, Number(limit.value), signal, draw), turns.checked);
    draw();
    const [first, second] = sides.map((side) => side.tokens());
    if (first.length && second.length) said.textContent = partingWords(first, second);
  });
  stop.addEventListener("click", () => under?.abort());
  score.addEventListener("click", () => both((side, signal) => side.score(text.value, signal), true));
  for (const area of [prompt, text]) area.addEventListener("input", ready);

  view.append(
    h(
      "div",
      { class: "compare" },
      h("h1", { class: "hidden-text" }, "Compare"),
      form,
      said,
      h("div", { class: "compare-sides" }, ...sides.map((side) => side.element)),
      h(
        "div",
        { class: "compare-form" },
        h("div", { class: "field" }, h("label", { for: "compare-text" }, "Text for the perplexity"), text),
        h("div", { class: "row" }, score),
      ),
    ),
  );
  ready();
  return { setShown() {} };
}
