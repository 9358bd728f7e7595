// The chat tab: conversations on the left, the thread in the middle, settings on the right.

import { onModels, refreshModels } from "../api/models.js";
import { h } from "../ui/dom.js";
import { makeDrawer } from "../ui/drawer.js";
import { iconButton } from "../ui/icons.js";
import { addShortcut, listShortcut } from "../ui/shortcuts.js";
import { makeChoice } from "./choice.js";
import { makeComposer } from "./composer.js";
import { titleOf } from "./conversation.js";
import { makePanel } from "./panel.js";
import { toolsOf } from "./request.js";
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
  const composer = makeComposer({
    send: (text, files) => session.send(text, files),
    stop: () => session.stop(),
    sendNext: () => session.sendNext(),
    unqueue: (index) => session.unqueue(index),
  }, current);
  const thread = makeThread({
    edit: (index, text) => session.edit(index, text),
    again: (index) => session.again(index),
    chosen: () => session.save(),
    goOn: () => session.goOn(),
    answer: (results) => session.answerCalls(results),
    drop: () => session.dropOldest(),
    bringBack: () => session.bringBack(),
    canGoOn: () => !current().settings.json, // a grammar would begin again in the middle of the text
  }, composer.write);
  const sidebar = makeSidebar({ open: (id) => go(() => session.open(id)), start, current: () => current().id });
  const choice = makeChoice(current, () => {
    panel.update();
    changedSettings();
  });
  const panel = makePanel(current, changedSettings, exportButtons(current));
  const title = h("h1", { class: "chat-title" });
  const announce = h("div", { class: "hidden-text", role: "status", "aria-live": "polite" });
  const listButton = iconButton("list", "Conversations", () => {}, { "aria-controls": "conversations" });
  const panelButton = iconButton("sliders", "Settings (Alt+S)", () => {}, { "aria-controls": "settings" });
  const head = h("div", { class: "chat-head" }, listButton, title, choice.element, panelButton);
  const middle = h("div", { class: "chat" }, head, thread.element, composer.element, announce);
  view.append(sidebar.element, middle, panel.element);
  composer.listen(middle);
  const list = makeDrawer(sidebar.element, "left", "(max-width: 820px)", listButton);
  const settings = makeDrawer(panel.element, "right", "(max-width: 1180px)", panelButton);

  function shown() {
    choice.update();
    panel.update();
    changed(); // first, since messages that wait take room from the thread
    thread.show(current());
  }

  function changed() {
    const { settings: chosen, id, queue } = current();
    title.textContent = titleOf(current());
    composer.setRunning(isRunning(id));
    composer.setQueue(queue);
    const tools = toolsOf(current()).length;
    composer.setModes(
      [chosen.json ? "JSON" : "", tools ? "tools" : "", chosen.probabilities ? "probabilities" : ""].filter(Boolean),
    );
    composer.meter.update();
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
  onModels(() => composer.meter.update());
  session.resume();
  return {
    setShown: (visible) => visible && thread.grow(),
    /** Talk to this model from now on. */
    use(name) {
      Object.assign(current(), { model: name, adapter: "" });
      choice.update();
      panel.update();
      changedSettings();
      go(() => {});
    },
  };
}
