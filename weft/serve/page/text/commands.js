// LaTeX's commands that take arguments, and the nodes that they and the parser make.

/** A formula that is not understood. */
export class MathError extends Error {}

/** One node for several. */
export const row = (items) => (items.length === 1 ? items[0] : ["mrow", {}, ...items]);
export const space = (width) => ["mspace", { width: `${width}em` }];
export const fence = (text, form) => ["mo", { fence: "true", stretchy: "true", form }, text];

/** Rows of cells; `sides` says how the columns are aligned, repeated as often as needed. */
export function table(rows, sides, attributes = {}) {
  const side = (i) => ({ l: "to-left", r: "to-right", c: "to-center" })[sides[i % sides.length]] ?? null;
  return [
    "mtable",
    attributes,
    ...rows.map((cells) => ["mtr", {}, ...cells.map((cell, i) => ["mtd", { class: side(i) }, ...cell])]),
  ];
}

const fraction = (attributes) => (parser) => ({
  node: ["mfrac", attributes, parser.argument(), parser.argument()],
});
const text = (attributes) => (parser) => ({
  node: ["mtext", attributes, parser.raw().replace(/\\([#$%&_{} ])/g, "$1").replace(/^ | $/g, "\u00a0")],
});
const nothing = (parser, takes = false) => {
  if (takes) parser.raw();
  return { node: null };
};

/** Commands that take arguments: from the parser to {node, limits}. A node of null shows nothing. */
export const COMMANDS = {
  frac: fraction({}),
  dfrac: fraction({ displaystyle: "true" }),
  tfrac: fraction({ displaystyle: "false" }),
  cfrac: fraction({ displaystyle: "true" }),
  text: text({}),
  textrm: text({}),
  textnormal: text({}),
  mbox: text({}),
  textbf: text({ class: "bold" }),
  textit: text({ class: "italic" }),
  texttt: text({ class: "mono" }),
  left: (parser) => parser.left(),
  begin: (parser) => parser.begin(),
  sqrt(parser) {
    const index = parser.optional();
    const inside = parser.argument();
    return { node: index ? ["mroot", {}, inside, index] : ["msqrt", {}, inside] };
  },
  binom(parser) {
    const inside = ["mfrac", { linethickness: "0" }, parser.argument(), parser.argument()];
    return { node: ["mrow", {}, fence("(", "prefix"), inside, fence(")", "postfix")] };
  },
  operatorname(parser) {
    const limits = parser.source[parser.at] === "*";
    if (limits) parser.at += 1;
    return parser.named(parser.raw().replace(/\\[,;: ]/g, " "), limits);
  },
  overset: (parser) => {
    const top = parser.argument();
    return { node: ["mover", {}, parser.argument(), top] };
  },
  stackrel: (parser) => COMMANDS.overset(parser),
  underset: (parser) => {
    const below = parser.argument();
    return { node: ["munder", {}, parser.argument(), below] };
  },
  xrightarrow: (parser) => {
    const below = parser.optional();
    const arrow = ["mo", { stretchy: "true" }, "→"];
    const top = parser.argument();
    return { node: below ? ["munderover", {}, arrow, below, top] : ["mover", {}, arrow, top] };
  },
  substack(parser) {
    parser.expect("{");
    const rows = parser.rows(null);
    parser.expect("}");
    return { node: table(rows, "c") };
  },
  not(parser) {
    const { node } = parser.atom();
    const known = { "=": "≠", "∈": "∉", "⊂": "⊄", "⊆": "⊈", "≡": "≢", "∼": "≁", "∃": "∄", "∥": "∦", "∣": "∤" };
    return { node: ["mo", {}, known[node.at(-1)] ?? `${node.at(-1)}\u0338`] };
  },
  boxed: (parser) => ({ node: ["mrow", { class: "boxed" }, parser.argument()] }),
  phantom: (parser) => ({ node: ["mphantom", {}, parser.argument()] }),
  pmod(parser) {
    const inside = [["mo", {}, "mod"], space(0.3), parser.argument()];
    return { node: ["mrow", {}, space(0.5), ["mo", {}, "("], ...inside, ["mo", {}, ")"]] };
  },
  bmod: () => ({ node: ["mo", { lspace: "0.28em", rspace: "0.28em" }, "mod"] }),
  tag: (parser) => ({ node: ["mtext", {}, `\u2003(${parser.raw()})`] }),
  label: (parser) => nothing(parser, true),
  nonumber: nothing,
  notag: nothing,
  hline: nothing,
  limits: nothing,
  nolimits: nothing,
  right: () => {
    throw new MathError("\\right without \\left");
  },
};
