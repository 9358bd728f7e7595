// The chat tab: conversations on the left, the thread in the middle, settings on the right.

import { refreshModels } from "../api/models.js";
import { h } from "../ui/dom.js";
import { makeDrawer } from "../ui/drawer.js";
import { iconButton } from "../ui/icons.js";
import { recallJson, remember } from "../ui/memory.js";
import { addShortcut, listShortcut } from "../ui/shortcuts.js";
import { toast } from "../ui/toast.js";
import { makeChoice } from "./choice.js";
import { makeComposer } from "./composer.js";
import { makeConversation, makeReply, readSettings, titleOf } from "./conversation.js";
import { makePanel } from "./panel.js";
import { parseSchema } from "./request.js";
import { isRunning, startRun, stopRun } from "./runs.js";
import { exportButtons, makeSidebar } from "./sidebar.js";
import { conversation, conversations, keep, lastOpen, loadConversations, onStore, setLastOpen } from "./store.js";
import { makeThread } from "./thread.js";

const USUAL = "weft.settings";
const SAVE_AFTER_MS = 300;

/** @param {HTMLElement} view */
export function startChat(view) {
  loadConversations();
  let current = conversation(lastOpen() ?? "") ?? conversations()[0] ?? fresh();
  const announce = h("div", { class: "hidden-text", role: "status", "aria-live": "polite" });
  const thread = makeThread({ edit, again, chosen: () => keep(current) }, (text) => composer.write(text));
  const composer = makeComposer({ send, stop: () => stopRun(current.id) });
  const sidebar = makeSidebar({ open, start, current: () => current.id });
  const choice = makeChoice(() => current, settingsChanged);
  const panel = makePanel(() => current, settingsChanged, exportButtons(() => current));
  const title = h("h1", { class: "chat-title" });
  const listButton = iconButton("list", "Conversations", () => {}, { "aria-controls": "conversations" });
  const panelButton = iconButton("sliders", "Settings (Alt+S)", () => {}, { "aria-controls": "settings" });
  const head = h("div", { class: "chat-head" }, listButton, title, choice.element, panelButton);
  sidebar.element.id = "conversations";
  view.append(
    sidebar.element,
    h("div", { class: "chat" }, head, thread.element, composer.element, announce),
    panel.element,
  );
  const list = makeDrawer(sidebar.element, {
    side: "left",
    narrow: "(max-width: 820px)",
    button: listButton,
    key: "weft.list",
  });
  const settings = makeDrawer(panel.element, {
    side: "right",
    narrow: "(max-width: 1180px)",
    button: panelButton,
    key: "weft.panel",
  });

  function fresh() {
    const usual = recallJson(USUAL, {});
    const text = (value) => (typeof value === "string" ? value : "");
    return makeConversation({
      model: text(usual.model),
      adapter: text(usual.adapter),
      system: text(usual.system),
      settings: readSettings(usual.settings),
    });
  }

  function show() {
    setLastOpen(current.id);
    choice.update();
    panel.update();
    thread.show(current);
    refresh();
  }

  /** What depends on the conversation's state but not on its text. */
  function refresh() {
    title.textContent = titleOf(current);
    composer.setRunning(isRunning(current.id));
    composer.setModes(
      [current.settings.json ? "JSON" : "", current.settings.probabilities ? "probabilities" : ""].filter(Boolean),
    );
    sidebar.update();
  }

  function open(id) {
    current = conversation(id) ?? current;
    list.close();
    show();
    composer.invite();
  }

  function start() {
    if (current.messages.length || !conversation(current.id)) current = fresh();
    keep(current);
    list.close();
    show();
    composer.invite();
  }

  let saving = 0;
  function settingsChanged() {
    refresh();
    clearTimeout(saving);
    saving = setTimeout(() => {
      const { model, adapter, system, settings: chosen } = current;
      remember(USUAL, JSON.stringify({ model, adapter, system, settings: chosen }));
      keep(current);
    }, SAVE_AFTER_MS);
  }

  function send(text) {
    if (!ready()) {
      composer.write(text);
      return;
    }
    current.messages.push({ role: "user", content: text });
    reply();
  }

  function ready() {
    const { error } = parseSchema(current.settings.schema);
    if (!current.model) toast("There is no model to talk to.");
    else if (current.settings.json && error) toast("The JSON schema does not parse; the settings say where.");
    else return !isRunning(current.id);
    return false;
  }

  /** Let the model answer the last message, or once more where an answer is the last. */
  function reply() {
    const one = current;
    const made = makeReply(one.adapter || one.model);
    const last = one.messages.at(-1);
    if (last.role === "assistant") last.shown = last.replies.push(made) - 1;
    else one.messages.push({ role: "assistant", replies: [made], shown: 0 });
    one.updated = Date.now();
    startRun(one, made, (ended) => {
      if (one === current) thread.grow();
      if (!ended) return;
      if (one === current) announce.textContent = made.error ? `No reply: ${made.error}` : "The reply is complete.";
      refresh();
      refreshModels(true).catch(() => {}); // the model may have been loaded for this
    });
    keep(one);
    show();
  }

  function edit(index, text) {
    if (!ready()) return;
    const one = current;
    const before = structuredClone(one.messages);
    one.messages.splice(index + 1);
    one.messages[index] = { role: "user", content: text };
    reply();
    offerUndo(one, before);
  }

  function again(index) {
    if (!ready()) return;
    const one = current;
    const before = structuredClone(one.messages);
    const dropped = one.messages.splice(index + 1);
    reply();
    if (dropped.length) offerUndo(one, before);
  }

  function offerUndo(one, before) {
    toast("Later messages were replaced.", {
      label: "Undo",
      run: () => {
        stopRun(one.id);
        one.messages = before;
        keep(one);
        if (one === current) show();
      },
    });
  }

  onStore(() => {
    // Another tab may have written this conversation, or removed it.
    const kept = conversation(current.id);
    if (kept && kept !== current && !isRunning(current.id)) {
      current = kept;
      show();
    }
  });
  addShortcut({ keys: ["/"], words: "Write a message", key: "/", run: composer.focus });
  listShortcut(["Enter"], "Send the message");
  addShortcut({ keys: ["Esc"], words: "Stop the reply", key: "Escape", run: () => stopRun(current.id) });
  addShortcut({
    keys: ["Alt", "R"],
    words: "Regenerate the last reply",
    code: "KeyR",
    alt: true,
    run: () => current.messages.length && again(current.messages.length - 1),
  });
  addShortcut({ keys: ["Alt", "N"], words: "New conversation", code: "KeyN", alt: true, run: start });
  addShortcut({ keys: ["Alt", "S"], words: "Settings", code: "KeyS", alt: true, run: settings.toggle });
  show();
  return { focus: composer.focus };
}
