// Markdown on the page, also while it is still being written: blocks that did not change keep their nodes, so a selection
// or a scrolled code block survives the next token.

import { h } from "../ui/dom.js";
import { icon } from "../ui/icons.js";
import { copyText } from "../ui/files.js";
import { blocks } from "./blocks.js";
import { colour } from "./colour.js";
import { inline } from "./inline.js";
import { formula } from "./mathml.js";

/**
 * Keeps `element` showing the markdown given to `update`.
 * @param {HTMLElement} element
 */
export function markdownView(element) {
  let keys = [];
  return {
    /** @param {string} text */
    update(text) {
      const next = blocks(text);
      const nextKeys = next.map((block) => JSON.stringify(block));
      let same = 0;
      while (same < keys.length && same < nextKeys.length && keys[same] === nextKeys[same]) same += 1;
      while (element.childNodes.length > same) element.lastChild.remove();
      element.append(...next.slice(same).map(nodeOf));
      keys = nextKeys;
    },
  };
}

function nodeOf(block) {
  switch (block.kind) {
    case "code":
      return codeBlock(block.text, block.language);
    // The page's own headings are h1 and h2.
    case "heading":
      return h(`h${Math.min(block.level + 2, 6)}`, { data: { level: block.level } }, ...inline(block.text));
    case "rule":
      return h("hr");
    case "math":
      return formula(block.text, true);
    case "quote":
      return h("blockquote", {}, ...block.blocks.map(nodeOf));
    case "list":
      return listNode(block);
    case "table":
      return tableNode(block);
    default:
      return h("p", {}, ...inline(block.text));
  }
}

function listNode(block) {
  const attributes = block.ordered && block.start !== 1 ? { start: block.start } : {};
  return h(
    block.ordered ? "ol" : "ul",
    attributes,
    ...block.items.map((item) => {
      const inner = item.blocks.flatMap((
        child,
      ) => (block.tight && child.kind === "paragraph" ? inline(child.text) : [nodeOf(child)]));
      const box = item.done === null ? null : h("input", {
        type: "checkbox",
        checked: item.done,
        disabled: true,
        "aria-label": item.done ? "done" : "to do",
      });
      return h("li", { class: item.done === null ? null : "task" }, box, ...inner);
    }),
  );
}

function tableNode(block) {
  const cell = (tag) => (text, i) =>
    h(tag, { class: `to-${block.align[i]}`, scope: tag === "th" ? "col" : null }, ...inline(text));
  const head = h("thead", {}, h("tr", {}, ...block.head.map(cell("th"))));
  const body = h("tbody", {}, ...block.rows.map((row) => h("tr", {}, ...row.map(cell("td")))));
  return h(
    "div",
    { class: "table-box", tabindex: 0, role: "region", "aria-label": "Table" },
    h("table", {}, head, body),
  );
}

/** Code with its language, a copy button and a little colour. */
export function codeBlock(text, language) {
  const copy = h(
    "button",
    { type: "button", class: "button quiet small", on: { click: () => copyText(text) } },
    icon("copy"),
    "Copy",
  );
  const head = h("div", { class: "code-head" }, h("span", {}, language || "text"), copy);
  return h("figure", { class: "code" }, head, h("pre", { tabindex: 0 }, h("code", {}, ...colour(text, language))));
}
