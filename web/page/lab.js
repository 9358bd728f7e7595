// lab: two models in this tab, each loaded when it is first needed: an embedder that searches, a decoder that chats.
import { Weft } from "./runtime/weft.js";

const $ = (id) => document.getElementById(id);
const asked = new URLSearchParams(location.search);
const EXAMPLE = `The loom holds the warp under tension.
A shuttle carries the weft from one side to the other.
Cotton was spun by hand until the eighteenth century.
Rain is expected over the hills tomorrow morning.
The recipe needs two eggs and a cup of flour.
Punched cards told the Jacquard loom which threads to lift.`;

function once(name, options) {
  let loading;
  return () => {
    loading ??= load(name, options).catch((error) => {
      loading = undefined;
      throw error;
    });
    return loading;
  };
}

async function load(name, options) {
  const state = $(`${name}-state`), bar = $(`${name}-progress`), started = performance.now();
  state.textContent = "Loading the model …";
  bar.hidden = false;
  try {
    const onProgress = ({ loaded, total }) => (bar.value = loaded / total);
    const weft = await Weft.load(asked.get(name) ?? `models/${name}/`, { ...options, onProgress });
    const seconds = ((performance.now() - started) / 1000).toFixed(1);
    state.textContent = `${weft.info.name} is ready, after ${seconds} s${weft.info.kept ? "; it is kept for next time" : ""}.`;
    return weft;
  } finally {
    bar.hidden = true;
  }
}

// Runs `work(signal)` while a stop button is there; an error becomes a sentence.
async function attempt(name, work) {
  const stop = new AbortController(), button = $(`${name}-stop`);
  button.hidden = false;
  button.onclick = () => stop.abort();
  try {
    await work(stop.signal);
  } catch (error) {
    $(`${name}-state`).textContent = error.code === "cancelled" ? "Stopped." : error.message;
  } finally {
    button.hidden = true;
  }
}

const element = (kind, text, name) => Object.assign(document.createElement(kind), { textContent: text, className: name ?? "" });

const search = once("search");
const vectors = new Map(); // by passage
$("text").value = EXAMPLE;
$("search").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt("search", async (signal) => {
    const weft = await search(), started = performance.now();
    const passages = [...new Set($("text").value.split(/\n+/).map((line) => line.trim()).filter(Boolean))];
    const fresh = passages.filter((passage) => !vectors.has(passage));
    const onProgress = ({ done, total }) => ($("search-state").textContent = `${done} of ${total} passages read …`);
    const found = await weft.embed(fresh, { truncate: true, signal, onProgress });
    fresh.forEach((passage, i) => vectors.set(passage, found[i]));
    const [query] = await weft.embed([$("query").value], { truncate: true, signal });
    const likeness = (vector) => vector.reduce((sum, x, i) => sum + x * query[i], 0);
    const ranked = passages.map((passage) => [likeness(vectors.get(passage)), passage]).sort((a, b) => b[0] - a[0]);
    $("found").replaceChildren(...ranked.slice(0, 20).map(([score, passage]) => {
      const item = element("li", "");
      item.append(element("span", score.toFixed(3), "score"), passage);
      return item;
    }));
    const ms = Math.round(performance.now() - started);
    $("search-state").textContent = `${passages.length} passages, ${fresh.length} of them new, in ${ms} ms.`;
  });
});

const chat = once("chat", { context: 2048 });
const messages = [];
$("chat").addEventListener("submit", (event) => {
  event.preventDefault();
  const content = $("message").value;
  $("message").value = "";
  messages.push({ role: "user", content });
  const answer = element("p", "", "assistant");
  $("talk").append(element("p", content, "user"), answer);
  attempt("chat", async (signal) => {
    try {
      const weft = await chat(), started = performance.now();
      const onToken = (text) => (answer.textContent += text);
      const done = await weft.chat(messages, { maxTokens: 400, temperature: 0.7, topP: 0.9, seed: Date.now(), onToken, signal });
      messages.push({ role: "assistant", content: done.text });
      const rate = done.tokens / ((performance.now() - started) / 1000);
      $("chat-state").textContent = `${done.tokens} tokens, ${rate.toFixed(1)} a second with the prompt (${done.finish}).`;
    } catch (error) {
      messages.pop();
      answer.remove();
      throw error;
    }
  });
});

if ("serviceWorker" in navigator) navigator.serviceWorker.register("offline.js").catch(() => {});
