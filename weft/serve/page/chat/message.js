// One message of the thread: what was said, and what can be done with it.

import { stateOf } from "../api/models.js";
import { h } from "../ui/dom.js";
import { copyText } from "../ui/files.js";
import { icon, iconButton } from "../ui/icons.js";
import { codeBlock, markdownView } from "../text/markdown.js";
import { sends } from "./composer.js";
import { shownReply } from "./conversation.js";
import { rateOf } from "./request.js";
import { tokensView } from "./tokens.js";

/**
 * What the thread does for its messages: send an edited one, write another reply, keep which reply was chosen.
 * @typedef {{edit: (index: number, text: string) => void, again: (index: number) => void, chosen: () => void}} Actions
 */

/** @param {Actions} actions */
export function userMessage(message, index, actions) {
  const bubble = h("div", { class: "bubble" }, message.content);
  const foot = h(
    "div",
    { class: "message-foot" },
    iconButton("copy", "Copy message", () => copyText(message.content), { class: "small" }),
    iconButton("edit", "Edit and send again", () => edit(element, message, index, actions), { class: "small" }),
  );
  const element = h("article", { class: "message user", "aria-label": "You" }, bubble, foot);
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
  const send = () => area.value.trim() && actions.edit(index, area.value.trim());
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
    h("span", {}, "Replies below are replaced."),
    h("button", { type: "button", class: "button small", on: { click: cancel } }, "Cancel"),
    h("button", { type: "button", class: "button primary small", on: { click: send } }, "Send"),
  );
  element.replaceChildren(area, foot);
  area.focus();
}

/** @param {Actions} actions */
export function assistantMessage(message, index, actions) {
  const thought = h("pre", { class: "thought", tabindex: 0 });
  const summary = h("summary", {}, "Reasoning");
  const folded = h("details", { class: "reasoning" }, summary, thought);
  const body = h("div", { class: "prose" });
  const calls = h("div", { class: "calls" });
  const problem = h("div", { class: "notice bad", role: "alert", hidden: true });
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
    problem.hidden = reply.error === "";
    const what = reply.content ? "Not the whole reply" : "No reply";
    if (reply.error) problem.replaceChildren(icon("warning"), h("div", {}, h("strong", {}, what), reply.error));
    foot.replaceChildren(...(running ? [reply.count ? stats(reply) : waiting(reply)] : footOf(reply)));
  }

  function showText(reply, running) {
    const json = running ? null : asJson(reply.content);
    if (json === null) view.update(reply.content);
    else body.replaceChildren(codeBlock(json, "json"));
  }

  /** The calls of tools, which nobody here answers: what the model asks for, as it asks for it. */
  function showCalls(reply, running) {
    calls.hidden = reply.calls.length === 0;
    calls.replaceChildren(...reply.calls.map(([name, text]) => {
      const shown = (running ? null : asJson(text)) ?? text;
      const inside = [h("h3", {}, name), codeBlock(shown, "json")];
      return h("section", { class: "call", "aria-label": `Call of ${name}` }, ...inside);
    }));
  }

  function footOf(reply) {
    const tokens = iconButton("tokens", "Token probabilities", () => {
      tokensShown = !tokensShown;
      again("Token probabilities");
    }, { class: "small", "aria-pressed": String(tokensShown) });
    return [
      reply.content ? iconButton("copy", "Copy reply", () => copyText(reply.content), { class: "small" }) : null,
      iconButton("again", "Regenerate", () => actions.again(index), { class: "small" }),
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
    { length: "cut at the limit", stopped: "stopped" }[reply.finish] ?? "",
  ];
  return h("span", { class: "stats numbers" }, parts.filter(Boolean).join(" · "));
}

/** An object or a list that the reply consists of, indented; null for anything else. */
function asJson(text) {
  if (!/^\s*[{[]/.test(text)) return null;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}
