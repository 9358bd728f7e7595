// One of the two models: its choice, its answer as it comes, and its figures.

import { postJson, readStream } from "../api/client.js";
import { modelNamed, modelsOf, noModels, onModels } from "../api/models.js";
import { freshId, h } from "../ui/dom.js";
import { icon } from "../ui/icons.js";
import { bytes } from "../ui/numbers.js";
import { partingOf, perplexityOf, speedOf } from "./parting.js";

const FIGURES = [["size", "Size"], ["type", "Type"], ["speed", "Tokens/s"], ["perplexity", "Perplexity"]];

/**
 * @param {string} letter
 * @param {number} preferred  which of the models is chosen first
 * @param {() => void} changed
 */
export function startSide(letter, preferred, changed) {
  const id = freshId("compared");
  const choice = h("select", { id });
  const answer = h("div", { class: "compare-answer", "aria-busy": "false" });
  const problem = h("div", { class: "notice bad", role: "alert", hidden: true });
  const cells = Object.fromEntries(FIGURES.map(([name]) => [name, h("dd", { class: "numbers" }, "–")]));
  const element = h(
    "section",
    { class: "card compare-side", "aria-label": `Model ${letter}` },
    h("div", { class: "field" }, h("label", { for: id }, `Model ${letter}`), choice),
    h(
      "dl",
      { class: "compare-figures" },
      ...FIGURES.map(([name, label]) => h("div", {}, h("dt", {}, label), cells[name])),
    ),
    answer,
    problem,
  );
  let tokens = [];
  let times = [];

  function showFacts() {
    const model = modelNamed(choice.value);
    cells.size.textContent = model?.fileBytes ? bytes(model.fileBytes) : "–";
    cells.type.textContent = model?.quantisation || "–";
  }
  function forget() {
    tokens = [];
    times = [];
    answer.replaceChildren();
    problem.hidden = true;
    cells.speed.textContent = "–";
  }
  choice.addEventListener("change", () => {
    forget();
    cells.perplexity.textContent = "–";
    showFacts();
    changed();
  });
  onModels(() => {
    const kept = choice.value;
    const names = modelsOf("generate").flatMap((model) => [model.name, ...model.adapters]);
    choice.replaceChildren(
      ...(names.length
        ? names.map((name) => h("option", { value: name }, name))
        : [h("option", { value: "" }, noModels("No model that generates text"))]),
    );
    choice.value = names.includes(kept) ? kept : names[Math.min(preferred, names.length - 1)] ?? "";
    showFacts();
    changed();
  });

  return {
    element,
    forget,
    model: () => choice.value,
    tokens: () => tokens,
    busy(is) {
      choice.disabled = is;
      answer.setAttribute("aria-busy", String(is));
    },
    /** Write the tokens so far; those from where both part are marked. */
    draw(other) {
      const at = other.length ? partingOf(tokens, other) : tokens.length;
      const same = tokens.slice(0, at).map((token) => token.text).join("");
      const own = tokens.slice(at).map((token) => token.text).join("");
      answer.replaceChildren(same, ...(own && other.length > at ? [h("mark", {}, own)] : [own]));
    },
    fail(words) {
      problem.hidden = false;
      problem.replaceChildren(icon("warning"), h("div", {}, words));
    },
    /** Stream the answer; `came` is called after each token. */
    async ask(prompt, limit, signal, came) {
      const body = {
        model: choice.value,
        messages: [{ role: "user", content: prompt }],
        temperature: 0,
        max_tokens: limit,
        logprobs: true,
        stream: true,
      };
      for await (const { chunk } of readStream("v1/chat/completions", { body, signal })) {
        const found = chunk.choices?.[0]?.logprobs?.content ?? [];
        for (const one of found) {
          tokens.push({ text: one.token, logprob: one.logprob });
          times.push(performance.now());
        }
        if (found.length) came();
      }
      const speed = speedOf(times);
      cells.speed.textContent = speed === null ? "–" : speed.toFixed(1);
    },
    /** The perplexity of a text: the model reads it and writes nothing. */
    async score(text, signal) {
      const body = { model: choice.value, prompt: text, max_tokens: 0, echo: true, logprobs: 0 };
      cells.perplexity.textContent = "…";
      problem.hidden = true;
      let found = null;
      try {
        const reply = await postJson("v1/completions", body, { signal });
        found = perplexityOf(reply.choices[0].logprobs.token_logprobs);
      } finally {
        const digits = found !== null && found < 10000 ? found.toPrecision(5) : found?.toExponential(2);
        cells.perplexity.textContent = digits ?? "–";
      }
    },
  };
}
