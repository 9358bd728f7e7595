// The chat tab: conversations on the left, the thread in the middle, settings on the right.

import { refreshModels } from "../api/models.js";
import { h } from "../ui/dom.js";
import { makeDrawer } from "../ui/drawer.js";
import { iconButton } from "../ui/icons.js";
import { addShortcut, listShortcut } from "../ui/shortcuts.js";
import { makeChoice } from "./choice.js";
import { makeComposer } from "./composer.js";
import { titleOf } from "./conversation.js";
import { makePanel } from "./panel.js";
import { isRunning } from "./runs.js";
import { Session } from "./session.js";
import { exportButtons, makeSidebar } from "./sidebar.js";
import { loadConversations } from "./store.js";
import { makeThread } from "./thread.js";

/** @param {HTMLElement} view @param {() => void} come  shows this tab */
export function startChat(view, come) {
  loadConversations();
  const session = new Session({ shown, grew: () => thread.grow(), changed, ended });
  const current = () => session.current;
  const changedSettings = () => session.saveSettings();
  const composer = makeComposer({ send: (text) => session.send(text), stop: () => session.stop() });
  const thread = makeThread({
    edit: (index, text) => session.edit(index, text),
    again: (index) => session.again(index),
    chosen: () => session.save(),
  }, composer.write);
  const sidebar = makeSidebar({ open: (id) => go(() => session.open(id)), start, current: () => current().id });
  const choice = makeChoice(current, changedSettings);
  const panel = makePanel(current, changedSettings, exportButtons(current));
  const title = h("h1", { class: "chat-title" });
  const announce = h("div", { class: "hidden-text", role: "status", "aria-live": "polite" });
  const listButton = iconButton("list", "Conversations", () => {}, { "aria-controls": "conversations" });
  const panelButton = iconButton("sliders", "Settings (Alt+S)", () => {}, { "aria-controls": "settings" });
  const head = h("div", { class: "chat-head" }, listButton, title, choice.element, panelButton);
  const middle = h("div", { class: "chat" }, head, thread.element, composer.element, announce);
  view.append(sidebar.element, middle, panel.element);
  const list = makeDrawer(sidebar.element, "left", "(max-width: 820px)", listButton);
  const settings = makeDrawer(panel.element, "right", "(max-width: 1180px)", panelButton);

  function shown() {
    choice.update();
    panel.update();
    thread.show(current());
    changed();
  }

  function changed() {
    const { settings: chosen, id } = current();
    title.textContent = titleOf(current());
    composer.setRunning(isRunning(id));
    composer.setModes([chosen.json ? "JSON" : "", chosen.probabilities ? "probabilities" : ""].filter(Boolean));
    sidebar.update();
  }

  function ended(reply) {
    announce.textContent = reply.error ? `No reply: ${reply.error}` : "The reply is complete.";
    changed();
    refreshModels(true).catch(() => {}); // the model may have been loaded for this
  }

  function go(move) {
    come();
    list.close();
    move();
    composer.invite();
  }

  function start() {
    go(() => session.start());
  }

  const write = () => {
    come();
    composer.focus();
  };
  addShortcut({ keys: ["/"], words: "Write a message", key: "/", run: write });
  listShortcut(["Enter"], "Send the message");
  addShortcut({ keys: ["Esc"], words: "Stop the reply", key: "Escape", run: () => session.stop() });
  addShortcut({ keys: ["Alt", "R"], words: "Regenerate the last reply", code: "KeyR", run: () => session.again() });
  addShortcut({ keys: ["Alt", "N"], words: "New conversation", code: "KeyN", run: start });
  addShortcut({ keys: ["Alt", "S"], words: "Settings", code: "KeyS", run: settings.toggle });
  shown();
  return { setShown: (visible) => visible && thread.grow() };
}
