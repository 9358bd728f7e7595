// One message of the thread: what was said, and what can be done with it.

import { modelNamed, stateOf } from "../api/models.js";
import { h } from "../ui/dom.js";
import { copyText } from "../ui/files.js";
import { icon, iconButton } from "../ui/icons.js";
import { whole } from "../ui/numbers.js";
import { codeBlock, markdownView } from "../text/markdown.js";
import { fileChip } from "./attachments.js";
import { asJson, callsForm, callsView } from "./calls.js";
import { sends } from "./composer.js";
import { INTERRUPTED, shownReply } from "./conversation.js";
import { rateOf } from "./request.js";
import { tokensView } from "./tokens.js";

/**
 * What the thread does for its messages: send an edited one, write another reply, keep which reply was chosen, write more
 * of the last one, answer its calls, leave out the oldest messages, and send all of them again.
 * @typedef {{edit: (index: number, text: string) => void, again: (index: number) => void, chosen: () => void,
 *   goOn: () => void, answer: (results: {name: string, content: string}[]) => void, drop: () => void,
 *   bringBack: () => void, canGoOn: () => boolean}} Actions
 */

const CUT = new Set(["stopped", "length", INTERRUPTED]);

/** @param {Actions} actions */
export function userMessage(message, index, actions) {
  const files = message.files.length
    ? h("ul", { class: "chips", "aria-label": "Attached files" }, ...message.files.map((file) => fileChip(file)))
    : null;
  const bubble = message.content ? h("div", { class: "bubble" }, message.content) : null;
  const foot = h(
    "div",
    { class: "message-foot" },
    iconButton("copy", "Copy message", () => copyText(message.content), { class: "small" }),
    iconButton("edit", "Edit and send again", () => edit(element, message, index, actions), { class: "small" }),
  );
  const element = h("article", { class: "message user", "aria-label": "You" }, files, bubble, foot);
  return { element, update() {} };
}

function edit(element, message, index, actions) {
  const before = [...element.childNodes];
  const area = h("textarea", {
    class: "edit",
    value: message.content,
    rows: Math.min(message.content.split("\n").length + 1, 12),
    "aria-label": "Edit the message",
  });
  const cancel = () => {
    element.replaceChildren(...before);
    element.querySelector('[aria-label^="Edit"]').focus();
  };
  const send = () => (area.value.trim() || message.files.length) && actions.edit(index, area.value.trim());
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.preventDefault();
      cancel();
    } else if (sends(event)) {
      event.preventDefault();
      send();
    }
  });
  const foot = h(
    "div",
    { class: "edit-foot" },
    h("span", {}, "The messages below are replaced."),
    h("button", { type: "button", class: "button small", on: { click: cancel } }, "Cancel"),
    h("button", { type: "button", class: "button primary small", on: { click: send } }, "Send"),
  );
  element.replaceChildren(area, foot);
  area.focus();
}

/** @param {Actions} actions @param {boolean} last  whether nothing follows it */
export function assistantMessage(message, index, actions, last) {
  const thought = h("pre", { class: "thought", tabindex: 0 });
  const summary = h("summary", {}, "Reasoning");
  const folded = h("details", { class: "reasoning" }, summary, thought);
  const body = h("div", { class: "prose" });
  const calls = h("div", { class: "calls" });
  const problem = h("div", { class: "notice", role: "alert", hidden: true });
  const foot = h("div", { class: "message-foot" });
  const parts = [folded, body, calls, problem, foot];
  const element = h("article", { class: "message assistant", "aria-label": "Assistant" }, ...parts);
  let view = markdownView(body);
  let tokensShown = false;

  function update(running) {
    const reply = shownReply(message);
    element.setAttribute("aria-busy", String(running));
    folded.hidden = reply.reasoning === "";
    if (thought.textContent !== reply.reasoning) thought.textContent = reply.reasoning;
    summary.textContent = running && !reply.content
      ? "Reasoning…"
      : `Reasoning, ${reply.reasoning.trim().split(/\s+/).length} words`;
    element.classList.toggle("waiting", running && !reply.content && !reply.reasoning && !reply.calls.length);
    element.classList.toggle("writing", running && reply.content !== "");
    if (tokensShown && reply.tokens.length) body.replaceChildren(tokensView(reply.tokens));
    else showText(reply, running);
    showCalls(reply, running);
    showProblem(reply);
    foot.replaceChildren(...(running ? [reply.count ? stats(reply) : waiting(reply)] : footOf(reply)));
  }

  function showText(reply, running) {
    const json = running ? null : asJson(reply.content);
    if (json === null) view.update(reply.content);
    else body.replaceChildren(codeBlock(json, "json"));
  }

  function showCalls(reply, running) {
    calls.hidden = reply.calls.length === 0;
    const open = last && !running && !reply.error && reply.calls.length;
    calls.replaceChildren(...(open ? [callsForm(reply.calls, actions.answer)] : callsView(reply.calls, running)));
  }

  /** What went wrong, and what can be done about it. */
  function showProblem(reply) {
    const interrupted = reply.finish === INTERRUPTED;
    problem.hidden = reply.error === "" && !interrupted;
    if (problem.hidden) return;
    problem.classList.toggle("bad", !interrupted);
    const button = (label, click) => h("button", { type: "button", class: "button small", on: { click } }, label);
    const context = modelNamed(reply.model)?.context;
    const reads = context ? ` ${reply.model} reads at most ${whole(context)} tokens.` : "";
    const [title, words, action] = interrupted
      ? ["Not complete", "The page was closed while this reply was written.", null]
      : reply.full
      ? [
        "The context is full",
        `The conversation has more tokens than the model can read.${reads}`,
        last ? button("Leave out the oldest messages", actions.drop) : null,
      ]
      : [reply.content ? "Not the whole reply" : "No reply", reply.error, null];
    problem.replaceChildren(icon("warning"), h("div", {}, h("strong", {}, title), words), action ?? "");
  }

  function footOf(reply) {
    const tokens = iconButton("tokens", "Token probabilities", () => {
      tokensShown = !tokensShown;
      again("Token probabilities");
    }, { class: "small", "aria-pressed": String(tokensShown) });
    return [
      reply.content ? iconButton("copy", "Copy reply", () => copyText(reply.content), { class: "small" }) : null,
      iconButton("again", "Regenerate", () => actions.again(index), { class: "small" }),
      last && (CUT.has(reply.finish) || reply.error) && !reply.full && !reply.calls.length && actions.canGoOn()
        ? h("button", { type: "button", class: "button small", on: { click: actions.goOn } }, icon("play"), "Continue")
        : null,
      reply.tokens.length ? tokens : null,
      message.replies.length > 1 ? versions() : null,
      stats(reply),
    ].filter(Boolean);
  }

  function versions() {
    const last = message.replies.length - 1;
    const step = (name, label, to) =>
      iconButton(name, label, () => {
        message.shown = to;
        actions.chosen();
        again(label);
      }, { class: "small", disabled: to < 0 || to > last });
    return h(
      "span",
      { class: "versions numbers" },
      step("left", "Previous version", message.shown - 1),
      `${message.shown + 1} / ${last + 1}`,
      step("right", "Next version", message.shown + 1),
    );
  }

  /** Show the message anew; the focus stays on the button of that name, or on another that can take it. */
  function again(label) {
    body.replaceChildren();
    view = markdownView(body);
    update(false);
    const buttons = [...foot.querySelectorAll("button:not(:disabled)")];
    (buttons.find((button) => button.getAttribute("aria-label") === label) ?? buttons.at(-1)).focus();
  }
  return { element, update };
}

function waiting(reply) {
  const state = stateOf(reply.model);
  return h("span", { class: "stats" }, ["unloaded", "loading"].includes(state) ? `loading ${reply.model}` : "");
}

function stats(reply) {
  const rate = rateOf(reply);
  const parts = [
    reply.count ? `${reply.count} tokens` : "",
    rate ? `${rate.toFixed(1)} tokens/s` : "",
    reply.first ? `first after ${reply.first.toFixed(2)} s` : "",
    { length: "cut at max tokens", stopped: "stopped" }[reply.finish] ?? "",
  ];
  return h("span", { class: "stats numbers" }, parts.filter(Boolean).join(" · "));
}
