// The messages of the open conversation. It stays at the end while a reply grows, unless the reader has scrolled away.

import { h, oncePerFrame } from "../ui/dom.js";
import { icon, weave } from "../ui/icons.js";
import { toolMessage } from "./calls.js";
import { assistantMessage, userMessage } from "./message.js";
import { isRunning } from "./runs.js";

const NEAR_PX = 60;
const IDEAS = [
  ["Explain", "Explain how attention works in a transformer, in five sentences."],
  ["Write", "Write a Python function that merges two sorted lists, with a test."],
  ["Compare", "Compare TCP and UDP in a table: ordering, reliability, uses."],
];

const MAKE = { user: userMessage, assistant: assistantMessage, tool: toolMessage };

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

  // What is written below may take more room, as with files and messages that wait.
  new ResizeObserver(() => follow && views.length && toEnd()).observe(scroller);

  const grow = oncePerFrame(() => {
    if (!views.length) return;
    views.at(-1)?.update(isRunning(shown.id));
    if (follow) toEnd();
    else end.hidden = false;
  });

  function show(conversation) {
    shown = conversation;
    const running = isRunning(conversation.id);
    const count = conversation.messages.length;
    views = conversation.messages.map((message, i) =>
      MAKE[message.role](message, i, actions, i === count - 1)
    );
    views.forEach((view, i) => {
      view.update(running && i === count - 1);
      view.element.classList.toggle("left-out", i < conversation.dropped);
    });
    const nodes = views.map((view) => view.element);
    if (conversation.dropped) nodes.splice(conversation.dropped, 0, leftOut(actions));
    list.replaceChildren(...(views.length ? nodes : [emptyThread(suggest)]));
    if (views.length) toEnd();
    else scroller.scrollTop = 0;
  }
  return { element, show, grow };
}

/** Stands between the messages that are left out and those that are sent. */
function leftOut(actions) {
  return h(
    "div",
    { class: "left-out-line", role: "note" },
    h("span", {}, "The model no longer reads the messages above."),
    h("button", { type: "button", class: "button quiet small", on: { click: actions.bringBack } }, "Send them again"),
  );
}

function emptyThread(suggest) {
  const ideas = IDEAS.map(([title, text]) =>
    h("button", { type: "button", class: "idea", on: { click: () => suggest(text) } }, h("strong", {}, title), text)
  );
  return h(
    "div",
    { class: "empty" },
    weave(5, 8),
    h("h2", {}, "Ask the model"),
    h(
      "p",
      {},
      "The model runs on this server. Your messages go to it and nowhere else, and are kept in this browser.",
    ),
    h("div", { class: "ideas" }, ...ideas),
  );
}
