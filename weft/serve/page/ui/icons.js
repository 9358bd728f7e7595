// Icons on a grid of 24, drawn with one stroke, and the weave that stands for weft.

import { h, s } from "./dom.js";

const PATHS = {
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M5.5 11.5 12 5l6.5 6.5",
  stop: "M7 7h10v10H7z",
  again: "M4.5 12a7.5 7.5 0 0 1 13-5.1L20 9.4M20 4.5v4.9h-4.9M19.5 12a7.5 7.5 0 0 1-13 5.1L4 14.6M4 19.5v-4.9h4.9",
  copy: "M9 9h10.5v10.5H9zM15 9V4.5H4.5V15H9",
  edit: "M4.5 19.5h4L19 9l-4-4L4.5 15.5zM12.5 7.5l4 4",
  bin: "M4.5 7h15M9.5 7V4.5h5V7M6.5 7l1 12.5h9l1-12.5M10.5 10.5v5.5M13.5 10.5v5.5",
  close: "M6 6l12 12M18 6 6 18",
  left: "M14.5 6l-6 6 6 6",
  right: "M9.5 6l6 6-6 6",
  down: "M12 5v14M5.5 12.5 12 19l6.5-6.5",
  list: "M4.5 6.5h15M4.5 12h15M4.5 17.5h9",
  sliders: "M4.5 7.5h8M16.5 7.5h3M4.5 16.5h3M11.5 16.5h8M14.5 5.5v4M9.5 14.5v4",
  sun:
    "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2.5v2.5M12 19v2.5M2.5 12H5M19 12h2.5M5.3 5.3 7 7M17 17l1.7 1.7M18.7 5.3 17 7M7 17l-1.7 1.7",
  moon: "M19.5 14.5A8 8 0 0 1 9.5 4.5a8 8 0 1 0 10 10z",
  system: "M4 5h16v11H4zM9 20h6M12 16v4",
  help: "M9 9.2a3 3 0 1 1 4.3 2.7c-.8.4-1.3 1-1.3 2v.4M12 17.6v.1M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z",
  warning: "M12 4 3 19.5h18zM12 10v4.5M12 17v.1",
  download: "M12 4.5v11M7 11l5 5 5-5M4.5 19.5h15",
  upload: "M12 16V5M7 9.5l5-5 5 5M4.5 19.5h15",
  tokens: "M4 7h6v4H4zM13 7h7v4h-7zM4 14h9v4H4zM16 14h4v4h-4z",
  pause: "M8.5 6v12M15.5 6v12",
  play: "M8 5.5v13l10.5-6.5z",
  check: "M5 12.5l4.5 4.5L19 7.5",
  clip: "M19 11.5l-7.2 7.2a4.6 4.6 0 0 1-6.5-6.5l7.6-7.6a3.1 3.1 0 0 1 4.4 4.4l-7.5 7.5a1.6 1.6 0 0 1-2.2-2.2l6.7-6.7",
  file: "M7 3.5h6.5L18 8v12.5H7zM13 3.5V8.5H18",
  search: "M10.5 4.5a6 6 0 1 0 0 12 6 6 0 0 0 0-12zM15 15l4.5 4.5",
  eject: "M12 5.5l6.5 8h-13zM5.5 18h13",
  chat: "M4.5 5.5h15v10.5h-8l-4 3.5V16h-3z",
  more: "M6 12v.1M12 12v.1M18 12v.1",
  folder: "M3.5 6.5h6l2 2.5h9v10h-17z",
  braces:
    "M9 4.5H8a2 2 0 0 0-2 2V10c0 1-.7 2-2 2 1.3 0 2 1 2 2v3.5a2 2 0 0 0 2 2h1M15 4.5h1a2 2 0 0 1 2 2V10c0 1 .7 2 2 2-1.3 0-2 1-2 2v3.5a2 2 0 0 1-2 2h-1",
};

/** @param {keyof PATHS} name */
export function icon(name) {
  const path = s("path", {
    d: PATHS[name],
    fill: "none",
    stroke: "currentColor",
    "stroke-width": 1.7,
    "stroke-linecap": "round",
    "stroke-linejoin": "round",
  });
  return s("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" }, path);
}

/** A button that shows only an icon; `label` is its name and its tooltip. */
export function iconButton(name, label, click, attributes = {}) {
  const { class: more = "", ...rest } = attributes;
  return h("button", {
    type: "button",
    class: `icon-button ${more}`,
    "aria-label": label,
    title: label,
    on: { click },
    ...rest,
  }, icon(name));
}

/** A plain weave of `count` threads each way: every crossing goes over, then under. */
export function weave(count, width) {
  const size = 100, pitch = size / count, gap = width * 0.34;
  const pieces = [];
  for (let i = 0; i < count; i += 1) {
    for (let j = 0; j < count; j += 1) {
      const x = (i + 0.5) * pitch, y = (j + 0.5) * pitch, over = (i + j) % 2 === 0;
      const reach = width / 2 + gap;
      const broken = over
        ? [[x, y - pitch / 2, x, y - reach], [x, y + reach, x, y + pitch / 2]]
        : [[x - pitch / 2, y, x - reach, y], [x + reach, y, x + pitch / 2, y]];
      const whole = over ? [x - pitch / 2, y, x + pitch / 2, y] : [x, y - pitch / 2, x, y + pitch / 2];
      for (const [x1, y1, x2, y2] of [whole, ...broken]) pieces.push(`M${x1} ${y1}L${x2} ${y2}`);
    }
  }
  const path = s("path", { d: pieces.join(""), stroke: "currentColor", "stroke-width": width, fill: "none" });
  return s("svg", { class: "weave", viewBox: `0 0 ${size} ${size}`, "aria-hidden": "true" }, path);
}
