// The live tab: what the server does now and did in the last two minutes. It asks once a second, only while it is shown.

import { getJson } from "../api/client.js";
import { takeModels } from "../api/models.js";
import { h } from "../ui/dom.js";
import { icon } from "../ui/icons.js";
import { bytes, roundUp, whole } from "../ui/numbers.js";
import { lineChart, SPAN_S } from "./chart.js";
import { modelsTable, requestsTable } from "./tables.js";

const EVERY_MS = 1000;
const AFTER_ERROR_MS = 3000;

const CHARTS = {
  speed: {
    title: "Tokens per second",
    series: [{ name: "speed", label: "tokens/s" }],
    format: (value) => (value < 10 ? value.toFixed(1) : whole(value)),
  },
  requests: {
    title: "Requests",
    series: [{ name: "running", label: "running" }, { name: "waiting", label: "waiting" }],
    format: (value) => (Number.isInteger(value) ? whole(value) : value.toFixed(1)),
    ceiling: (samples) =>
      Math.max(4, 2 * Math.ceil(Math.max(0, ...samples.flatMap((sample) => [sample.running, sample.waiting])) / 2)),
  },
  cache: {
    title: "KV cache pages",
    series: [{ name: "used", label: "used" }, { name: "shared", label: "cached" }],
    format: whole,
    ceiling: (samples) =>
      Math.min(
        roundUp(1.2 * Math.max(8, ...samples.flatMap(({ used, shared }) => [used, shared]))),
        samples.at(-1)?.pages || Infinity,
      ),
  },
  memory: { title: "Memory", series: [{ name: "rss", label: "resident" }], format: bytes },
};

/** @param {HTMLElement} view */
export function startLive(view) {
  const charts = Object.fromEntries(Object.entries(CHARTS).map(([name, options]) => [name, lineChart(options)]));
  const pause = h("button", { type: "button", class: "button small", "aria-pressed": "false" }, icon("pause"), "Pause");
  const problem = h("div", { class: "notice bad", role: "alert", hidden: true });
  const requests = requestsTable();
  const models = modelsTable();
  view.append(
    h(
      "div",
      { class: "live" },
      h(
        "div",
        { class: "live-head" },
        h("h1", {}, "Live"),
        h("span", { class: "hint" }, "The last two minutes, updated every second"),
        pause,
      ),
      problem,
      h("div", { class: "charts" }, ...Object.values(charts).map((chart) => chart.element)),
      requests.element,
      models.element,
    ),
  );
  let samples = [];
  let timer = 0;
  let shown = false;
  let paused = false;
  let asking = false;

  /** @param {boolean} [quiet]  a key that was refused once is not asked for every second */
  async function ask(quiet = true) {
    clearTimeout(timer);
    if (!shown || paused || document.hidden || asking) return;
    asking = true;
    let wait = EVERY_MS;
    try {
      take(await getJson("weft/live", { quiet }));
      problem.hidden = true;
    } catch (error) {
      wait = AFTER_ERROR_MS;
      problem.hidden = false;
      problem.replaceChildren(icon("warning"), h("div", {}, h("strong", {}, "No data"), error.message));
    }
    asking = false;
    timer = setTimeout(ask, wait);
  }

  function take(live) {
    takeModels(live);
    const sample = sampleOf(live);
    samples = [...samples.filter((old) => sample.time - old.time <= SPAN_S), sample];
    const { hits = 0, misses = 0 } = live.cache ?? {};
    charts.speed.update(samples, CHARTS.speed.format(sample.speed), [
      `${whole(Math.max(...samples.map((each) => each.speed)))} at most`,
    ]);
    charts.requests.update(samples, String(sample.running), [
      key("s0"),
      "running",
      key("s1"),
      `${sample.waiting} waiting`,
    ]);
    const hit = hits + misses
      ? `${((100 * hits) / (hits + misses)).toFixed(0)} % of prompt tokens from the cache`
      : "no prompts yet";
    charts.cache.update(samples, sample.pages ? `${((100 * sample.used) / sample.pages).toFixed(0)} %` : "–", [
      key("s0"),
      `${whole(sample.used)} of ${whole(sample.pages)}`,
      key("s1"),
      `${whole(sample.shared)} cached`,
      h("span", {}, hit),
    ]);
    charts.memory.update(samples, bytes(sample.rss), ["of this process"]);
    requests.update(live.requests ?? []);
    models.update(live.models ?? []);
  }

  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.replaceChildren(icon(paused ? "play" : "pause"), paused ? "Resume" : "Pause");
    ask();
  });
  document.addEventListener("visibilitychange", () => ask());
  return {
    setShown(next) {
      shown = next;
      ask(false);
    },
  };
}

const key = (name) => h("i", { class: `key ${name}` });

function sampleOf(live) {
  const count = (state) => (live.requests ?? []).filter((request) => request.state === state).length;
  const cache = live.cache ?? {};
  return {
    time: performance.now() / 1000,
    speed: live.tokens_per_second ?? 0,
    running: count("running"),
    waiting: Math.max(count("waiting"), live.queue ?? 0),
    pages: cache.pages ?? 0,
    used: cache.used ?? 0,
    shared: cache.shared ?? 0,
    rss: live.rss ?? 0,
  };
}
