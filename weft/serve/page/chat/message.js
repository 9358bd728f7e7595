// One message of the thread: what was said, and what can be done with it.

import { h } from "../ui/dom.js";
import { copyText } from "../ui/files.js";
import { icon, iconButton } from "../ui/icons.js";
import { codeBlock, markdownView } from "../text/markdown.js";
import { shownReply } from "./conversation.js";
import { rateOf } from "./request.js";
import { tokensView } from "./tokens.js";

/**
 * @typedef {{edit: (index: number, text: string) => void, again: (index: number) => void, version: (index: number, to: number) => void}} Actions
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
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
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
  const problem = h("div", { class: "notice bad", role: "alert", hidden: true });
  const foot = h("div", { class: "message-foot" });
  const element = h("article", { class: "message assistant", "aria-label": "Assistant" }, folded, body, problem, foot);
  const view = markdownView(body);
  let tokensShown = false;

  function update(running) {
    const reply = shownReply(message);
    element.setAttribute("aria-busy", String(running));
    folded.hidden = reply.reasoning === "";
    if (thought.textContent !== reply.reasoning) thought.textContent = reply.reasoning;
    summary.textContent = running && !reply.content
      ? "Reasoning…"
      : `Reasoning, ${reply.reasoning.trim().split(/\s+/).length} words`;
    element.classList.toggle("waiting", running && !reply.content && !reply.reasoning);
    element.classList.toggle("writing", running && reply.content !== "");
    if (!tokensShown) showText(reply, running);
    problem.hidden = reply.error === "";
    if (reply.error) problem.replaceChildren(icon("warning"), h("div", {}, h("strong", {}, "No reply"), reply.error));
    foot.replaceChildren(...(running ? [stats(reply)] : footOf(reply)));
  }

  function showText(reply, running) {
    const json = running ? null : asJson(reply.content);
    if (json === null) view.update(reply.content);
    else body.replaceChildren(codeBlock(json, "json"));
  }

  function footOf(reply) {
    const tokens = iconButton("tokens", "Token probabilities", () => toggleTokens(reply), {
      class: "small",
      "aria-pressed": String(tokensShown),
    });
    return [
      reply.content ? iconButton("copy", "Copy reply", () => copyText(reply.content), { class: "small" }) : null,
      iconButton("again", "Regenerate", () => actions.again(index), { class: "small" }),
      reply.tokens.length ? tokens : null,
      message.replies.length > 1 ? versions(message, index, actions) : null,
      stats(reply),
    ].filter(Boolean);
  }

  function toggleTokens(reply) {
    tokensShown = !tokensShown;
    body.replaceChildren(...(tokensShown ? [tokensView(reply.tokens)] : []));
    if (!tokensShown) Object.assign(view, markdownView(body));
    update(false);
    foot.querySelector('[aria-label="Token probabilities"]')?.focus();
  }
  return { element, update };
}

function versions(message, index, actions) {
  const to = (step) => () => actions.version(index, message.shown + step);
  return h(
    "span",
    { class: "versions numbers" },
    iconButton("left", "Previous version", to(-1), { class: "small", disabled: message.shown === 0 }),
    `${message.shown + 1} / ${message.replies.length}`,
    iconButton("right", "Next version", to(1), {
      class: "small",
      disabled: message.shown === message.replies.length - 1,
    }),
  );
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
