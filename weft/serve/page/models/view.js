// The models tab: every model of the server as a card, and downloads. It asks for their states while it is shown.

import { allModels, noModels, onModels, refreshModels } from "../api/models.js";
import { h } from "../ui/dom.js";
import { bytes } from "../ui/numbers.js";
import { modelCard } from "./card.js";
import { makeDownloads } from "./download.js";

const EVERY_MS = 2000;

/**
 * @param {HTMLElement} view
 * @param {{chat: (name: string) => void, embed: () => void}} actions  go to the tab that uses a model
 */
export function startModels(view, actions) {
  const cards = h("ul", { class: "model-cards", "aria-label": "Models" });
  const memory = h("span", { class: "hint numbers", role: "status" });
  const downloads = makeDownloads();
  view.append(
    h(
      "div",
      { class: "models" },
      h("div", { class: "live-head" }, h("h1", {}, "Models"), memory),
      cards,
      downloads.element,
    ),
  );
  let timer = 0;
  let shown = false;

  function update() {
    const models = allModels();
    const at = cards.contains(document.activeElement)
      ? document.activeElement.closest("[data-model]")?.dataset.model
      : null;
    cards.replaceChildren(
      ...(models.length
        ? models.map((model) => modelCard(model, actions))
        : [h("li", { class: "nothing" }, noModels("This server has no models."))]),
    );
    const loaded = models.filter((model) => model.state === "ready");
    const sum = loaded.reduce((total, model) => total + model.bytes, 0);
    memory.textContent = models.length
      ? `${loaded.length} of ${models.length} loaded${sum ? `, ${bytes(sum)} of memory` : ""}`
      : "";
    downloads.update();
    if (at) [...cards.children].find((card) => card.dataset.model === at)?.querySelector("button")?.focus();
  }

  async function ask() {
    clearTimeout(timer);
    if (!shown || document.hidden) return;
    await refreshModels(true).catch(() => {});
    timer = setTimeout(ask, EVERY_MS);
  }
  onModels(update);
  document.addEventListener("visibilitychange", ask);
  return {
    setShown(next) {
      shown = next;
      ask();
    },
  };
}
