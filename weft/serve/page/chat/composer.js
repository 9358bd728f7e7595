// Where one writes: a text field that grows, files, send and stop, messages that wait, and how full the context is.

import { h } from "../ui/dom.js";
import { icon, iconButton } from "../ui/icons.js";
import { blindWords } from "../api/models.js";
import { makeAttachments } from "./attachments.js";
import { makeMeter } from "./context.js";

const TOUCH = matchMedia("(pointer: coarse)");

/** Whether a key sends what was written. A telephone's keyboard has no Shift+Enter, so there Enter starts a line. */
export const sends = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && !TOUCH.matches;

/**
 * What was not sent stays. `unqueue` takes a waiting message back, `sendNext` sends the first one now.
 * @param {{send: (text: string, files: import("./conversation.js").File[]) => boolean, stop: () => void,
 *   sendNext: () => void, unqueue: (index: number) => any}} actions
 * @param {() => import("./conversation.js").Conversation} current
 */
export function makeComposer({ send, stop, sendNext, unqueue }, current) {
  const area = h("textarea", {
    id: "composer",
    rows: 1,
    placeholder: "Write a message",
    "aria-label": "Message",
    "aria-describedby": "composer-hint",
  });
  const button = h("button", { type: "submit", class: "button primary round" }, icon("send"));
  const stopButton = h("button", {
    type: "button",
    class: "button stop",
    "aria-label": "Stop",
    title: "Stop (Esc)",
    hidden: true,
    on: { click: stop },
  }, icon("stop"), "Stop");
  const modes = h("span", { class: "modes" });
  const hint = h("span", { id: "composer-hint", class: "hint" }, "Enter sends, Shift+Enter starts a line");
  const queue = h("ul", { class: "queue", "aria-label": "Messages that wait", hidden: true });
  const attachments = makeAttachments(() => {
    fit();
    meter?.update();
  }, () => blindWords(current().model));
  const draft = () => ({ content: area.value, files: attachments.files() });
  const meter = makeMeter(current, draft);
  const form = h(
    "form",
    { class: "composer" },
    queue,
    h(
      "div",
      { class: "composer-box" },
      attachments.list,
      h("div", { class: "composer-row" }, attachments.button, attachments.input, area, stopButton, button),
    ),
    h("div", { class: "composer-foot" }, meter.element, modes, hint),
  );
  let running = false;

  function fit() {
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight, 220)}px`;
    button.disabled = attachments.busy() || (area.value.trim() === "" && !attachments.files().length);
  }
  const submit = () => {
    const text = area.value.trim();
    if (button.disabled) return;
    if (!send(text, attachments.files())) return;
    area.value = "";
    attachments.set([]);
    fit();
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  area.addEventListener("input", () => {
    fit();
    meter.update();
  });
  area.addEventListener("keydown", (event) => {
    if (sends(event)) {
      event.preventDefault();
      submit();
    }
  });

  function waiting({ content, files }, i) {
    const words = content || files.map(({ name }) => name).join(", ");
    const edit = () => {
      const item = unqueue(i);
      area.value = item.content;
      attachments.set(item.files);
      fit();
      area.focus();
    };
    return h(
      "li",
      {},
      h("span", { class: "queue-words" }, words),
      iconButton("edit", "Edit the waiting message", edit, { class: "small" }),
      iconButton("close", "Remove the waiting message", () => unqueue(i), { class: "small" }),
    );
  }

  return {
    element: form,
    meter,
    listen: (place) => attachments.listen(place),
    focus: () => area.focus(),
    /** Ready for typing, but no keyboard over half of a telephone's screen. */
    invite: () => TOUCH.matches || area.focus(),
    write(text) {
      area.value = text;
      fit();
      meter.update();
      area.focus();
    },
    setRunning(next) {
      const focused = document.activeElement === stopButton;
      running = next;
      stopButton.hidden = !running;
      const label = running ? "Send when the reply is complete" : "Send";
      button.setAttribute("aria-label", label);
      button.title = running ? label : "Send (Enter)";
      area.placeholder = running ? "Write the next message" : "Write a message";
      if (focused && !running) area.focus();
      fit();
    },
    /** @param {import("./conversation.js").Conversation["queue"]} items */
    setQueue(items) {
      const now = h("button", { type: "button", class: "button small", on: { click: sendNext } }, "Send now");
      queue.hidden = !items.length;
      queue.replaceChildren(
        ...(items.length ? [h("li", { class: "queue-head" }, running ? "Sent next" : "Waiting", running ? null : now)] : []),
        ...items.map(waiting),
      );
    },
    /** @param {string[]} names */
    setModes(names) {
      modes.replaceChildren(...names.map((name) => h("span", { class: "mode" }, name)));
    },
  };
}
