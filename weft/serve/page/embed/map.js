// Texts as points in the plane in which their vectors differ most. One tab stop; arrow keys go to the next point.

import { h, s } from "../ui/dom.js";
import { ranked } from "./maths.js";

const PAD = 26;
const LETTER_PX = 6.1;

/**
 * @param {string[]} texts
 * @param {Float64Array[]} matrix
 * @param {ReturnType<import("./maths.js").principalPlane>} plane
 */
export function pointMap(texts, matrix, plane) {
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
    const words = label &&
      s("text", { class: "map-label", x: label.x, y: label.y, "text-anchor": label.anchor }, label.text);
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
      s("circle", { class: "spot", cx: x, cy: y, r: 5 }),
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

/** A place for each label that covers no other, or none. */
function placeLabels(spots, texts, width, height, query) {
  const taken = [...spots, ...(query ? [query] : [])].map(([x, y]) => [x - 7, y - 7, x + 7, y + 7]);
  return spots.map(([x, y], i) => {
    const text = texts[i].length > 26 ? `${texts[i].slice(0, 25).trimEnd()}…` : texts[i];
    const wide = text.length * LETTER_PX;
    const tries = [
      { x: x + 9, y: y + 4, anchor: "start", box: [x + 8, y - 7, x + 10 + wide, y + 7] },
      { x: x - 9, y: y + 4, anchor: "end", box: [x - 10 - wide, y - 7, x - 8, y + 7] },
      { x, y: y - 11, anchor: "middle", box: [x - wide / 2, y - 22, x + wide / 2, y - 8] },
      { x, y: y + 20, anchor: "middle", box: [x - wide / 2, y + 8, x + wide / 2, y + 22] },
    ];
    const inside = ([a, b, c, d]) => a >= 0 && b >= 0 && c <= width && d <= height;
    const found = tries.find(({ box }) => inside(box) && !taken.some((other) => overlaps(box, other)));
    if (!found) return null;
    taken.push(found.box);
    return { ...found, text };
  });
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
