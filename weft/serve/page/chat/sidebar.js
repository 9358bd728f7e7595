// The conversations that are kept: open, rename, delete, bring in and take out.

import { askText, confirmDanger } from "../ui/dialog.js";
import { h } from "../ui/dom.js";
import { chooseFile, fileName, saveFile } from "../ui/files.js";
import { icon, iconButton } from "../ui/icons.js";
import { toast } from "../ui/toast.js";
import { makeConversation, readConversation, titleOf, toMarkdown } from "./conversation.js";
import { isRunning, stopRun } from "./runs.js";
import { conversation as find, conversations, forget, keep, onStore } from "./store.js";

const MAX_IMPORT_BYTES = 20_000_000;

/** @param {{open: (id: string) => void, start: () => void, current: () => string}} actions */
export function makeSidebar({ open, start, current }) {
  const list = h("ul", { class: "conversations", "aria-label": "Conversations" });
  const head = h(
    "div",
    { class: "side-head" },
    h("h2", {}, "Conversations"),
    h(
      "span",
      { class: "row" },
      iconButton("upload", "Import a conversation", () => importFile(open)),
      iconButton("plus", "New conversation (Alt+N)", start, { id: "new-conversation" }),
      iconButton("close", "Close", () => {}, { class: "close" }),
    ),
  );
  const element = h(
    "aside",
    { class: "side conversations-side", id: "conversations", "aria-label": "Conversations" },
    head,
    h("div", { class: "side-body" }, list),
  );

  function row(one) {
    const chosen = one.id === current();
    const title = titleOf(one);
    const main = h(
      "button",
      {
        type: "button",
        class: "conversation",
        "aria-current": chosen ? "true" : null,
        title,
        on: { click: () => open(one.id) },
      },
      isRunning(one.id) ? h("span", { class: "dot", role: "img", "aria-label": "writing" }) : null,
      h("span", { class: "conversation-title" }, title),
    );
    return h(
      "li",
      { class: chosen ? "chosen" : null },
      main,
      iconButton("edit", `Rename ${title}`, () => rename(one), { class: "small" }),
      iconButton("bin", `Delete ${title}`, () => remove(one, start, current), { class: "small" }),
    );
  }

  function update() {
    const all = conversations().filter((one) => one.messages.length);
    const focused = list.contains(document.activeElement) ? nameOf(document.activeElement) : null;
    list.replaceChildren(...(all.length ? all.map(row) : [h("li", { class: "none" }, "Nothing kept yet.")]));
    if (focused === null) return;
    const buttons = [...list.querySelectorAll("button")];
    (buttons.find((button) => nameOf(button) === focused) ?? buttons[0])?.focus();
  }
  onStore(update);
  return { element, update };
}

const nameOf = (button) => button.getAttribute("aria-label") ?? button.textContent;

async function rename(one) {
  const title = await askText("Rename the conversation", "", { label: "Title", value: titleOf(one) });
  if (title === null) return;
  one.title = title.trim().slice(0, 80);
  keep(one);
}

async function remove(one, start, current) {
  const words = `“${titleOf(one)}” is kept only in this browser.`;
  if (!(await confirmDanger("Delete this conversation?", words, "Delete"))) return;
  stopRun(one.id);
  forget(one.id);
  if (one.id === current()) start();
  toast("Deleted.", { label: "Undo", run: () => keep(one) });
}

async function importFile(open) {
  const text = await chooseFile(".json,application/json", MAX_IMPORT_BYTES);
  if (text === null) return;
  let one = null;
  try {
    const raw = JSON.parse(text);
    one = readConversation(Array.isArray(raw) ? { messages: raw } : raw);
  } catch { /* said below */ }
  if (!one || !one.messages.length) {
    toast("That file holds no conversation.");
    return;
  }
  // A conversation that is here already stays as it is.
  if (find(one.id)) one.id = makeConversation().id;
  keep(one);
  open(one.id);
  toast(`Imported “${titleOf(one)}”.`);
}

export function exportButtons(current) {
  const save = (suffix, type, write) => () =>
    saveFile(`${fileName(titleOf(current()))}.${suffix}`, type, write(current()));
  const button = (label, click) =>
    h("button", { type: "button", class: "button small", on: { click } }, icon("download"), label);
  return h(
    "div",
    { class: "row" },
    button("JSON", save("json", "application/json", (one) => JSON.stringify(one, null, 1))),
    button("Markdown", save("md", "text/markdown", toMarkdown)),
  );
}
