// Where one writes: a text field that grows, send and stop, and what is switched on for the next reply.

import { h } from "../ui/dom.js";
import { icon } from "../ui/icons.js";

const TOUCH = matchMedia("(pointer: coarse)");

/** Whether a key sends what was written. A telephone's keyboard has no Shift+Enter, so there Enter starts a line. */
export const sends = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && !TOUCH.matches;

/** @param {{send: (text: string) => boolean, stop: () => void}} actions  what was not sent stays */
export function makeComposer({ send, stop }) {
  const area = h("textarea", {
    id: "composer",
    rows: 1,
    placeholder: "Write a message",
    "aria-label": "Message",
    "aria-describedby": "composer-hint",
  });
  const button = h("button", {
    type: "submit",
    class: "button primary round",
    "aria-label": "Send",
    title: "Send (Enter)",
  }, icon("send"));
  const stopButton = h("button", {
    type: "button",
    class: "button round",
    "aria-label": "Stop",
    title: "Stop (Esc)",
    hidden: true,
    on: { click: stop },
  }, icon("stop"));
  const modes = h("span", { class: "modes" });
  const hint = h("span", { id: "composer-hint", class: "hint" }, "Enter sends, Shift+Enter starts a line");
  const form = h(
    "form",
    { class: "composer" },
    h("div", { class: "composer-box" }, area, button, stopButton),
    h("div", { class: "composer-foot" }, modes, hint),
  );
  let running = false;

  const fit = () => {
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight, 220)}px`;
    button.disabled = area.value.trim() === "";
  };
  const submit = () => {
    const text = area.value.trim();
    if (!text || running) return;
    if (!send(text)) return;
    area.value = "";
    fit();
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  area.addEventListener("input", fit);
  area.addEventListener("keydown", (event) => {
    if (sends(event)) {
      event.preventDefault();
      submit();
    }
  });

  return {
    element: form,
    focus: () => area.focus(),
    /** Ready for typing, but no keyboard over half of a telephone's screen. */
    invite: () => TOUCH.matches || area.focus(),
    write(text) {
      area.value = text;
      fit();
      area.focus();
    },
    setRunning(next) {
      const focused = document.activeElement === button || document.activeElement === stopButton;
      running = next;
      button.hidden = running;
      stopButton.hidden = !running;
      if (focused) (running ? stopButton : area).focus();
      fit();
    },
    /** @param {string[]} names */
    setModes(names) {
      modes.replaceChildren(...names.map((name) => h("span", { class: "mode" }, name)));
    },
  };
}
