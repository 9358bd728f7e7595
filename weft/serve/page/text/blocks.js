// Markdown into blocks: a pure function from text to plain data. Nesting (quotes, lists) recurses on shorter texts and
// stops at a fixed depth.

/**
 * @typedef {{kind: "code", language: string, text: string, open: boolean}
 *   | {kind: "heading", level: number, text: string} | {kind: "rule"} | {kind: "paragraph", text: string}
 *   | {kind: "math", text: string}
 *   | {kind: "quote", blocks: Block[]}
 *   | {kind: "list", ordered: boolean, start: number, tight: boolean, items: {done: boolean|null, blocks: Block[]}[]}
 *   | {kind: "table", align: string[], head: string[], rows: string[][]}} Block
 */

const DEPTH = 6;
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(\s+|$)(.*)$/;
const QUOTE = /^ {0,3}> ?/;
const TABLE_RULE = /^ {0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const MAX_COLUMNS = 50;
const MATH = /^ {0,3}(\$\$|\\\[|\\begin\{([a-z]+\*?)\})/;
const MATH_LINES = 100;

/** @returns {Block[]} */
export function blocks(text, depth = 0) {
  return blocksOf(text.replace(/\r\n?/g, "\n").split("\n"), depth);
}

function blocksOf(lines, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at].trim() === "") {
      at += 1;
      continue;
    }
    const [block, next] = fence(lines, at) ?? heading(lines, at) ?? rule(lines, at) ?? math(lines, at) ??
      table(lines, at) ??
      (depth < DEPTH ? quote(lines, at, depth) ?? list(lines, at, depth) : null) ?? paragraph(lines, at);
    found.push(block);
    at = next;
  }
  return found;
}

function fence(lines, at) {
  const open = FENCE.exec(lines[at]);
  if (!open) return null;
  const indent = lines[at].search(/\S/);
  const body = [];
  let i = at + 1;
  for (; i < lines.length; i += 1) {
    const line = lines[i].trim();
    if (line.length >= open[1].length && line === open[1][0].repeat(line.length)) break;
    body.push(lines[i].slice(Math.min(indent, Math.max(lines[i].search(/\S/), 0))));
  }
  return [{ kind: "code", language: open[2], text: body.join("\n"), open: i === lines.length }, i + 1];
}

function heading(lines, at) {
  const found = HEADING.exec(lines[at]);
  return found && [{ kind: "heading", level: found[1].length, text: found[2] }, at + 1];
}

function rule(lines, at) {
  return RULE.test(lines[at]) ? [{ kind: "rule" }, at + 1] : null;
}

function table(lines, at) {
  if (!lines[at].includes("|") || !TABLE_RULE.test(lines[at + 1] ?? "")) return null;
  const head = cells(lines[at]);
  const marks = cells(lines[at + 1]);
  if (head.length !== marks.length || head.length > MAX_COLUMNS) return null;
  const align = marks.map((mark) => (mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "right") : "left"));
  const rows = [];
  let i = at + 2;
  for (; i < lines.length && lines[i].trim() !== "" && lines[i].includes("|"); i += 1) {
    const row = cells(lines[i]).slice(0, head.length);
    rows.push([...row, ...Array(head.length - row.length).fill("")]);
  }
  return [{ kind: "table", align, head, rows }, i];
}

/** A formula that stands alone: its first line opens it, and the last one ends with what closes it. */
function math(lines, at) {
  const open = MATH.exec(lines[at]);
  if (!open) return null;
  const close = { "$$": "$$", "\\[": "\\]" }[open[1]] ?? `\\end{${open[2]}}`;
  const inner = [lines[at].trim()];
  for (let i = at; i < Math.min(lines.length, at + MATH_LINES); i += 1) {
    if (i > at) inner.push(lines[i]);
    const line = i === at ? lines[at].trim().slice(open[1].length) : lines[i].trimEnd();
    const end = line.indexOf(close);
    if (end < 0) continue;
    if (line.slice(end + close.length).trim().replace(/^[.,;]$/, "")) return null; // text goes on: left to the paragraph
    const [, whole, mark] = /^([^]*?)([.,;]?)$/.exec(inner.join("\n").trimEnd());
    const text = open[2] ? whole : whole.slice(open[1].length, whole.length - close.length);
    return [{ kind: "math", text: text.trim() + mark }, i + 1];
  }
  return null;
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replace(/\\\|/g, "|"));
}

function quote(lines, at, depth) {
  if (!QUOTE.test(lines[at])) return null;
  const inner = [];
  let i = at;
  for (; i < lines.length && lines[i].trim() !== "" && (QUOTE.test(lines[i]) || !startsBlock(lines[i])); i += 1) {
    inner.push(lines[i].replace(QUOTE, ""));
  }
  return [{ kind: "quote", blocks: blocksOf(inner, depth + 1) }, i];
}

function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  if (!first) return null;
  const mark = first[2].at(-1);
  const items = [];
  let tight = true;
  let i = at;
  while (i < lines.length) {
    const item = ITEM.exec(lines[i]);
    if (!item || item[2].at(-1) !== mark || RULE.test(lines[i])) break;
    const [inner, next, loose] = itemLines(lines, i, item);
    if (loose) tight = false;
    const task = /^\[([ xX])\]\s+/.exec(inner[0]);
    if (task) inner[0] = inner[0].slice(task[0].length);
    items.push({ done: task ? task[1] !== " " : null, blocks: blocksOf(inner, depth + 1) });
    i = next;
  }
  const ordered = /\d/.test(first[2]);
  return [{ kind: "list", ordered, start: ordered ? parseInt(first[2], 10) : 1, tight, items }, i];
}

/** The lines of one item without their indent, the line after it, and whether a blank line makes the list loose. */
function itemLines(lines, at, item) {
  const indent = item[1].length + item[2].length + (item[4] === "" ? 1 : Math.min(item[3].length, 4));
  const inner = [item[4]];
  let blank = false;
  let loose = false;
  let i = at + 1;
  for (; i < lines.length; i += 1) {
    const depth = lines[i].search(/\S/);
    if (depth < 0) {
      blank = true;
      inner.push("");
      continue;
    }
    // Models often indent nested items by two where the number takes three.
    const inside = depth >= indent || (depth >= 2 && ITEM.test(lines[i].trimStart()));
    if (!inside && (blank || startsBlock(lines[i]))) break;
    if (blank && inside) loose ||= depth >= indent && !ITEM.test(lines[i].trimStart());
    blank = false;
    inner.push(lines[i].slice(Math.min(indent, depth)));
  }
  loose ||= blank && i < lines.length && ITEM.test(lines[i]) && ITEM.exec(lines[i])[2].at(-1) === item[2].at(-1);
  return [inner, i, loose];
}

function startsBlock(line) {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || ITEM.test(line) || QUOTE.test(line);
}

function paragraph(lines, at) {
  let i = at + 1;
  while (i < lines.length && lines[i].trim() !== "" && !interrupts(lines, i)) i += 1;
  const text = lines.slice(at, i).map((line) => line.trimStart()).join("\n").trimEnd();
  return [{ kind: "paragraph", text }, i];
}

function interrupts(lines, at) {
  const item = ITEM.exec(lines[at]);
  if (item) return item[4] !== "" && (!/\d/.test(item[2]) || parseInt(item[2], 10) === 1);
  return startsBlock(lines[at]) || (MATH.test(lines[at]) && math(lines, at) !== null) ||
    (lines[at].includes("|") && TABLE_RULE.test(lines[at + 1] ?? ""));
}
