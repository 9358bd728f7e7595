// Downloading a model: its name, a bar while the bytes come, and why it failed.

import { readLines } from "../api/client.js";
import { onModels, refreshModels, serverFacts } from "../api/models.js";
import { h } from "../ui/dom.js";
import { icon, iconButton } from "../ui/icons.js";
import { bytes } from "../ui/numbers.js";

/**
 * How far a download is, out of the lines of /api/pull: each file has a digest, its size, and the bytes that are there.
 * @param {Map<string, {total: number, completed: number}>} files
 */
export function takeProgress(files, line) {
  if (typeof line.total === "number") {
    files.set(line.digest ?? line.status ?? "", { total: line.total, completed: line.completed ?? 0 });
  }
  const all = [...files.values()];
  const sum = (name) => all.reduce((total, file) => total + file[name], 0);
  return { total: sum("total"), completed: sum("completed") };
}

export function makeDownloads() {
  const input = h("input", {
    type: "text",
    id: "download-name",
    placeholder: "qwen2.5-0.5b-instruct or org/name",
    autocomplete: "off",
    spellcheck: "false",
    autocapitalize: "off",
    required: true,
  });
  const button = h("button", { type: "submit", class: "button primary" }, icon("download"), "Download");
  const form = h(
    "form",
    { class: "download-form" },
    h("label", { for: "download-name", class: "label" }, "Download a model"),
    h("div", { class: "search" }, input, button),
    h("p", { class: "hint" }, "A name of weft's catalogue (weft list shows them), or org/name of the Hugging Face hub."),
  );
  const off = h(
    "p",
    { class: "hint download-off" },
    h(
      "span",
      {},
      "This server does not download models. Start it with ",
      h("code", {}, "weft serve --allow-pull"),
      ", or run ",
      h("code", {}, "weft pull NAME"),
      " and serve that model.",
    ),
  );
  const list = h("ul", { class: "downloads", "aria-label": "Downloads" });
  const element = h("section", { class: "card download", "aria-label": "Download" }, form, off, list);

  async function download(name) {
    const bar = h("span");
    const track = h("div", { class: "progress", role: "progressbar", "aria-label": `Download of ${name}` }, bar);
    const words = h("p", { class: "hint numbers", role: "status" }, "Starting…");
    const control = new AbortController();
    const cancel = iconButton("close", `Cancel ${name}`, () => control.abort(), { class: "small" });
    const item = h("li", {}, h("div", { class: "row between" }, h("strong", {}, name), cancel), track, words);
    list.prepend(item);
    const files = new Map();
    const end = (text, state) => {
      item.dataset.state = state;
      words.textContent = text;
      track.hidden = state !== "done";
      cancel.setAttribute("aria-label", `Remove ${name}`);
      cancel.title = `Remove ${name}`;
      cancel.onclick = () => item.remove();
    };
    try {
      for await (const line of readLines("api/pull", { model: name }, { signal: control.signal })) {
        const { total, completed } = takeProgress(files, line);
        track.classList.toggle("known", total > 0);
        bar.style.width = total ? `${(100 * completed) / total}%` : "";
        if (total) track.setAttribute("aria-valuenow", String(Math.round((100 * completed) / total)));
        words.textContent = total ? `${bytes(completed)} of ${bytes(total)}` : line.status ?? "";
      }
      bar.style.width = "100%";
      end("Downloaded. It is in the list above.", "done");
    } catch (error) {
      end(control.signal.aborted ? "Cancelled." : error.message, "failed");
    }
    refreshModels(true).catch(() => {});
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const name = input.value.trim();
    if (!name) return;
    input.value = "";
    download(name);
  });
  onModels(update);
  function update() {
    form.hidden = !serverFacts().downloads;
    off.hidden = serverFacts().downloads;
  }
  return { element, update };
}
