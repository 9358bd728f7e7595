// lab: two models in this tab, each loaded when it is first needed: an embedder that searches, a decoder that chats.
import { Weft } from "./runtime/weft.js";

const $ = (id) => document.getElementById(id);
const element = (kind, text, name = "") => Object.assign(document.createElement(kind), { textContent: text, className: name });
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;
const CONTEXT = 2048, WRITING = { maxTokens: 0, temperature: 0.6, topP: 0.9 }; // 0 tokens: as many as there is room for
const EXAMPLE = `The loom holds the warp under tension.
A shuttle carries the weft from one side to the other.
Cotton was spun by hand until the eighteenth century.
Rain is expected over the hills tomorrow morning.
The recipe needs two eggs and a cup of flour.
Punched cards told the Jacquard loom which threads to lift.`;

const deviceOf = ({ kind, name, why }) => (kind === "gpu" ? `the GPU (${name})` : `the processor (${name}; ${why})`);

function say(name, text, wrong = false) {
  const state = $(`${name}-state`);
  state.textContent = text;
  state.classList.toggle("wrong", wrong);
}

// One half of the page: its model, and one piece of work at a time.
class Half {
  constructor(name, options = {}) {
    Object.assign(this, { name, options, model: null, stop: null });
    $(`${name}-stop`).addEventListener("click", () => this.stop?.abort());
  }

  async load(signal) {
    if (this.model) return this.model;
    const bar = $(`${this.name}-progress`), started = performance.now();
    bar.value = 0;
    bar.hidden = false;
    say(this.name, "Loading the model …");
    try {
      const onProgress = ({ loaded, total, cached }) => {
        bar.value = loaded / total;
        say(this.name, `${cached ? "Reading" : "Downloading"} the model: ${megabytes(loaded)} of ${megabytes(total)}`);
      };
      this.model = await Weft.load(`models/${this.name}/`, { ...this.options, device: $("device").value, onProgress, signal });
    } finally {
      bar.hidden = true;
    }
    const { info } = this.model, seconds = ((performance.now() - started) / 1000).toFixed(1);
    const kept = info.kept ? "" : " The browser has no room to keep it: it will be downloaded again next time.";
    this.loaded = `${info.name} was ready after ${seconds} s on ${deviceOf(info.device)}.${kept}`;
    say(this.name, this.loaded);
    return this.model;
  }

  // Runs `work(model, signal)`, with the stop button there; an error becomes a sentence.
  async run(work) {
    if (this.stop) return;
    this.stop = new AbortController();
    $(`${this.name}-stop`).hidden = false;
    $(`${this.name}-go`).disabled = true;
    try {
      const { signal } = this.stop;
      await work(() => this.load(signal), signal);
    } catch (error) {
      const ended = error.code === "cancelled" || error.code === "aborted";
      if (error.code === "lost") this.close("");
      say(this.name, ended ? "Stopped." : error.message, !ended);
    } finally {
      this.stop = null;
      $(`${this.name}-stop`).hidden = true;
      $(`${this.name}-go`).disabled = false;
    }
  }

  close(said) {
    this.stop?.abort();
    this.model?.close();
    this.model = null;
    say(this.name, said);
  }
}

const search = new Half("search"), chat = new Half("chat", { context: CONTEXT });

// Vectors by passage: a text that was changed in one line is embedded in one line.
const vectors = new Map();
$("text").value = EXAMPLE;
$("search").addEventListener("submit", (event) => {
  event.preventDefault();
  search.run(async (load, signal) => {
    const weft = await load(), started = performance.now();
    const passages = [...new Set($("text").value.split("\n").map((line) => line.trim()).filter(Boolean))];
    const fresh = passages.filter((passage) => !vectors.has(passage));
    const onProgress = ({ done, total }) => say("search", `${done} of ${total} passages embedded …`);
    const found = await weft.embed(fresh, { truncate: true, signal, onProgress });
    fresh.forEach((passage, i) => vectors.set(passage, found[i]));
    const [query] = await weft.embed([$("query").value], { truncate: true, signal });
    const likeness = (vector) => vector.reduce((sum, x, i) => sum + x * query[i], 0);
    const ranked = passages.map((passage) => [likeness(vectors.get(passage)), passage]).sort((a, b) => b[0] - a[0]);
    $("found").replaceChildren(...ranked.slice(0, 20).map(([score, passage]) => {
      const item = element("li", "");
      item.append(element("span", score.toFixed(3), "score"), element("span", passage));
      return item;
    }));
    const ms = Math.round(performance.now() - started);
    say("search", `${passages.length} passages searched in ${ms} ms; ${fresh.length} were new. ${search.loaded}`);
  });
});

const messages = [];
$("chat").addEventListener("submit", (event) => {
  event.preventDefault();
  if (chat.stop) return;
  const content = $("message").value, answer = element("p", "", "assistant"), asked = element("p", content, "user");
  $("message").value = "";
  $("talk").append(asked, answer);
  const follow = () => ($("talk").scrollTop = $("talk").scrollHeight);
  follow();
  chat.run(async (load, signal) => {
    messages.push({ role: "user", content });
    try {
      const weft = await load();
      say("chat", "Reading …");
      let first;
      const onToken = (text) => {
        first ??= performance.now();
        answer.textContent += text;
        follow();
      };
      const done = await weft.chat(messages, { ...WRITING, seed: Date.now(), onToken, signal });
      messages.push({ role: "assistant", content: done.text });
      const rate = (done.tokens - 1) / ((performance.now() - first) / 1000);
      const ended = { cancelled: ", stopped", length: ", cut at the limit", stop: "" }[done.finish];
      say("chat", `${done.tokens} tokens${done.tokens > 1 ? `, ${rate.toFixed(1)} a second` : ""}${ended}.`);
      $("chat-new").hidden = false;
    } catch (error) {
      // The question goes back to where it can be asked again.
      messages.pop();
      asked.remove();
      answer.remove();
      $("message").value ||= content;
      if (error.code === "too_long") error.message = "This conversation is longer than the model can read: start a new one.";
      throw error;
    }
  });
});
$("chat-new").addEventListener("click", () => {
  if (chat.stop) return;
  messages.length = 0;
  $("talk").replaceChildren();
  $("chat-new").hidden = true;
  say("chat", chat.loaded ?? "");
});

const closeAll = (said) => {
  search.close(said);
  chat.close(said);
  vectors.clear();
};
$("device").addEventListener("change", () => closeAll("The model is opened there when you need it."));
$("forget").addEventListener("click", async () => {
  closeAll("The model was deleted. It is downloaded again when you need it.");
  await Weft.forget();
});

const offline = (text) => ($("offline-state").textContent = text);
if ("serviceWorker" in navigator) {
  navigator.serviceWorker.register("offline.js").then(
    () => navigator.serviceWorker.ready,
  ).then(
    () => offline(`The page is kept for use without a network${crossOriginIsolated ? "; it is isolated" : ""}.`),
    () => offline("The browser could not keep this page: it needs a network."),
  );
} else offline("This page needs a network: browsers keep pages of https:// and of this machine only.");
