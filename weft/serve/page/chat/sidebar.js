// The conversations that are kept: search, open, rename, delete, import and export.

import { askText, confirmDanger } from "../ui/dialog.js";
import { groupOf, longTime, shortTime } from "../ui/dates.js";
import { h } from "../ui/dom.js";
import { chooseFiles, fileName, saveFile } from "../ui/files.js";
import { icon, iconButton } from "../ui/icons.js";
import { toast } from "../ui/toast.js";
import { contentOf, makeConversation, titleOf } from "./conversation.js";
import { isRunning, stopRun } from "./runs.js";
import { conversation as find, conversations, forget, keep, onStore } from "./store.js";
import { readFileText, toMarkdown } from "./transfer.js";

const MAX_IMPORT_BYTES = 200_000_000;
const AROUND = 40; // letters before and after what was found

/** @param {{open: (id: string) => void, start: () => void, current: () => string}} actions */
export function makeSidebar({ open, start, current }) {
  const list = h("div", { class: "conversations" });
  const search = h("input", {
    type: "search",
    id: "conversation-search",
    placeholder: "Search conversations",
    "aria-label": "Search conversations",
  });
  const found = h("p", { class: "hidden-text", role: "status" });
  const head = h(
    "div",
    { class: "side-head" },
    h("h2", {}, "Conversations"),
    h(
      "span",
      { class: "row" },
      iconButton("upload", "Import conversations", () => importFiles(open)),
      iconButton("download", "Export all conversations", exportAll),
      iconButton("plus", "New conversation (Alt+N)", start, { id: "new-conversation" }),
      iconButton("close", "Close", () => {}, { class: "close" }),
    ),
  );
  const box = h("div", { class: "search-box" }, icon("search"), search);
  const element = h(
    "section",
    { class: "side conversations-side", id: "conversations", "aria-label": "Conversations" },
    head,
    box,
    found,
    h("div", { class: "side-body" }, list),
  );

  function row({ one, excerpt }) {
    const chosen = one.id === current();
    const title = titleOf(one);
    const main = h(
      "button",
      {
        type: "button",
        class: "conversation",
        "aria-current": chosen ? "true" : null,
        title: `${title}\n${longTime(one.updated)}`,
        on: { click: () => open(one.id) },
      },
      isRunning(one.id) ? h("span", { class: "dot", role: "img", "aria-label": "writing" }) : null,
      h("span", { class: "conversation-title" }, title),
      h("time", { class: "conversation-time numbers", datetime: new Date(one.updated).toISOString() }, shortTime(one.updated)),
      excerpt && h("span", { class: "conversation-excerpt" }, ...excerpt),
    );
    return h(
      "li",
      { class: chosen ? "chosen" : null },
      main,
      iconButton("edit", `Rename ${title}`, () => rename(one), { class: "small" }),
      iconButton("bin", `Delete ${title}`, () => remove(one, start, current), { class: "small" }),
    );
  }

  /** Lists by date, each under its heading. */
  function groups(rows) {
    const made = new Map();
    for (const item of rows) {
      const name = groupOf(item.one.updated);
      made.set(name, [...(made.get(name) ?? []), item]);
    }
    return [...made].flatMap(([name, items]) => [
      h("h3", { class: "date" }, name),
      h("ul", { "aria-label": name }, ...items.map(row)),
    ]);
  }

  function update() {
    const words = search.value.trim().toLowerCase();
    const all = conversations().filter((one) => one.messages.length);
    const rows = words ? all.map((one) => match(one, words)).filter(Boolean) : all.map((one) => ({ one, excerpt: null }));
    box.hidden = all.length === 0;
    found.textContent = words ? `${rows.length} of ${all.length} conversations found` : "";
    const focused = list.contains(document.activeElement) ? nameOf(document.activeElement) : null;
    const none = words ? `Nothing found for “${search.value.trim()}”.` : "No conversations yet.";
    list.replaceChildren(...(rows.length ? groups(rows) : [h("p", { class: "none" }, none)]));
    if (focused === null) return;
    const buttons = [...list.querySelectorAll("button")];
    (buttons.find((button) => nameOf(button) === focused) ?? buttons[0])?.focus();
  }
  search.addEventListener("input", update);
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !search.value) return;
    event.preventDefault();
    search.value = "";
    update();
  });
  onStore(update);
  return { element, update };
}

const nameOf = (button) =>
  button.getAttribute("aria-label") ?? button.querySelector(".conversation-title")?.textContent ?? button.textContent;

/** A conversation that has the words in its title or a message, with the place where they stand; null for others. */
function match(one, words) {
  if (titleOf(one).toLowerCase().includes(words)) return { one, excerpt: null };
  for (const message of one.messages) {
    const text = contentOf(message);
    const at = text.toLowerCase().indexOf(words);
    if (at < 0) continue;
    const [from, to] = [Math.max(0, at - AROUND), at + words.length + AROUND];
    const marked = h("mark", {}, text.slice(at, at + words.length));
    return { one, excerpt: [from ? "…" : "", text.slice(from, at), marked, text.slice(at + words.length, to)] };
  }
  return null;
}

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
  toast("Conversation deleted.", { label: "Undo", run: () => keep(one) });
}

async function importFiles(open) {
  const texts = await chooseFiles(".json,application/json", MAX_IMPORT_BYTES);
  if (texts === null) return;
  const found = texts.flatMap(({ name, text }) => {
    try {
      return readFileText(text);
    } catch {
      toast(`${name} is not JSON.`);
      return [];
    }
  });
  if (!found.length) {
    toast("No conversation found in that file. Exports of this page, ChatGPT and Open WebUI can be imported.");
    return;
  }
  for (const one of found) {
    // A conversation that is here already stays as it is.
    if (find(one.id)) one.id = makeConversation().id;
    keep(one);
  }
  open(found[0].id);
  toast(found.length === 1 ? `Imported “${titleOf(found[0])}”.` : `Imported ${found.length} conversations.`);
}

function exportAll() {
  const all = conversations().filter((one) => one.messages.length);
  if (all.length) saveFile("conversations.json", "application/json", JSON.stringify(all, null, 1));
  else toast("There is no conversation to export.");
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
