// One run: how far it is, its loss, how it compares with its base, and what can be done with it.

import { deleteJson, getJson, postJson } from "../api/client.js";
import { refreshModels } from "../api/models.js";
import { confirmDanger } from "../ui/dialog.js";
import { h } from "../ui/dom.js";
import { icon } from "../ui/icons.js";
import { whole } from "../ui/numbers.js";
import { toast } from "../ui/toast.js";
import { answersTable, evaluationTable } from "./compare.js";
import { lossCurve, shown } from "./curve.js";
import { askVersion, versionsCard } from "./versions.js";

export const STATES = {
  running: "Training",
  evaluating: "Evaluating",
  stopped: "Stopped",
  done: "Done",
  failed: "Failed",
};

/**
 * @param {string} name
 * @param {{chat: (name: string) => void, changed: () => void, deleted: () => void}} actions
 */
export function runCard(name, actions) {
  const path = `v1/training/runs/${encodeURIComponent(name)}`;
  const badge = h("span", { class: "badge" });
  const facts = h("p", { class: "hint numbers", role: "status" });
  const buttons = h("div", { class: "row run-actions" });
  const problem = h("pre", { class: "run-error", hidden: true });
  const progress = h("div", { class: "progress known", role: "progressbar", "aria-label": "Steps" }, h("span"));
  const curve = lossCurve();
  const loss = h(
    "section",
    { class: "card" },
    h(
      "div",
      { class: "card-head" },
      h("h2", {}, "Loss"),
      h(
        "span",
        { class: "chart-note" },
        h("i", { class: "key" }),
        "learnt rows",
        h("i", { class: "key s1" }),
        "held-out rows",
      ),
    ),
    curve.element,
  );
  const compared = h("div", { class: "run-compared" });
  const element = h(
    "div",
    { class: "run" },
    h("div", { class: "model-head" }, h("h2", {}, name), badge),
    facts,
    progress,
    buttons,
    problem,
    loss,
    compared,
  );
  let steps = [];
  let run = null;
  let answers = null;
  let versions = null;
  let drawn = "";

  const button = (label, image, click, kind = "") =>
    h("button", { type: "button", class: `button small ${kind}`, on: { click } }, icon(image), label);

  /** Send a request to a route of the run, and say what went wrong. */
  const act = (verb, done = () => {}) => async (event) => {
    event.currentTarget.disabled = true;
    try {
      done(await postJson(`${path}/${verb}`, {}));
    } catch (error) {
      toast(error.message);
    }
    drawn = "";
    actions.changed();
  };

  async function remove() {
    const sure = await confirmDanger(`Delete ${name}?`, "The adapter and its rows are removed from the server.", "Delete");
    if (!sure) return;
    try {
      await deleteJson(path);
      actions.deleted();
    } catch (error) {
      toast(error.message);
    }
    actions.changed();
  }

  async function register() {
    const given = await askVersion(name);
    if (!given) return;
    try {
      const { name: as, version } = await postJson(`${path}/register`, given);
      toast(`${as} ${version} is in the registry.`);
    } catch (error) {
      toast(error.message);
    }
    actions.changed();
  }

  function drawButtons() {
    const { state, evaluation, held_out: held, registry } = run;
    const key = `${state} ${Boolean(evaluation)} ${registry}`;
    if (key === drawn) return; // a button keeps the focus while nothing changes
    drawn = key;
    const chat = act("load", () => {
      refreshModels(true).then(() => actions.chat(name), () => {});
    });
    const shownButtons = {
      running: [button("Stop", "stop", act("stop"))],
      stopped: [button("Go on", "play", act("resume"), "primary"), button("Delete", "bin", remove, "danger")],
      failed: [button("Try again", "again", act("resume")), button("Delete", "bin", remove, "danger")],
      done: [
        held ? button("Evaluate", "check", act("evaluate"), evaluation ? "" : "primary") : null,
        button("Chat with it", "chat", chat),
        registry ? button("Register", "folder", register) : null,
        button("Delete", "bin", remove, "danger"),
      ],
    }[state] ?? [];
    buttons.replaceChildren(...shownButtons.filter(Boolean));
  }

  function draw() {
    badge.dataset.state = run.state;
    badge.textContent = STATES[run.state] ?? run.state;
    const last = steps.at(-1);
    const total = last?.steps ?? 0;
    const part = total ? (100 * steps.length) / total : 0;
    progress.hidden = run.state === "done" || run.state === "failed";
    progress.classList.toggle("known", run.state !== "evaluating" && total > 0);
    progress.setAttribute("aria-valuenow", part.toFixed(0));
    progress.firstChild.style.width = run.state === "evaluating" || !total ? "" : `${part}%`;
    const words = [run.model, `${whole(run.rows)} rows, ${whole(run.held_out)} held out`];
    if (last) words.push(`step ${whole(last.number)} of ${whole(total)}`, `loss ${shown(last.loss)}`);
    facts.textContent = words.join(" · ");
    problem.hidden = !run.error;
    problem.textContent = run.error ?? "";
    loss.hidden = !steps.length;
    curve.update(steps, total);
    drawButtons();
    const done = run.state === "done" && run.samples.length > 0;
    answers ??= done ? answersTable(name, run, path) : null;
    compared.replaceChildren(
      ...[run.evaluation ? evaluationTable(run.evaluation) : null, answers?.element, versions?.element].filter(Boolean),
    );
  }

  return {
    element,
    async refresh() {
      const found = await getJson(`${path}?after=${steps.length}`);
      // A run that goes on makes the steps again that were not saved.
      if (found.steps.length && found.steps[0].number !== steps.length + 1) steps = [];
      else steps = [...steps, ...found.steps];
      run = found;
      if (run.registered) versions ??= versionsCard(run.registered.name);
      draw();
      await versions?.refresh();
    },
  };
}
