// Modal dialogs, made when asked for and gone when closed. The browser traps the focus and returns it.

import { freshId, h } from "./dom.js";

const CANCEL = { label: "Cancel", value: "" };

/**
 * Open a dialog and wait for its answer: the value of the button that closed it, or null.
 * @param {string} title
 * @param {Node[]} body
 * @param {{label: string, value: string, kind?: string}[]} buttons  the last one is the default
 * @param {string} [kind]  a class of the dialog
 * @returns {Promise<string|null>}
 */
export function openDialog(title, body, buttons, kind = "") {
  const heading = freshId("dialog");
  const dialog = h("dialog", { "aria-labelledby": heading, class: kind });
  const form = h("form", { method: "dialog" }); // Enter in a field closes it with the last button's value
  const foot = h("div", { class: "dialog-foot" });
  buttons.forEach(({ label, value, kind = "" }, i) => {
    const attributes = { type: i === buttons.length - 1 ? "submit" : "button", class: `button ${kind}` };
    const button = h("button", attributes, label);
    if (attributes.type === "button") button.addEventListener("click", () => dialog.close(value));
    foot.append(button);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    dialog.close(buttons.at(-1).value);
  });
  form.append(h("h2", { id: heading }, title), ...body, foot);
  dialog.append(form);
  document.body.append(dialog);
  return new Promise((resolve) => {
    let cancelled = false;
    dialog.addEventListener("cancel", () => {
      cancelled = true;
    });
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close("");
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(cancelled || dialog.returnValue === "" ? null : dialog.returnValue);
    });
    dialog.showModal();
  });
}

/** Ask for one line of text; null when the dialog was left. */
export async function askText(title, words, { label, value = "", type = "text", action = "Save" }) {
  const id = freshId("ask");
  const input = h("input", {
    id,
    type,
    value,
    required: true,
    autofocus: true,
    autocomplete: "off",
    spellcheck: "false",
  });
  const body = [words ? h("p", {}, words) : null, h("div", { class: "field" }, h("label", { for: id }, label), input)]
    .filter(Boolean);
  const answer = await openDialog(title, body, [CANCEL, { label: action, value: "ok", kind: "primary" }]);
  return answer === "ok" ? input.value : null;
}

/** Ask before something is lost. */
export async function confirmDanger(title, words, action) {
  const answer = await openDialog(title, [h("p", {}, words)], [CANCEL, { label: action, value: "ok", kind: "danger" }]);
  return answer === "ok";
}
