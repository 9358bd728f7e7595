// How alike every pair of texts is, as a canvas of coloured cells. Arrow keys walk the cells; a table says the same.

import { h } from "../ui/dom.js";
import { inkOn, mix, pageColour, rgb } from "../ui/paint.js";

const LABEL_PX = 150;
const TABLE_TEXTS = 60;
const ARROWS = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };

/**
 * @param {string[]} texts
 * @param {Float64Array[]} matrix  cosines [n][n]
 */
export function heatmap(texts, matrix) {
  const n = texts.length;
  const canvas = h("canvas", {
    tabindex: 0,
    role: "application",
    "aria-roledescription": "heat map",
    "aria-label": `Similarity of ${n} texts. Arrow keys read the cells.`,
    "aria-describedby": "heat-readout",
  });
  const readout = h(
    "p",
    { id: "heat-readout", class: "readout", role: "status" },
    "Point at a cell, or walk with the arrow keys.",
  );
  const box = h("div", { class: "heat-box" }, canvas);
  const range = rangeOf(matrix);
  let at = null;
  let cell = 0;
  let left = 0;

  function draw() {
    const width = box.clientWidth;
    if (!width) return;
    left = Math.min(LABEL_PX, Math.round(width * 0.3));
    cell = Math.max(Math.min((width - left) / n, 56), 3);
    const height = Math.round(cell * n) + 20;
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    paint(context, { texts, matrix, range, cell, left, at });
  }

  function move(row, column) {
    at = [Math.min(Math.max(row, 0), n - 1), Math.min(Math.max(column, 0), n - 1)];
    readout.replaceChildren(
      h("strong", { class: "numbers" }, matrix[at[0]][at[1]].toFixed(3)),
      ` ${at[0] + 1}. ${texts[at[0]]}`,
      h("span", { class: "versus" }, " and "),
      `${at[1] + 1}. ${texts[at[1]]}`,
    );
    draw();
  }
  canvas.addEventListener("keydown", (event) => {
    const step = ARROWS[event.key];
    if (!step) return;
    event.preventDefault();
    move((at?.[0] ?? 0) + (at ? step[0] : 0), (at?.[1] ?? 0) + (at ? step[1] : 0));
  });
  canvas.addEventListener("pointermove", (event) => {
    const row = Math.floor((event.offsetY - 20) / cell);
    const column = Math.floor((event.offsetX - left) / cell);
    if (row >= 0 && row < n && column >= 0 && column < n && (row !== at?.[0] || column !== at?.[1])) move(row, column);
  });
  new ResizeObserver(draw).observe(box);
  addEventListener("weft-theme", function themed() {
    if (box.isConnected) draw();
    else removeEventListener("weft-theme", themed);
  });
  return h("div", { class: "heat" }, box, legend(range), readout, table(texts, matrix));
}

/** Where the colours start and end, in tenths: a text is like itself, so the diagonal does not count. */
function rangeOf(matrix) {
  const others = matrix.flatMap((row, i) => [...row].filter((_, j) => j !== i));
  const low = Math.floor(others.reduce((a, b) => Math.min(a, b)) * 10) / 10;
  const high = Math.ceil(others.reduce((a, b) => Math.max(a, b)) * 10) / 10;
  return [low, Math.max(high, low + 0.1)];
}

function paint(context, { texts, matrix, range: [low, high], cell, left, at }) {
  const [empty, full, ink, faint] = ["--surface", "--accent", "--ink", "--faint"].map(pageColour);
  const gap = cell > 12 ? 1 : 0;
  const font = getComputedStyle(document.body).fontFamily;
  context.textBaseline = "middle";
  matrix.forEach((row, i) => {
    const y = 20 + i * cell;
    row.forEach((value, j) => {
      const colour = mix(empty, full, Math.min(Math.max((value - low) / (high - low), 0), 1) * 0.94 + 0.06);
      context.fillStyle = rgb(colour);
      context.fillRect(left + j * cell, y, cell - gap, cell - gap);
      if (cell >= 34) {
        context.fillStyle = inkOn(colour);
        context.font = `11px ${font}`;
        context.textAlign = "center";
        context.fillText(value.toFixed(2), left + (j + 0.5) * cell, y + cell / 2);
      }
    });
    if (cell >= 11) {
      context.font = `12px ${font}`;
      context.fillStyle = rgb(at?.[0] === i ? ink : faint);
      context.textAlign = "right";
      context.fillText(fitted(context, `${i + 1}  ${texts[i]}`, left - 10), left - 8, y + cell / 2);
      context.fillStyle = rgb(at?.[1] === i ? ink : faint);
      context.textAlign = "center";
      context.fillText(String(i + 1), left + (i + 0.5) * cell, 10);
    }
  });
  if (at) {
    context.strokeStyle = rgb(ink);
    context.lineWidth = 2;
    context.strokeRect(left + at[1] * cell, 20 + at[0] * cell, cell - gap, cell - gap);
  }
}

function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let short = text.slice(0, 40);
  while (short.length > 1 && context.measureText(`${short}…`).width > width) short = short.slice(0, -1);
  return `${short.trimEnd()}…`;
}

function legend([low, high]) {
  const ramp = h("span", { class: "heat-ramp" });
  return h(
    "div",
    { class: "heat-legend numbers" },
    h("span", {}, low.toFixed(1)),
    ramp,
    h("span", {}, high.toFixed(1)),
  );
}

function table(texts, matrix) {
  if (texts.length > TABLE_TEXTS) {
    return h("p", { class: "hint" }, `The table is there for up to ${TABLE_TEXTS} texts.`);
  }
  const head = h(
    "tr",
    {},
    h("td", {}),
    ...texts.map((text, i) => h("th", { scope: "col", title: text }, String(i + 1))),
  );
  const rows = texts.map((text, i) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, `${i + 1}. ${text}`),
      ...[...matrix[i]].map((value) => h("td", {}, value.toFixed(2))),
    )
  );
  const whole = h(
    "table",
    {},
    h("caption", { class: "hidden-text" }, "Cosine similarity of every pair of texts"),
    h("thead", {}, head),
    h("tbody", {}, ...rows),
  );
  return h(
    "details",
    { class: "as-table" },
    h("summary", {}, "As a table"),
    h("div", { class: "table-box numbers", tabindex: 0, role: "region", "aria-label": "Similarities" }, whole),
  );
}
