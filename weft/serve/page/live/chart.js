// A line chart of the last minutes, drawn as SVG: areas, a grid of three lines, and the values under the pointer.

import { h, s } from "../ui/dom.js";
import { roundUp } from "../ui/numbers.js";

const HEIGHT = 132;
const TOP = 8;
const FOOT = 20;
// How far back a chart reaches, and its marks: as little as holds all samples.
const SPANS = [[30, "30 s ago", "15 s"], [60, "1 min ago", "30 s"], [120, "2 min ago", "1 min"]];
export const SPAN_S = 120;
const GAP_S = 6;

/**
 * @typedef {{time: number} & Record<string, number>} Sample  time in seconds
 * @param {{title: string, series: {name: string, label: string}[], format: (value: number) => string, ceiling?: (samples: Sample[]) => number}} options
 *   the first series is drawn in the accent; `ceiling` gives the top of the axis where the data does not
 */
export function lineChart({ title, series, format, ceiling }) {
  const box = h("div", { class: "chart-box" });
  const now = h("div", { class: "chart-now numbers" });
  const note = h("div", { class: "chart-note" });
  const element = h("section", { class: "card chart" }, h("h2", {}, title), now, note, box);
  let samples = [];
  let pointer = null;

  function draw() {
    const width = box.clientWidth;
    if (!width) return;
    const last = samples.at(-1)?.time ?? 0;
    const most = Math.max(0, ...samples.flatMap((sample) => series.map(({ name }) => sample[name])));
    const top = ceiling?.(samples) || roundUp(most);
    const span = SPANS.find(([seconds]) => last - (samples[0]?.time ?? 0) <= seconds) ?? SPANS.at(-1);
    const x = (time) => width * (1 - (last - time) / span[0]);
    const y = (value) => TOP + (HEIGHT - TOP - FOOT) * (1 - Math.min(value / top, 1));
    const svg = s("svg", {
      width,
      height: HEIGHT,
      viewBox: `0 0 ${width} ${HEIGHT}`,
      role: "img",
      "aria-label": summary(title, series, samples, format),
    });
    svg.append(...grid(width, top, y, format, span));
    [...series].reverse().forEach((each, i) => {
      const rank = series.length - 1 - i;
      for (const run of runs(samples)) svg.append(...curve(run, each.name, x, y, rank));
    });
    if (pointer !== null && samples.length) {
      svg.append(...marker(nearest(samples, last - (1 - pointer / width) * span[0]), series, x, y, width, format));
    }
    box.replaceChildren(svg);
  }
  box.addEventListener("pointermove", (event) => {
    pointer = event.clientX - box.getBoundingClientRect().left;
    draw();
  });
  box.addEventListener("pointerleave", () => {
    pointer = null;
    draw();
  });
  new ResizeObserver(draw).observe(box);
  return {
    element,
    /** @param {Sample[]} next @param {string} value @param {(Node|string)[]} words */
    update(next, value, words) {
      samples = next;
      now.textContent = value;
      note.replaceChildren(...words);
      draw();
    },
  };
}

/** Stretches without a gap, such as the time that the tab was hidden. */
function runs(samples) {
  const found = [];
  samples.forEach((sample, i) => {
    if (i === 0 || sample.time - samples[i - 1].time > GAP_S) found.push([]);
    found.at(-1).push(sample);
  });
  return found;
}

function curve(run, name, x, y, rank) {
  const points = run.map((sample) => `${x(sample.time).toFixed(1)} ${y(sample[name]).toFixed(1)}`);
  const line = `M${points.join("L")}`;
  const area = `${line}L${x(run.at(-1).time).toFixed(1)} ${y(0)}L${x(run[0].time).toFixed(1)} ${y(0)}Z`;
  return [rank === 0 ? s("path", { class: "area", d: area }) : null, s("path", { class: `curve s${rank}`, d: line })]
    .filter(Boolean);
}

function grid(width, top, y, format, [, start, middle]) {
  const lines = [0, 0.5, 1].flatMap((part) => [
    s("line", { class: "grid", x1: 0, x2: width, y1: y(top * part), y2: y(top * part) }),
    part ? s("text", { class: "tick", x: 0, y: y(top * part) + 12 }, format(top * part)) : null,
  ]);
  const times = [["start", 0, start], ["middle", width / 2, middle], ["end", width, "now"]];
  return [
    ...lines.filter(Boolean),
    ...times.map(([anchor, at, words]) =>
      s("text", { class: "tick", x: at, y: HEIGHT - 4, "text-anchor": anchor }, words)
    ),
  ];
}

function nearest(samples, time) {
  return samples.reduce((best, sample) => (Math.abs(sample.time - time) < Math.abs(best.time - time) ? sample : best));
}

function marker(sample, series, x, y, width, format) {
  const at = x(sample.time);
  const value = ({ name, label }) => format(sample[name]) + (series.length > 1 ? ` ${label}` : "");
  const right = at > width / 2;
  return [
    s("line", { class: "cross", x1: at, x2: at, y1: TOP, y2: HEIGHT - FOOT }),
    ...series.map(({ name }, i) => s("circle", { class: `bead s${i}`, cx: at, cy: y(sample[name]), r: 3.5 })),
    s(
      "text",
      { class: "mark-text", x: at + (right ? -8 : 8), y: TOP + 10, "text-anchor": right ? "end" : "start" },
      series.map(value).join(", "),
    ),
  ];
}

function summary(title, series, samples, format) {
  if (!samples.length) return `${title}: no data yet`;
  const parts = series.map(({ name, label }) => {
    const values = samples.map((sample) => sample[name]);
    return `${label} ${format(values.at(-1))} now, ${format(Math.max(...values))} at most`;
  });
  return `${title} in the last two minutes: ${parts.join("; ")}`;
}
