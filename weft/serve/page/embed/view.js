// The embeddings tab: paste texts, see how alike they are, search them, and look at them on a map.

import { postJson } from "../api/client.js";
import { modelsOf, noModels, onModels, refreshModels } from "../api/models.js";
import { h } from "../ui/dom.js";
import { icon, weave } from "../ui/icons.js";
import { recall, remember } from "../ui/memory.js";
import { clusters, examples } from "./clusters.js";
import { heatmap } from "./heatmap.js";
import { pointMap } from "./map.js";
import { dot, normalised, principalPlane, ranked, similarities } from "./maths.js";
import { originOf, sourceButtons } from "./sources.js";

const TEXTS = "weft.texts";
const MODEL = "weft.embedder";
const MAX_TEXTS = 300;
const AT_ONCE = 64;
const FOUND = 10;
const EXAMPLE = [
  "The cat sleeps on the warm windowsill",
  "A kitten is curled up in the sun",
  "Dogs need a long walk every day",
  "The orchestra tuned before the concert",
  "She practised the violin sonata all week",
  "A quiet piano piece in a minor key",
  "Bake the bread at 220 degrees until golden",
  "Knead the dough and let it rise for an hour",
  "Season the soup with salt and thyme",
  "The telescope found a distant galaxy",
  "Astronomers measured the light of a dying star",
  "The moon was full above the observatory",
].join("\n");

/** @param {HTMLElement} view */
export function startEmbed(view) {
  const model = h("select", { id: "embedder" });
  const area = h("textarea", {
    id: "texts",
    rows: 12,
    spellcheck: "false",
    value: recall(TEXTS) ?? "",
    placeholder: "One text per line",
  });
  const count = h("span", { class: "hint numbers" });
  const go = h("button", { type: "submit", class: "button primary" }, "Embed");
  const example = h("button", {
    type: "button",
    class: "button quiet small",
    on: {
      click: () => {
        area.value = EXAMPLE;
        typed();
        area.focus();
      },
    },
  }, "Example");
  const sources = sourceButtons((texts) => {
    area.value = [...lines(), ...texts].slice(0, MAX_TEXTS).join("\n");
    typed();
    area.focus();
  }, MAX_TEXTS);
  const problem = h("div", { class: "notice bad", role: "alert", hidden: true });
  const results = h("div", { class: "results" });
  const form = h(
    "form",
    { class: "embed-form" },
    h("div", { class: "field" }, h("label", { for: "embedder" }, "Model"), model),
    h(
      "div",
      { class: "field" },
      h("div", { class: "row between" }, h("label", { for: "texts", class: "label" }, "Texts"), sources),
      area,
    ),
    h("div", { class: "row between" }, count, h("span", { class: "row" }, example, go)),
    problem,
  );
  const side = h("div");
  const said = h("div", { class: "hidden-text", role: "status" });
  const heading = h("h1", { class: "hidden-text" }, "Embeddings");
  view.append(h("div", { class: "embed" }, heading, h("div", { class: "embed-side" }, form, said, side), results));
  let busy = false;

  const lines = () => area.value.split("\n").map((line) => line.trim()).filter(Boolean);
  function typed() {
    const n = lines().length;
    remember(TEXTS, area.value || null);
    count.textContent = n > MAX_TEXTS ? `${n} texts, at most ${MAX_TEXTS}` : `${n} ${n === 1 ? "text" : "texts"}`;
    count.classList.toggle("wrong", n > MAX_TEXTS);
    go.disabled = busy || n < 2 || n > MAX_TEXTS || !model.value;
  }
  function complain(words) {
    problem.hidden = !words;
    problem.replaceChildren(icon("warning"), h("div", {}, words));
  }

  async function embed() {
    const texts = lines();
    const name = model.value;
    busy = true;
    go.textContent = "Embedding…";
    typed();
    complain("");
    try {
      const start = performance.now();
      const vectors = await vectorsOf(name, texts);
      show(name, texts, vectors, performance.now() - start);
    } catch (error) {
      complain(error.message);
    }
    busy = false;
    go.textContent = "Embed";
    typed();
  }

  function show(name, texts, vectors, ms) {
    const matrix = similarities(vectors);
    const plane = principalPlane(vectors);
    const groups = clusters(matrix);
    const map = pointMap(texts, matrix, plane, groups);
    const searching = search(name, texts, vectors, (text, vector) => map.setQuery(text, vector && plane.place(vector)));
    const facts = `${texts.length} texts · ${vectors[0].length} dimensions · ${ms.toFixed(0)} ms`;
    said.textContent = `The similarity of ${texts.length} texts is shown.`;
    const share = `${(plane.share * 100).toFixed(0)} % of the variance`;
    side.replaceChildren(card("Search", "", searching));
    const named = groupList(texts, matrix, groups);
    results.replaceChildren(
      card("Similarity", facts, heatmap(texts, matrix, groups)),
      card("Map", share, h("div", {}, map.element, named)),
    );
  }

  function models() {
    const known = modelsOf("embed");
    const kept = model.value || recall(MODEL);
    model.replaceChildren(
      ...(known.length
        ? known.map((each) => h("option", { value: each.name }, each.name))
        : [h("option", { value: "" }, noModels("No embedding model"))]),
    );
    if (known.some((each) => each.name === kept)) model.value = kept;
    model.disabled = !known.length;
    typed();
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!go.disabled) embed();
  });
  area.addEventListener("input", typed);
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  model.addEventListener("change", () => {
    remember(MODEL, model.value);
    typed();
  });
  results.append(
    h(
      "div",
      { class: "empty" },
      weave(5, 8),
      h("h2", {}, "Texts side by side"),
      h(
        "p",
        {},
        "Paste texts, one per line, or add files, and press Embed. You see how alike each pair is, search them by meaning, and see them on a map.",
      ),
    ),
  );
  onModels(models);
  return { setShown: (shown) => shown && refreshModels(true).catch(() => {}) };
}

/** The groups with their colours, how many texts each has, and the text that is most typical of it. */
function groupList(texts, matrix, groups) {
  const found = examples(matrix, groups);
  if (found.length < 2) return null;
  return h(
    "ul",
    { class: "groups-list", "aria-label": "Groups of texts" },
    ...found.map(({ group, count, text }) =>
      h(
        "li",
        {},
        h("i", { class: `group-dot group-${group + 1}` }),
        h("span", {}, texts[text]),
        h("span", { class: "numbers hint" }, count === 1 ? "1 text" : `${count} texts`),
      )
    ),
  );
}

function card(title, facts, body) {
  return h(
    "section",
    { class: "card" },
    h("div", { class: "card-head" }, h("h2", {}, title), h("span", { class: "hint numbers" }, facts)),
    body,
  );
}

/** Vectors of length one, in the order of the texts. */
async function vectorsOf(model, texts) {
  const vectors = [];
  for (let i = 0; i < texts.length; i += AT_ONCE) {
    const answer = await postJson("v1/embeddings", {
      model,
      input: texts.slice(i, i + AT_ONCE),
      encoding_format: "float",
    });
    const rows = [...answer.data].sort((a, b) => a.index - b.index);
    vectors.push(...rows.map((row) => normalised(row.embedding)));
  }
  return vectors;
}

/** A field that ranks the texts by how near they are to what is typed. */
function search(model, texts, vectors, found) {
  const input = h("input", {
    type: "search",
    "aria-label": "Search the texts by meaning",
    placeholder: "Search by meaning",
  });
  const button = h("button", { type: "submit", class: "button" }, "Search");
  const list = h("ol", { class: "ranking", "aria-label": "Texts, nearest first" });
  const form = h("form", { class: "search" }, input, button);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = input.value.trim();
    if (!text) {
      list.replaceChildren();
      found("", null);
      return;
    }
    try {
      const [vector] = await vectorsOf(model, [text]);
      const scores = vectors.map((other) => dot(vector, other));
      list.replaceChildren(...ranked(scores).slice(0, FOUND).map((i) => rankedRow(texts[i], scores[i])));
      found(text, vector);
    } catch (error) {
      list.replaceChildren(h("li", { class: "notice bad" }, error.message));
    }
  });
  return h("div", {}, form, list);
}

function rankedRow(text, score) {
  const bar = h("span", { class: "rank-bar" });
  bar.style.width = `${Math.max(score, 0) * 100}%`;
  return h(
    "li",
    {},
    h(
      "span",
      { class: "rank-text" },
      h("span", { class: "rank-words", title: text }, text),
      originOf(text) && h("small", { class: "rank-origin" }, originOf(text)),
    ),
    h("span", { class: "numbers" }, score.toFixed(3)),
    h("span", { class: "rank-track" }, bar),
  );
}
