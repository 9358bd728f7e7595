// Texts as points in the plane in which their vectors differ most. One tab stop; arrow keys go to the next point.

import { h, s } from "../ui/dom.js";
import { ranked } from "./maths.js";

const PAD = 26;
const LINE_PX = 14;
const LABEL_PX = 150; // where a label is broken into lines
const LINES = 3;
const FONT_PX = 11.5;

/**
 * @param {string[]} texts
 * @param {Float64Array[]} matrix
 * @param {ReturnType<import("./maths.js").principalPlane>} plane
 * @param {number[]} groups  the group of each text, which gives its colour
 */
export function pointMap(texts, matrix, plane, groups) {
  const readout = h("p", { class: "readout", role: "status" }, "Point at a text to see its neighbours.");
  const box = h("div", { class: "map-box" });
  let query = null;
  let at = 0;

  function tell(i) {
    at = i;
    const [first, second] = ranked([...matrix[i]].map((value, j) => (j === i ? -2 : value)));
    const near = [first, second].filter((j) => j !== undefined && j !== i).map((j) =>
      `${texts[j]} (${matrix[i][j].toFixed(2)})`
    );
    readout.replaceChildren(
      h("strong", {}, texts[i]),
      near.length ? h("span", { class: "versus" }, " nearest: ") : "",
      near.join("; "),
    );
  }

  function draw() {
    const width = box.clientWidth;
    if (!width) return;
    const height = Math.round(Math.min(Math.max(width * 0.8, 260), 520));
    const focused = box.contains(document.activeElement);
    const all = query ? [...plane.points, query.point] : plane.points;
    const scale = fit(all, width, height);
    const spots = plane.points.map(scale);
    const labels = placeLabels(spots, texts, width, height, query && scale(query.point));
    const svg = s("svg", {
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      role: "group",
      "aria-label": "Map of the texts, arrow keys move between them",
    });
    svg.append(
      s("line", { class: "axis", x1: 0, x2: width, y1: scale([0, 0])[1], y2: scale([0, 0])[1] }),
      s("line", { class: "axis", y1: 0, y2: height, x1: scale([0, 0])[0], x2: scale([0, 0])[0] }),
    );
    svg.append(...spots.map((spot, i) => point(spot, labels[i], i)));
    if (query) svg.append(queryMark(scale(query.point), query.text));
    svg.addEventListener("keydown", walk);
    box.replaceChildren(svg);
    if (focused) svg.querySelector('[tabindex="0"]')?.focus();
  }

  function point([x, y], label, i) {
    const lines = label?.lines.map((line, k) => s("tspan", { x: label.x, dy: k ? LINE_PX : 0 }, line));
    const words = label && s("text", { class: "map-label", x: label.x, y: label.y, "text-anchor": label.anchor }, ...lines);
    const show = () => tell(i);
    return s(
      "g",
      {
        class: "point",
        tabindex: i === at ? 0 : -1,
        role: "img",
        "aria-label": texts[i],
        data: { at: i },
        on: { focus: show, pointerenter: show },
      },
      s("title", {}, texts[i]),
      s("circle", { class: "reach", cx: x, cy: y, r: 12 }),
      s("circle", { class: `spot group-${groups[i] + 1}`, cx: x, cy: y, r: 5.5 }),
      words,
    );
  }

  function walk(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const points = [...box.querySelectorAll(".point")];
    points[at].setAttribute("tabindex", "-1");
    at = (at + step + points.length) % points.length;
    points[at].setAttribute("tabindex", "0");
    points[at].focus();
  }

  new ResizeObserver(draw).observe(box);
  return {
    element: h("div", { class: "map" }, box, readout),
    setQuery(text, point) {
      query = text ? { text, point } : null;
      draw();
    },
  };
}

/** From the plane to pixels, with the same scale on both axes, so that distances mean something. */
function fit(points, width, height) {
  const xs = [0, ...points.map((point) => point[0])];
  const ys = [0, ...points.map((point) => point[1])];
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const unit = Math.min((width - 2 * PAD) / (right - left || 1), (height - 2 * PAD) / (high - low || 1));
  return ([x, y]) => [width / 2 + (x - (left + right) / 2) * unit, height / 2 - (y - (low + high) / 2) * unit];
}

/** A place for each label that covers no other and lies inside the map, or none. */
function placeLabels(spots, texts, width, height, query) {
  const measure = measuring();
  const taken = [...spots, ...(query ? [query] : [])].map(([x, y]) => [x - 7, y - 7, x + 7, y + 7]);
  return spots.map(([x, y], i) => {
    const lines = broken(texts[i], measure);
    const wide = Math.max(...lines.map(measure)) + 2;
    const tall = lines.length * LINE_PX;
    const middle = y + 4 - (tall - LINE_PX) / 2;
    const tries = [
      { x: x + 9, y: middle, anchor: "start", left: x + 8 },
      { x: x - 9, y: middle, anchor: "end", left: x - 9 - wide },
      { x, y: y - 11 - (tall - LINE_PX), anchor: "middle", left: x - wide / 2 },
      { x, y: y + 20, anchor: "middle", left: x - wide / 2 },
      { x: x + 6, y: y - 9 - (tall - LINE_PX), anchor: "start", left: x + 5 },
      { x: x - 6, y: y - 9 - (tall - LINE_PX), anchor: "end", left: x - 6 - wide },
      { x: x + 6, y: y + 18, anchor: "start", left: x + 5 },
      { x: x - 6, y: y + 18, anchor: "end", left: x - 6 - wide },
    ].map((one) => ({ ...one, box: [one.left, one.y - 11, one.left + wide, one.y - 11 + tall] }));
    const inside = ([a, b, c, d]) => a >= 0 && b >= 0 && c <= width && d <= height;
    const found = tries.find(({ box }) => inside(box) && !taken.some((other) => overlaps(box, other)));
    if (!found) return null;
    taken.push(found.box);
    return { ...found, lines };
  });
}

/** How wide a text is in the map's font, in pixels. */
function measuring() {
  const context = document.createElement("canvas").getContext("2d");
  context.font = `${FONT_PX}px ${getComputedStyle(document.body).fontFamily}`;
  return (text) => context.measureText(text).width;
}

/** The words of a text in lines; only a text that needs more than LINES is shortened. */
function broken(text, measure) {
  const lines = [""];
  for (const word of text.split(/\s+/)) {
    const longer = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
    if (measure(longer) <= LABEL_PX || !lines.at(-1)) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  const shown = lines.slice(0, LINES).map((line) => shortened(line, measure));
  if (lines.length > LINES) shown[LINES - 1] = `${shown[LINES - 1]}…`;
  return shown;
}

/** A word that is wider than a line by itself, such as an address. */
function shortened(line, measure) {
  if (measure(line) <= LABEL_PX) return line;
  let end = line.length;
  while (end > 1 && measure(`${line.slice(0, end)}…`) > LABEL_PX) end -= 1;
  return `${line.slice(0, end)}…`;
}

function overlaps(a, b) {
  return a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
}

function queryMark([x, y], text) {
  return s(
    "g",
    { class: "query-mark", role: "img", "aria-label": `Search: ${text}` },
    s("title", {}, text),
    s("path", { d: `M${x} ${y - 8}l8 8-8 8-8-8z` }),
  );
}
