// Short messages under the bar, where they cover neither what one writes nor the last reply. Screen readers read them out;
// at most one action goes with each.

import { h } from "./dom.js";
import { iconButton } from "./icons.js";

const SHOWN_MS = 6000;

/** @param {string} words @param {{label: string, run: () => void}} [action] */
export function toast(words, action) {
  const box = document.getElementById("toasts");
  const item = h("div", { class: "toast" }, h("span", {}, words));
  const close = () => item.remove();
  if (action) {
    item.append(h("button", {
      type: "button",
      on: {
        click: () => {
          close();
          action.run();
        },
      },
    }, action.label));
  }
  item.append(iconButton("close", "Close the message", close, { class: "small" }));
  box.replaceChildren(item);
  let timer = setTimeout(close, SHOWN_MS);
  // Someone who reads or aims at it keeps it.
  for (const event of ["mouseenter", "focusin"]) item.addEventListener(event, () => clearTimeout(timer));
  for (const event of ["mouseleave", "focusout"]) {
    item.addEventListener(event, () => {
      timer = setTimeout(close, SHOWN_MS);
    });
  }
}
