// The training tab: rows and settings on the left, the runs and the chosen one on the right.

import { getJson } from "../api/client.js";
import { h } from "../ui/dom.js";
import { icon, weave } from "../ui/icons.js";
import { whole } from "../ui/numbers.js";
import { trainingForm } from "./form.js";
import { runCard, STATES } from "./run.js";

const EVERY_MS = 1000;
const IDLE_MS = 5000;
const ACTIVE = ["running", "evaluating"];

/**
 * @param {HTMLElement} view
 * @param {{chat: (name: string) => void}} actions
 */
export function startTraining(view, actions) {
  const list = h("ul", { class: "runs", "aria-label": "Runs" });
  const detail = h("div", { class: "run-detail" });
  const problem = h("div", { class: "notice bad", role: "alert", hidden: true });
  const off = h(
    "div",
    { class: "notice", hidden: true },
    icon("warning"),
    h(
      "div",
      {},
      h("strong", {}, "This server does not train"),
      "Start it with ",
      h("code", {}, "--training-dir FOLDER"),
      ", where runs and adapters are kept.",
    ),
  );
  const form = trainingForm((run) => {
    choose(run.name);
    ask();
  });
  const body = h(
    "div",
    { class: "training" },
    h("h1", { class: "hidden-text" }, "Training"),
    h("div", { class: "training-side" }, off, form),
    h("div", { class: "training-main" }, problem, list, detail),
  );
  view.append(body);
  let chosen = "";
  let card = null;
  let runs = [];
  let timer = 0;
  let shown = false;
  let asking = false;

  function choose(name) {
    chosen = name;
    card = runCard(name, { ...actions, changed: () => ask(), deleted: () => choose("") });
    detail.replaceChildren(...(name ? [card.element] : []));
    drawList();
  }

  function drawList() {
    const focused = list.contains(document.activeElement) ? document.activeElement.dataset.run : null;
    list.replaceChildren(...runs.map((run) =>
      h(
        "li",
        {},
        h(
          "button",
          {
            type: "button",
            class: "run-choice",
            "aria-pressed": String(run.name === chosen),
            data: { run: run.name },
            on: {
              click: () => {
                choose(run.name);
                ask();
              },
            },
          },
          h("strong", {}, run.name),
          h("span", { class: "badge", data: { state: run.state } }, STATES[run.state] ?? run.state),
          h("span", { class: "hint" }, `${run.model} · ${whole(run.rows)} rows`),
        ),
      )
    ));
    if (focused) list.querySelector(`[data-run="${CSS.escape(focused)}"]`)?.focus();
    if (!runs.length && !chosen) detail.replaceChildren(nothing());
  }

  async function ask() {
    clearTimeout(timer);
    if (!shown || document.hidden || asking) return;
    asking = true;
    let wait = IDLE_MS;
    try {
      const { enabled, runs: found } = await getJson("v1/training/runs");
      off.hidden = enabled;
      form.hidden = !enabled;
      runs = found;
      if (chosen && !runs.some((run) => run.name === chosen)) choose("");
      if (!chosen && runs.length) choose(runs[0].name);
      drawList();
      if (chosen) await card.refresh();
      if (runs.some((run) => ACTIVE.includes(run.state))) wait = EVERY_MS;
      problem.hidden = true;
    } catch (error) {
      problem.hidden = false;
      problem.replaceChildren(icon("warning"), h("div", {}, error.message));
    }
    asking = false;
    timer = setTimeout(ask, wait);
  }

  document.addEventListener("visibilitychange", ask);
  return {
    setShown(next) {
      shown = next;
      ask();
    },
  };
}

function nothing() {
  return h(
    "div",
    { class: "empty" },
    weave(5, 8),
    h("h2", {}, "Teach a model"),
    h(
      "p",
      {},
      "Paste rows with questions and the answers you want, and press Train. You see the loss fall, compare the adapter with its base on rows that it never saw, and chat with it.",
    ),
  );
}
