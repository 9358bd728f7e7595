// Where the page starts: the bar, the tabs, the key, and the six views.

import { configureClient } from "./api/client.js";
import { allModels, modelsOf, onModels, refreshModels } from "./api/models.js";
import { startChat } from "./chat/view.js";
import { startCompare } from "./compare/view.js";
import { startEmbed } from "./embed/view.js";
import { startLive } from "./live/view.js";
import { startModels } from "./models/view.js";
import { startTraining } from "./training/view.js";
import { askText } from "./ui/dialog.js";
import { h } from "./ui/dom.js";
import { icon, iconButton, weave } from "./ui/icons.js";
import { addShortcut, showShortcuts, startShortcuts } from "./ui/shortcuts.js";
import { startTabs } from "./ui/tabs.js";
import { currentTheme, nextTheme } from "./ui/theme.js";
import { toast } from "./ui/toast.js";

const THEMES = { system: ["system", "As the system"], light: ["sun", "Light"], dark: ["moon", "Dark"] };
const TITLES = {
  chat: "Chat",
  embeddings: "Embeddings",
  live: "Live",
  models: "Models",
  training: "Training",
  compare: "Compare",
};

function askForKey(refused) {
  const words = refused
    ? "The server refused that key."
    : "This server needs an API key. The key is kept until this tab is closed.";
  return askText("A key is needed", words, { label: "Key", type: "password", action: "Use key" });
}

const link = h("span", { class: "link-state", role: "status" }, "Connecting");
function heard(up) {
  const state = up ? "up" : "down";
  if (link.dataset.state === state) return;
  link.dataset.state = state;
  link.textContent = up ? "Connected" : "No answer";
}

function themeButton() {
  const button = iconButton("system", "", () => {
    nextTheme();
    show();
    toast(`Colours: ${THEMES[currentTheme()][1].toLowerCase()}.`);
  });
  function show() {
    const [name, words] = THEMES[currentTheme()];
    button.replaceChildren(icon(name));
    button.setAttribute("aria-label", `Theme: ${words}`);
    button.title = `Theme: ${words}`;
  }
  show();
  return button;
}

configureClient({ ask: askForKey, heard });
document.getElementById("mark").append(weave(3, 13));
document.getElementById("bar-end").append(
  link,
  themeButton(),
  iconButton("help", "Keyboard shortcuts (?)", showShortcuts, { class: "for-keys" }),
);

const box = (name) => document.getElementById(`view-${name}`);
const views = {
  chat: startChat(box("chat"), () => tabs.show("chat")),
  embeddings: startEmbed(box("embeddings")),
  live: startLive(box("live")),
  models: startModels(box("models"), { chat: (name) => views.chat.use(name), embed: () => tabs.show("embeddings") }),
  training: startTraining(box("training"), { chat: (name) => views.chat.use(name) }),
  compare: startCompare(box("compare")),
};
const tabs = startTabs((name) => {
  for (const [other, view] of Object.entries(views)) view.setShown(other === name);
  document.title = `${TITLES[name]} · weft`;
});
Object.entries(TITLES).forEach(([name, words], i) => {
  const digit = String(i + 1);
  addShortcut({ keys: ["Alt", digit], words, code: `Digit${digit}`, run: () => tabs.show(name, true) });
});
addShortcut({ keys: ["?"], words: "This list", key: "?", run: showShortcuts });
startShortcuts();

// A server that only embeds opens where it can be used.
let looked = location.hash !== "";
onModels(() => {
  if (looked || !allModels().length) return;
  looked = true;
  if (!modelsOf("generate").length && modelsOf("embed").length && tabs.current() === "chat") tabs.show("embeddings");
});
refreshModels().catch((error) => toast(error.message));
// A model that was loading may be ready when the page is looked at again.
addEventListener("focus", () => refreshModels(true).catch(() => {}));
