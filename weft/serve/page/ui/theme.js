// Light, dark, or as the system says. Loaded on its own and first, so that the page never flashes in the wrong colours.

import { recall, remember } from "./memory.js";

const KEY = "weft.theme";
const ORDER = ["system", "light", "dark"];

export function currentTheme() {
  const kept = recall(KEY);
  return ORDER.includes(kept) ? kept : "system";
}

/** Show a theme and remember it. Canvas drawings listen for `weft-theme`, since they cannot follow by CSS. */
export function setTheme(name) {
  remember(KEY, name === "system" ? null : name);
  apply(name);
}

export function nextTheme() {
  const next = ORDER[(ORDER.indexOf(currentTheme()) + 1) % ORDER.length];
  setTheme(next);
  return next;
}

function apply(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  dispatchEvent(new CustomEvent("weft-theme"));
}

apply(currentTheme());
matchMedia("(prefers-color-scheme: dark)").addEventListener(
  "change",
  () => dispatchEvent(new CustomEvent("weft-theme")),
);
