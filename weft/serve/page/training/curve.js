// The loss of each step as a curve, and the validation loss as another one; the values under the pointer.

import { h, s } from "../ui/dom.js";
import { whole } from "../ui/numbers.js";

const HEIGHT = 220;
const TOP = 10;
const FOOT = 22;

/** @typedef {{number: number, loss: number, valid?: number, rate: number, norm: number}} Step */

export function lossCurve() {
  const element = h("div", { class: "loss-curve" });
  /** @type {Step[]} */
  let steps = [];
  let total = 1;
  let pointer = null;

  function draw() {
    const width = element.clientWidth;
    if (!width) return;
    const values = steps.flatMap((step) => [step.loss, ...(step.valid === undefined ? [] : [step.valid])]);
    const most = Math.max(1e-9, ...values);
    const x = (number) => (total > 1 ? ((number - 1) / (total - 1)) * (width - 8) + 4 : width / 2);
    const y = (value) => TOP + (HEIGHT - TOP - FOOT) * (1 - value / (1.05 * most));
    const svg = s("svg", {
      width,
      height: HEIGHT,
      viewBox: `0 0 ${width} ${HEIGHT}`,
      role: "img",
      "aria-label": words(steps, total),
    });
    svg.append(...grid(width, most, y, total));
    const measured = steps.filter((step) => step.valid !== undefined);
    if (steps.length) svg.append(...line(steps, "loss", x, y, 0));
    if (measured.length) svg.append(...line(measured, "valid", x, y, 1));
    if (pointer !== null && steps.length) svg.append(...marker(nearest(steps, pointer, x), x, y, width));
    element.replaceChildren(svg);
  }
  element.addEventListener("pointermove", (event) => {
    pointer = event.clientX - element.getBoundingClientRect().left;
    draw();
  });
  element.addEventListener("pointerleave", () => {
    pointer = null;
    draw();
  });
  new ResizeObserver(draw).observe(element);
  return {
    element,
    /** @param {Step[]} next @param {number} count  steps of the whole run */
    update(next, count) {
      steps = next;
      total = Math.max(1, count, next.length);
      draw();
    },
  };
}

function line(steps, name, x, y, rank) {
  const points = steps.map((step) => `${x(step.number).toFixed(1)} ${y(step[name]).toFixed(1)}`);
  const path = s("path", { class: `curve s${rank}`, d: `M${points.join("L")}` });
  const dots = rank || steps.length === 1
    ? steps.map((step) => s("circle", { class: `bead s${rank}`, cx: x(step.number), cy: y(step[name]), r: 3 }))
    : [];
  return [path, ...dots];
}

function grid(width, most, y, total) {
  return [
    ...[0, 0.5, 1].flatMap((part) => [
      s("line", { class: "grid", x1: 0, x2: width, y1: y(most * part), y2: y(most * part) }),
      s("text", { class: "tick", x: 0, y: y(most * part) - 4 }, shown(most * part)),
    ]),
    s("text", { class: "tick", x: 0, y: HEIGHT - 5 }, "step 1"),
    s("text", { class: "tick", x: width, y: HEIGHT - 5, "text-anchor": "end" }, whole(total)),
  ];
}

const nearest = (steps, at, x) =>
  steps.reduce((best, step) => (Math.abs(x(step.number) - at) < Math.abs(x(best.number) - at) ? step : best));

function marker(step, x, y, width) {
  const at = x(step.number);
  const right = at > width / 2;
  const valid = step.valid === undefined ? "" : `, held out ${shown(step.valid)}`;
  return [
    s("line", { class: "cross", x1: at, x2: at, y1: TOP, y2: HEIGHT - FOOT }),
    s("circle", { class: "bead s0", cx: at, cy: y(step.loss), r: 3.5 }),
    s(
      "text",
      { class: "mark-text", x: at + (right ? -8 : 8), y: TOP + 12, "text-anchor": right ? "end" : "start" },
      `step ${whole(step.number)}: ${shown(step.loss)}${valid}`,
    ),
  ];
}

/** A loss with three digits that count. */
export function shown(value) {
  if (!Number.isFinite(value)) return "–";
  return value >= 100 ? value.toFixed(0) : value >= 0.1 || value === 0 ? value.toFixed(3) : value.toPrecision(2);
}

function words(steps, total) {
  if (!steps.length) return "Loss: no step is done yet";
  const [first, last] = [steps[0], steps.at(-1)];
  const valid = steps.findLast((step) => step.valid !== undefined)?.valid;
  const held = valid === undefined ? "" : `; ${shown(valid)} on held-out rows`;
  const ends = [first, last].map((step) => `${shown(step.loss)} in step ${step.number}`);
  return `Loss: ${ends.join(", ")} of ${total}${held}`;
}
