// Inline markdown to nodes: code, emphasis, deletion, links, formulas, entities, breaks. Only nodes are made, never
// markup, and only http, https and mailto become links. Every step moves forward, so the time is linear in the text but
// for nested emphasis, which stops at a fixed depth.

import { h } from "../ui/dom.js";
import { decoded, entityAt } from "./entities.js";
import { formula } from "./mathml.js";

const DEPTH = 8;
const SAFE = /^(https?:\/\/|mailto:)/i;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const SPECIAL = /[\\`*_~[<!&$\n]|https?:\/\//g;
const LABEL = /\[((?:[^[\]\\]|\\.|\[[^[\]]{0,200}\]){0,1000})\]\(\s{0,4}/y;
const TITLE = /(?:\s{1,4}"[^"]{0,500}")?\s{0,4}\)/y;
const PLAIN = /[^\s<>()]*/y;
const MAX_ADDRESS = 2000;
const MAX_OPEN = 16; // parentheses in an address
const MAX_FORMULA = 4000;
const EMPHASIS = {
  "***": ["strong", "em"],
  "**": ["strong"],
  "*": ["em"],
  "__": ["strong"],
  "_": ["em"],
  "~~": ["del"],
};

/** @returns {Node[]} */
export function inline(text, depth = 0) {
  const nodes = [];
  let plain = "";
  let at = 0;
  const flush = () => {
    if (plain) nodes.push(document.createTextNode(plain));
    plain = "";
  };
  const missing = new Set();
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const found = SPECIAL.exec(text);
    const next = found ? found.index : text.length;
    plain += text.slice(at, next);
    at = next;
    if (!found) break;
    const made = special(text, at, depth, missing);
    if (made.nodes) {
      if (made.trim) plain = plain.replace(/ +$/, "");
      flush();
      nodes.push(...made.nodes);
    } else {
      plain += made.text;
    }
    at = made.end;
  }
  flush();
  return nodes;
}

/** What starts at `at`: nodes or plain text, and where it ends. `missing` remembers closers that the rest does not have. */
function special(text, at, depth, missing) {
  const c = text[at];
  if (c === "\\") return bracketed(text, at, missing) ?? escape(text, at);
  if (c === "$") return dollars(text, at, missing);
  if (c === "&") return entityAt(text, at) ?? { text: "&", end: at + 1 };
  if (c === "\n") {
    return { nodes: text.endsWith("  ", at) ? [h("br")] : [document.createTextNode("\n")], end: at + 1, trim: true };
  }
  if (c === "`") return codeSpan(text, at, missing);
  if (c === "h") return bareLink(text, at);
  if (c === "<") return angleLink(text, at);
  if (depth < DEPTH && (c === "[" || (c === "!" && text[at + 1] === "["))) return link(text, at, depth, missing);
  if (depth < DEPTH && "*_~".includes(c)) return emphasis(text, at, depth, missing);
  return { text: c, end: at + 1 };
}

function escape(text, at) {
  const next = text[at + 1] ?? "";
  if (next === "\n") return { nodes: [h("br")], end: at + 2 };
  return PUNCTUATION.test(next) ? { text: next, end: at + 2 } : { text: "\\", end: at + 1 };
}

function codeSpan(text, at, missing) {
  const ticks = /^`+/.exec(text.slice(at, at + 64))[0];
  if (!missing.has(ticks)) {
    for (let from = at + ticks.length;;) {
      const end = text.indexOf(ticks, from);
      if (end < 0) break;
      let stop = end + ticks.length;
      if (text[stop] !== "`") {
        const inner = text.slice(at + ticks.length, end).replace(/\n/g, " ");
        const trimmed = /^ .*\S.* $/.test(inner) ? inner.slice(1, -1) : inner;
        return { nodes: [h("code", {}, trimmed)], end: stop };
      }
      while (text[stop] === "`") stop += 1;
      from = stop;
    }
    missing.add(ticks);
  }
  return { text: ticks, end: at + ticks.length };
}

function emphasis(text, at, depth, missing) {
  const run = /^(\*{1,3}|_{1,2}|~~)/.exec(text.slice(at, at + 3))?.[0];
  if (!run) return { text: text[at], end: at + 1 };
  const after = text[at + run.length] ?? " ";
  const within = run[0] === "_" && /\w/.test(text[at - 1] ?? " ");
  if (!/\s/.test(after) && !within && !missing.has(run)) {
    const end = closer(text, at + run.length, run);
    if (end > 0) {
      const inner = inline(text.slice(at + run.length, end), depth + 1);
      const tags = EMPHASIS[run];
      const node = tags.reduceRight((children, tag) => [h(tag, {}, ...children)], inner);
      return { nodes: node, end: end + run.length };
    }
    missing.add(run);
  }
  return { text: run, end: at + run.length };
}

/** Where a run of the same length closes the emphasis, or -1. Code spans in between are jumped over. */
function closer(text, from, run) {
  for (let i = from; i < text.length; i += 1) {
    if (text[i] === "\\") i += 1;
    else if (text[i] === "`") {
      const end = text.indexOf("`", i + 1);
      if (end > 0) i = end;
    } else if (text[i] === run[0]) {
      let stop = i;
      while (text[stop] === run[0]) stop += 1;
      const fits = stop - i === run.length || (stop - i === 3 && run.length < 3 && i > from);
      const wordGoesOn = run[0] === "_" && /\w/.test(text[stop] ?? " ");
      if (fits && !/\s/.test(text[i - 1]) && !wordGoesOn) return stop - run.length;
      i = stop - 1;
    }
  }
  return -1;
}

/** A formula between \\( and \\), or \\[ and \\]. */
function bracketed(text, at, missing) {
  const closer = { "(": "\\)", "[": "\\]" }[text[at + 1]];
  if (!closer || missing.has(closer)) return null;
  const end = text.indexOf(closer, at + 2);
  if (end < 0) missing.add(closer);
  if (end < 0 || end - at > MAX_FORMULA) return null;
  return { nodes: [formula(text.slice(at + 2, end), closer === "\\]")], end: end + 2 };
}

/** A formula between $$, or between single dollars where these cannot be prices: $x$ is one, $5 and $10 are not. */
function dollars(text, at, missing) {
  const mark = text[at + 1] === "$" ? "$$" : "$";
  const start = at + mark.length;
  const plain = { text: mark, end: start };
  if (missing.has(mark) || (mark === "$" && /\s|^$/.test(text[start] ?? " "))) return plain;
  for (let end = text.indexOf(mark, start); end >= 0 && end - at <= MAX_FORMULA; end = text.indexOf(mark, end + 1)) {
    if (text[end - 1] === "\\") continue;
    const inner = text.slice(start, end);
    if (mark === "$$") return { nodes: [formula(inner, true)], end: end + 2 };
    if (/\s$/.test(inner) || /\d/.test(text[end + 1] ?? "") || inner.includes("\n\n")) return plain;
    return inner ? { nodes: [formula(inner, false)], end: end + 1 } : plain;
  }
  if (text.indexOf(mark, start) < 0) missing.add(mark);
  return plain;
}

function link(text, at, depth, missing) {
  const image = text[at] === "!";
  const open = at + (image ? 1 : 0);
  const found = missing.has("]") ? null : parts(text, open);
  if (!found) {
    if (text.indexOf("](", open) < 0) missing.add("]");
    return { text: image ? "![" : "[", end: open + 1 };
  }
  // An image would be a request to another server; it is shown as the link that it is.
  const label = inline(found.label || (image ? "image" : found.address), depth + 1);
  return { nodes: anchor(decoded(found.address), label), end: found.end };
}

/** The label and the address of a link, and where it ends; null where there is none. */
function parts(text, open) {
  LABEL.lastIndex = open;
  const label = LABEL.exec(text);
  if (!label) return null;
  const address = addressAt(text, LABEL.lastIndex);
  TITLE.lastIndex = address.end;
  return TITLE.test(text) ? { label: label[1], address: address.text, end: TITLE.lastIndex } : null;
}

/** An address in angle brackets, or up to a space or the parenthesis that closes the link: those inside come in pairs. */
function addressAt(text, at) {
  if (text[at] === "<") {
    const end = text.slice(at, at + MAX_ADDRESS).search(/[\s>]/);
    return end > 0 && text[at + end] === ">" ? { text: text.slice(at + 1, at + end), end: at + end + 1 } : { text: "", end: at };
  }
  let open = 0;
  let end = at;
  for (; end < text.length && end - at < MAX_ADDRESS && open < MAX_OPEN; end += 1) {
    PLAIN.lastIndex = end;
    PLAIN.test(text);
    end = PLAIN.lastIndex;
    if (text[end] === "(") open += 1;
    else if (text[end] !== ")" || (open -= 1) < 0) break;
  }
  return { text: text.slice(at, end), end };
}

function anchor(address, children) {
  if (!SAFE.test(address)) return children;
  return [h("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children)];
}

function bareLink(text, at) {
  const found = /^https?:\/\/[^\s<>"'`]{1,2000}/.exec(text.slice(at, at + 2010))?.[0] ?? "";
  const address = withoutEnd(found);
  return address.length > 10
    ? { nodes: anchor(decoded(address), [decoded(address)]), end: at + address.length }
    : { text: "h", end: at + 1 };
}

/** An address without the punctuation of the sentence around it; a parenthesis that was opened in it belongs to it. */
function withoutEnd(address) {
  const surplus = { ")": 0, "]": 0 };
  for (const c of address) {
    if (c === "(") surplus[")"] -= 1;
    else if (c === "[") surplus["]"] -= 1;
    else if (c in surplus) surplus[c] += 1;
  }
  let end = address.length;
  for (; end > 0; end -= 1) {
    const c = address[end - 1];
    if (surplus[c] > 0) surplus[c] -= 1;
    else if (!".,;:!?*_".includes(c)) break;
  }
  return address.slice(0, end);
}

function angleLink(text, at) {
  const found = /^<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/i.exec(text.slice(at, at + 2010));
  if (found) return { nodes: anchor(found[1], [found[1]]), end: at + found[0].length };
  const line = /^<br ?\/?>/i.exec(text.slice(at, at + 6));
  return line ? { nodes: [h("br")], end: at + line[0].length } : { text: "<", end: at + 1 };
}
