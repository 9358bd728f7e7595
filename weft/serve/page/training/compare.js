// The adapter beside its base: figures on the held-out rows, and answers to their questions.

import { postJson } from "../api/client.js";
import { h } from "../ui/dom.js";
import { icon } from "../ui/icons.js";
import { whole } from "../ui/numbers.js";
import { shown } from "./curve.js";
import { questionOf } from "./rows.js";

const TOKENS = 64;
const part = (value) => `${(100 * value).toFixed(1)} %`;
/** Field, label, how it is written, and whether more is better. */
const FIGURES = [
  ["loss", "Loss", shown, false],
  ["perplexity", "Perplexity", (value) => (value < 1000 ? value.toPrecision(4) : value.toExponential(2)), false],
  ["accuracy", "Right tokens", part, true],
  ["exact", "Answers exactly right", whole, true],
];

/** @param {{base?: Record<string, number>, adapter?: Record<string, number>, error?: string}} evaluation */
export function evaluationTable({ base, adapter, error }) {
  if (error) return h("div", { class: "notice bad", role: "alert" }, icon("warning"), h("div", {}, error));
  const rows = FIGURES.map(([field, label, write, more]) => {
    const [before, after] = [base[field], adapter[field]];
    const better = after === before ? "" : (after > before) === more ? "better" : "worse";
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, label),
      h("td", { class: "numbers" }, write(before)),
      h(
        "td",
        { class: `numbers ${better}` },
        write(after),
        better && h("span", { class: "hidden-text" }, ` (${better})`),
      ),
    );
  });
  return card(
    "On held-out rows",
    `${whole(base.rows)} rows, ${whole(base.targets)} tokens`,
    table(["", "Base", "With the adapter"], rows),
  );
}

/** The questions of held-out rows, answered by both when asked to. */
export function answersTable(name, run, path) {
  const questions = run.samples.map(questionOf).filter(Boolean);
  if (!questions.length) return null;
  const cells = questions.map(() => [h("td", {}, "–"), h("td", {}, "–")]);
  const go = h("button", { type: "button", class: "button small" }, icon("play"), "Answer");
  const rows = questions.map(({ messages, wanted }, i) =>
    h("tr", {}, h("th", { scope: "row" }, String(messages.at(-1)?.content ?? "")), h("td", {}, wanted), ...cells[i])
  );
  go.addEventListener("click", async () => {
    go.disabled = true;
    try {
      await postJson(`${path}/load`, {});
      for (const [i, { messages }] of questions.entries()) {
        for (const [j, model] of [run.model, name].entries()) {
          cells[i][j].textContent = "…";
          cells[i][j].textContent = await answer(model, messages) || "(nothing)";
        }
      }
    } catch (error) {
      cells.flat().filter((cell) => cell.textContent === "…").forEach((cell) => {
        cell.textContent = error.message;
      });
    }
    go.disabled = false;
  });
  const head = h("span", { class: "row" }, h("span", { class: "hint" }, "Questions that it did not learn"), go);
  return { element: card("Answers", head, table(["Question", "Wanted", "Base", "With the adapter"], rows)) };
}

async function answer(model, messages) {
  const reply = await postJson("v1/chat/completions", { model, messages, temperature: 0, max_tokens: TOKENS });
  return reply.choices[0].message.content;
}

function card(title, note, body) {
  return h(
    "section",
    { class: "card" },
    h("div", { class: "card-head" }, h("h2", {}, title), h("span", { class: "hint numbers" }, note)),
    h("div", { class: "table-box", tabindex: "0", role: "region", "aria-label": title }, body),
  );
}

function table(heads, rows) {
  return h(
    "table",
    { class: "compared" },
    h("thead", {}, h("tr", {}, ...heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", {}, ...rows),
  );
}
