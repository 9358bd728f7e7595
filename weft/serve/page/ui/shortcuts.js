// Keyboard shortcuts, and the dialog that lists them.

import { openDialog } from "./dialog.js";
import { h } from "./dom.js";

/** @type {{keys: string[], words: string, when: (event: KeyboardEvent) => boolean, run: () => void}[]} */
const shortcuts = [];

const isTyping = (element) =>
  element instanceof HTMLElement && (element.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName));

/**
 * Add a shortcut: a `key` on its own, which is not heard where one types, or Alt with the key at the place `code`
 * ("KeyN"; on a Mac, Alt changes the letter).
 * @param {{keys: string[], words: string, code?: string, key?: string, run: () => void}} shortcut
 */
export function addShortcut({ keys, words, code, key, run }) {
  const when = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey !== Boolean(code)) return false;
    if (code) return event.code === code;
    return event.key === key && (key === "Escape" || !isTyping(event.target));
  };
  shortcuts.push({ keys, words, when, run });
}

/** Keys that an element handles itself, listed with the others. */
export function listShortcut(keys, words) {
  shortcuts.push({ keys, words, when: () => false, run: () => {} });
}

export function startShortcuts() {
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
    const found = shortcuts.find((shortcut) => shortcut.when(event));
    if (found) {
      event.preventDefault();
      found.run();
    }
  });
}

export function showShortcuts() {
  const list = h("dl", { class: "keys" });
  for (const { keys, words } of shortcuts) {
    list.append(
      h("dt", {}, words),
      h(
        "dd",
        {},
        ...keys.map((key) => h("kbd", {}, key)),
      ),
    );
  }
  return openDialog("Keyboard", [list], [{ label: "Close", value: "ok", kind: "primary" }]);
}
