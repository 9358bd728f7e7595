// How alike every pair of texts is, as a canvas of coloured cells. Arrow keys walk the cells; a table says the same.

import { h } from "../ui/dom.js";
import { inkOn, mix, pageColour, rgb } from "../ui/paint.js";

const HEAD_PX = 20; // the numbers of the columns
const LABEL_PX = 240; // the texts before the rows, at most
const LABEL_GAP = 18; // for the stripe of the group
const LINE_PX = 14;
const LINES = 3; // of a label, at most
const FEW = 30;
const LABELLED_PX = 11; // the smallest cell that has a label
const VALUE_PX = 34; // the smallest cell that shows its number
const TABLE_TEXTS = 60;
const ARROWS = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };

/**
 * @param {string[]} texts
 * @param {Float64Array[]} matrix  cosines [n][n]
 * @param {number[]} groups  the group of each text, which gives its colour
 */
export function heatmap(texts, matrix, groups) {
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
    "Point at a cell, or move with the arrow keys.",
  );
  const box = h("div", { class: "heat-box" }, canvas);
  const range = rangeOf(matrix);
  const cells = document.createElement("canvas"); // everything but the cell that is chosen
  let at = null;
  let place = { cell: 1, row: 1, left: 0 };

  function paintAll() {
    const width = box.clientWidth;
    if (!width) return;
    place = placeFor(width, texts, canvas.getContext("2d"));
    const height = Math.round(place.row * n) + HEAD_PX;
    Object.assign(canvas.dataset, place); // for those who look at single cells
    const ratio = devicePixelRatio || 1;
    for (const each of [canvas, cells]) {
      each.width = Math.round(width * ratio);
      each.height = Math.round(height * ratio);
      each.getContext("2d").scale(ratio, ratio);
    }
    canvas.style.height = `${height}px`;
    paintCells(cells.getContext("2d"), matrix, range, place);
    paintLabels(cells.getContext("2d"), texts, place, "--faint", texts.keys(), texts.keys());
    paintGroups(cells.getContext("2d"), groups, place);
    draw();
  }

  function draw() {
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.drawImage(cells, 0, 0, canvas.clientWidth, canvas.clientHeight);
    if (!at) return;
    const { cell, row, left } = place;
    paintLabels(context, texts, place, "--ink", [at[0]], [at[1]]);
    context.strokeStyle = rgb(pageColour("--ink"));
    context.lineWidth = 2;
    context.strokeRect(left + at[1] * cell, HEAD_PX + at[0] * row, cell - 1, row - 1);
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
    const row = Math.floor((event.offsetY - HEAD_PX) / place.row);
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

/**
 * The width and height of a cell and the width of the labels; cells too small for a label have none. Rows of few texts
 * are as high as their labels need, so that these are not cut.
 */
function placeFor(width, texts, context) {
  const n = texts.length;
  const left = Math.min(LABEL_PX, Math.round(width * 0.36));
  const cell = Math.min((width - left) / n, 56);
  if (cell < LABELLED_PX) return { cell: width / n, row: width / n, left: 0 };
  if (n > FEW) return { cell, row: cell, left };
  setFont(context, 12);
  const lines = Math.max(...texts.map((text, i) => linesOf(context, `${i + 1}  ${text}`, left - LABEL_GAP, LINES).length));
  return { cell, row: Math.max(cell, lines * LINE_PX + 4), left };
}

/** Where the colours start and end, in tenths: a text is like itself, so the diagonal does not count. */
function rangeOf(matrix) {
  const others = matrix.flatMap((row, i) => [...row].filter((_, j) => j !== i));
  const low = Math.floor(others.reduce((a, b) => Math.min(a, b)) * 10) / 10;
  const high = Math.ceil(others.reduce((a, b) => Math.max(a, b)) * 10) / 10;
  return [low, Math.max(high, low + 0.1)];
}

function paintCells(context, matrix, [low, high], { cell, row: tall, left }) {
  const [empty, full] = ["--surface", "--accent"].map(pageColour);
  const gap = cell > 12 ? 1 : 0;
  setFont(context, 11);
  context.textAlign = "center";
  matrix.forEach((row, i) =>
    row.forEach((value, j) => {
      const share = Math.min(Math.max((value - low) / (high - low), 0), 1);
      const colour = mix(empty, full, 0.06 + 0.94 * share);
      const [x, y] = [left + j * cell, HEAD_PX + i * tall];
      context.fillStyle = rgb(colour);
      context.fillRect(x, y, cell - gap, tall - gap);
      if (cell < VALUE_PX) return;
      context.fillStyle = inkOn(colour);
      context.fillText(value.toFixed(2), x + cell / 2, y + tall / 2);
    })
  );
}

/** Texts before their rows and numbers over their columns. */
function paintLabels(context, texts, { cell, row, left }, colour, rows, columns) {
  if (!left) return;
  setFont(context, 12);
  context.fillStyle = rgb(pageColour(colour));
  context.textAlign = "right";
  for (const i of rows) {
    const lines = linesOf(context, `${i + 1}  ${texts[i]}`, left - LABEL_GAP, Math.max(1, Math.floor(row / LINE_PX)));
    const middle = HEAD_PX + (i + 0.5) * row - ((lines.length - 1) * LINE_PX) / 2;
    lines.forEach((line, k) => context.fillText(line, left - 16, middle + k * LINE_PX));
  }
  context.textAlign = "center";
  for (const i of columns) context.fillText(String(i + 1), left + (i + 0.5) * cell, HEAD_PX / 2);
}

function setFont(context, size) {
  context.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  context.textBaseline = "middle";
}

/** A stripe in the colour of its group beside each row. */
function paintGroups(context, groups, { row, left }) {
  if (!left || new Set(groups).size < 2) return;
  groups.forEach((group, i) => {
    context.fillStyle = rgb(pageColour(`--group-${group + 1}`));
    context.fillRect(left - 8, HEAD_PX + i * row, 4, row - 1);
  });
}

/** The text in at most `most` lines; the last one is shortened where that is not enough. */
function linesOf(context, text, width, most) {
  const words = text.split(/(?<=\S) +/);
  const lines = [];
  while (words.length && lines.length < most - 1) {
    let line = words.shift();
    while (words.length && context.measureText(`${line} ${words[0]}`).width <= width) line += ` ${words.shift()}`;
    lines.push(fitted(context, line, width));
  }
  return words.length ? [...lines, fitted(context, words.join(" "), width)] : lines;
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
    return h("p", { class: "hint" }, `The table is shown for up to ${TABLE_TEXTS} texts.`);
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
