// The messages of the open conversation. It stays at the end while a reply grows, unless the reader has scrolled away.

import { h, oncePerFrame } from "../ui/dom.js";
import { icon, weave } from "../ui/icons.js";
import { assistantMessage, userMessage } from "./message.js";
import { isRunning } from "./runs.js";

const NEAR_PX = 60;
const IDEAS = [
  ["Explain", "Explain how attention works in a transformer, in five sentences."],
  ["Write", "Write a Python function that merges two sorted lists, with a test."],
  ["Compare", "Compare TCP and UDP in a table: ordering, reliability, uses."],
];

/** @param {import("./message.js").Actions} actions @param {(text: string) => void} suggest */
export function makeThread(actions, suggest) {
  const list = h("div", { class: "messages" });
  const end = h(
    "button",
    { type: "button", class: "button to-end", hidden: true, on: { click: () => toEnd() } },
    icon("down"),
    "Latest",
  );
  const scroller = h(
    "div",
    { class: "scroller", tabindex: 0, role: "log", "aria-live": "off", "aria-label": "Messages" },
    list,
  );
  const element = h("div", { class: "thread" }, scroller, end);
  let views = [];
  let shown = null;
  let follow = true;

  const toEnd = () => {
    follow = true;
    scroller.scrollTop = scroller.scrollHeight;
  };
  const atEnd = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR_PX;
  scroller.addEventListener("scroll", () => {
    follow = atEnd();
    end.hidden = follow;
  }, { passive: true });

  const grow = oncePerFrame(() => {
    if (!views.length) return;
    views.at(-1)?.update(isRunning(shown.id));
    if (follow) toEnd();
    else end.hidden = false;
  });

  function show(conversation) {
    shown = conversation;
    const running = isRunning(conversation.id);
    views = conversation.messages.map((message, i) =>
      (message.role === "user" ? userMessage : assistantMessage)(message, i, actions)
    );
    views.forEach((view, i) => view.update(running && i === views.length - 1));
    list.replaceChildren(...(views.length ? views.map((view) => view.element) : [emptyThread(suggest)]));
    if (views.length) toEnd();
    else scroller.scrollTop = 0;
  }
  return { element, show, grow };
}

function emptyThread(suggest) {
  const ideas = IDEAS.map(([title, text]) =>
    h("button", { type: "button", class: "idea", on: { click: () => suggest(text) } }, h("strong", {}, title), text)
  );
  return h(
    "div",
    { class: "empty" },
    weave(5, 8),
    h("h2", {}, "What shall we talk about?"),
    h(
      "p",
      {},
      "The model runs on this server. What you write goes there and nowhere else, and is kept in this browser.",
    ),
    h("div", { class: "ideas" }, ...ideas),
  );
}
