// A formula on the page: MathML, or its source as code where it is not understood.

import { h, m } from "../ui/dom.js";
import { parseMath } from "./latex.js";
import { MathError } from "./commands.js";

/** @param {string} source  without its delimiters @param {boolean} display  on a line of its own */
export function formula(source, display) {
  try {
    const nodes = parseMath(source).map(element);
    const attributes = { display: display ? "block" : "inline", alttext: source.trim() };
    const math = m("math", attributes, m("mrow", {}, ...nodes));
    return display ? h("div", { class: "formula", tabindex: 0, role: "group", "aria-label": "Formula" }, math) : math;
  } catch (error) {
    if (!(error instanceof MathError)) throw error;
    const code = h("code", { class: "math-source", title: `Shown as source: ${error.message}` }, source.trim());
    return display ? h("div", { class: "formula", tabindex: 0, role: "group", "aria-label": "Formula" }, code) : code;
  }
}

const element = (data) =>
  typeof data === "string" ? data : m(data[0], data[1], ...data.slice(2).map(element));
