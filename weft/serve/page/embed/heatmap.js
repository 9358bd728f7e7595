// How alike every pair of texts is, as a canvas of coloured cells. Arrow keys walk the cells; a table says the same.

import { h } from "../ui/dom.js";
import { inkOn, mix, pageColour, rgb } from "../ui/paint.js";

const HEAD_PX = 20; // the numbers of the columns
const LABEL_PX = 150; // the texts before the rows, at most
const LABELLED_PX = 11; // the smallest cell that has a label
const VALUE_PX = 34; // the smallest cell that shows its number
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
  const cells = document.createElement("canvas"); // everything but the cell that is chosen
  let at = null;
  let place = { cell: 1, left: 0 };

  function paintAll() {
    const width = box.clientWidth;
    if (!width) return;
    place = placeFor(width, n);
    const height = Math.round(place.cell * n) + HEAD_PX;
    const ratio = devicePixelRatio || 1;
    for (const each of [canvas, cells]) {
      each.width = Math.round(width * ratio);
      each.height = Math.round(height * ratio);
      each.getContext("2d").scale(ratio, ratio);
    }
    canvas.style.height = `${height}px`;
    paintCells(cells.getContext("2d"), matrix, range, place);
    paintLabels(cells.getContext("2d"), texts, place, "--faint", texts.keys(), texts.keys());
    draw();
  }

  function draw() {
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.drawImage(cells, 0, 0, canvas.clientWidth, canvas.clientHeight);
    if (!at) return;
    const { cell, left } = place;
    paintLabels(context, texts, place, "--ink", [at[0]], [at[1]]);
    context.strokeStyle = rgb(pageColour("--ink"));
    context.lineWidth = 2;
    context.strokeRect(left + at[1] * cell, HEAD_PX + at[0] * cell, cell - 1, cell - 1);
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
    const row = Math.floor((event.offsetY - HEAD_PX) / place.cell);
    const column = Math.floor((event.offsetX - place.left) / place.cell);
    const inside = row >= 0 && row < n && column >= 0 && column < n;
    if (inside && (row !== at?.[0] || column !== at?.[1])) move(row, column);
  });
  new ResizeObserver(paintAll).observe(box);
  addEventListener("weft-theme", function themed() {
    if (box.isConnected) paintAll();
    else removeEventListener("weft-theme", themed);
  });
  return h("div", { class: "heat" }, box, legend(range), readout, table(texts, matrix));
}

/** The size of a cell and the width of the labels; cells too small for a label have none. */
function placeFor(width, n) {
  const left = Math.min(LABEL_PX, Math.round(width * 0.3));
  const cell = Math.min((width - left) / n, 56);
  return cell >= LABELLED_PX ? { cell, left } : { cell: width / n, left: 0 };
}

/** Where the colours start and end, in tenths: a text is like itself, so the diagonal does not count. */
function rangeOf(matrix) {
  const others = matrix.flatMap((row, i) => [...row].filter((_, j) => j !== i));
  const low = Math.floor(others.reduce((a, b) => Math.min(a, b)) * 10) / 10;
  const high = Math.ceil(others.reduce((a, b) => Math.max(a, b)) * 10) / 10;
  return [low, Math.max(high, low + 0.1)];
}

function paintCells(context, matrix, [low, high], { cell, left }) {
  const [empty, full] = ["--surface", "--accent"].map(pageColour);
  const gap = cell > 12 ? 1 : 0;
  setFont(context, 11);
  context.textAlign = "center";
  matrix.forEach((row, i) =>
    row.forEach((value, j) => {
      const share = Math.min(Math.max((value - low) / (high - low), 0), 1);
      const colour = mix(empty, full, 0.06 + 0.94 * share);
      const [x, y] = [left + j * cell, HEAD_PX + i * cell];
      context.fillStyle = rgb(colour);
      context.fillRect(x, y, cell - gap, cell - gap);
      if (cell < VALUE_PX) return;
      context.fillStyle = inkOn(colour);
      context.fillText(value.toFixed(2), x + cell / 2, y + cell / 2);
    })
  );
}

/** Texts before their rows and numbers over their columns. */
function paintLabels(context, texts, { cell, left }, colour, rows, columns) {
  if (!left) return;
  setFont(context, 12);
  context.fillStyle = rgb(pageColour(colour));
  context.textAlign = "right";
  for (const i of rows) {
    context.fillText(fitted(context, `${i + 1}  ${texts[i]}`, left - 10), left - 8, HEAD_PX + (i + 0.5) * cell);
  }
  context.textAlign = "center";
  for (const i of columns) context.fillText(String(i + 1), left + (i + 0.5) * cell, HEAD_PX / 2);
}

function setFont(context, size) {
  context.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  context.textBaseline = "middle";
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
