// Modal dialogs, made when asked for and gone when closed. The browser traps the focus and returns it.

import { freshId, h } from "./dom.js";

/**
 * Open a dialog and wait for its answer: the value of the button that closed it, or null.
 * @param {string} title
 * @param {Node[]} body
 * @param {{label: string, value: string, kind?: string}[]} buttons  the last one is the default
 * @returns {Promise<string|null>}
 */
export function openDialog(title, body, buttons) {
  const heading = freshId("dialog");
  const dialog = h("dialog", { "aria-labelledby": heading });
  // The form would be sent by Enter; form-action 'none' allows only this kind, which sends nothing.
  const form = h("form", { method: "dialog" });
  const foot = h("div", { class: "dialog-foot" });
  buttons.forEach((button, i) => {
    const last = i === buttons.length - 1;
    const close = () => dialog.close(button.value);
    foot.append(
      h("button", {
        type: last ? "submit" : "button",
        class: `button ${button.kind ?? ""}`,
        on: {
          click: last
            ? (event) => {
              event.preventDefault();
              if (form.reportValidity()) close();
            }
            : close,
        },
      }, button.label),
    );
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
  const answer = await openDialog(title, body, [{ label: "Cancel", value: "" }, {
    label: action,
    value: "ok",
    kind: "primary",
  }]);
  return answer === "ok" ? input.value : null;
}

/** Ask before something that cannot be undone. */
export async function confirmDanger(title, words, action) {
  const answer = await openDialog(title, [h("p", {}, words)], [{ label: "Cancel", value: "" }, {
    label: action,
    value: "ok",
    kind: "danger",
  }]);
  return answer === "ok";
}
