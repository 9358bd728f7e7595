// LaTeX formulas to MathML as plain data: [tag, attributes, ...children]. A pure function. It knows the commands that
// models use; a formula with any other is refused, and the caller shows its source.

import { COMMANDS, fence, MathError, row, space, table } from "./commands.js";
import {
  FENCE_CHARACTERS,
  FENCES,
  FONTS,
  FUNCTIONS,
  INTEGRALS,
  LETTERS,
  lettered,
  LIMITS,
  OPERATORS,
  OVER,
  SPACES,
  SUMS,
  UNDER,
} from "./symbols.js";

const MAX_LENGTH = 8000;
const DEPTH = 40;
const TOKEN = /\s*(\\[A-Za-z]+|\\[^]|\d+(?:\.\d+)?|[^])/uy;
const CHARACTERS = { "-": "−", "*": "∗", "'": "′" };
const BIG = { big: 1.2, Big: 1.8, bigg: 2.4, Bigg: 3 };
const ROWS = new Set(["&", "\\\\", "\\end", "\\cr", "}"]);
const CLOSING = new Set(["}"]);
/** Environments: the fences around the table, and how its columns are aligned. */
const TABLES = {
  matrix: ["", "", ""],
  smallmatrix: ["", "", ""],
  pmatrix: ["(", ")", ""],
  bmatrix: ["[", "]", ""],
  Bmatrix: ["{", "}", ""],
  vmatrix: ["|", "|", ""],
  Vmatrix: ["‖", "‖", ""],
  array: ["", "", ""],
  cases: ["{", "", "ll"],
  aligned: ["", "", "rl"],
  align: ["", "", "rl"],
  alignat: ["", "", "rl"],
  split: ["", "", "rl"],
  eqnarray: ["", "", "rcl"],
  gathered: ["", "", ""],
  gather: ["", "", ""],
  equation: ["", "", ""],
  multline: ["", "", ""],
  displaymath: ["", "", ""],
  math: ["", "", ""],
};

/** The formula as the children of a math element; throws MathError for what it does not know. */
export function parseMath(source) {
  if (source.length > MAX_LENGTH) throw new MathError("the formula is too long");
  const parser = new Parser(source);
  const rows = parser.rows(null);
  if (parser.peek() !== null) throw new MathError(`unexpected ${parser.peek()}`);
  return rows.length === 1 && rows[0].length === 1 ? rows[0][0] : [table(rows, "rl")];
}

class Parser {
  constructor(source) {
    this.source = source;
    this.at = 0;
    this.depth = 0;
    this.font = "";
  }

  /** The next token without its leading space, or null at the end. */
  peek() {
    TOKEN.lastIndex = this.at;
    const found = TOKEN.exec(this.source);
    if (!found || (found[1].length === 1 && /\s/.test(found[1]))) return null;
    this.after = TOKEN.lastIndex;
    return found[1];
  }

  next() {
    const token = this.peek();
    if (token === null) throw new MathError("the formula ends too early");
    this.at = this.after;
    return token;
  }

  expect(token) {
    const found = this.next();
    if (found !== token) throw new MathError(`${token} expected, not ${found}`);
  }

  /** The source between braces, as it is. */
  raw() {
    this.expect("{");
    const start = this.at;
    let open = 1;
    for (; this.at < this.source.length; this.at += 1) {
      const c = this.source[this.at];
      if (c === "\\") this.at += 1;
      else if (c === "{") open += 1;
      else if (c === "}" && (open -= 1) === 0) {
        this.at += 1;
        return this.source.slice(start, this.at - 1);
      }
    }
    throw new MathError("a brace is not closed");
  }

  items(ends) {
    const found = [];
    for (let token = this.peek(); token !== null && !ends?.has(token); token = this.peek()) {
      if (token === "\\displaystyle" || token === "\\textstyle") {
        this.next();
        found.push(["mrow", { displaystyle: String(token === "\\displaystyle") }, ...this.items(ends)]);
      } else found.push(this.scripted());
    }
    return found.filter(Boolean);
  }

  /** Rows of cells, up to \end{name} or, where `name` is null, to the end of the group. */
  rows(name) {
    const made = [[]];
    for (;;) {
      made.at(-1).push(this.items(ROWS));
      const token = this.peek();
      if (token === null || token === "\\end" || token === "}") break;
      this.next();
      if (token !== "&") {
        if (this.source[this.at] === "[") this.optional(); // space between two rows
        made.push([]);
      }
    }
    if (name !== null) {
      this.expect("\\end");
      if (this.raw() !== name) throw new MathError(`\\end{${name}} expected`);
    }
    if (made.length > 1 && made.at(-1).every((cell) => cell.length === 0)) made.pop();
    return made;
  }

  /** What a command takes: a group, or one atom. */
  argument(font = this.font) {
    if ((this.depth += 1) > DEPTH) throw new MathError("the formula is nested too deeply");
    const before = this.font;
    this.font = font;
    const made = this.atom().node ?? ["mrow", {}];
    this.font = before;
    this.depth -= 1;
    return made;
  }

  /** [n] of \sqrt[n]{x}, or null. */
  optional() {
    if (this.peek() !== "[") return null;
    this.next();
    const made = this.items(new Set(["]"]));
    this.expect("]");
    return row(made);
  }

  /** An atom with what stands above and below it. */
  scripted() {
    const first = this.peek();
    let { node, limits = false } = first === "^" || first === "_" ? { node: ["mrow", {}] } : this.atom();
    if (node === null) return null;
    let below = null;
    const above = [];
    for (let token = this.peek(); token !== null; token = this.peek()) {
      if (token === "\\limits" || token === "\\nolimits") limits = token === "\\limits";
      else if (token === "'") above.push(["mo", {}, "′"]);
      else if (token !== "^" && (token !== "_" || below)) break;
      this.next();
      if (token === "^") above.push(this.argument());
      else if (token === "_") below = this.argument();
    }
    const top = above.length ? row(above) : null;
    if (below && top) return [limits ? "munderover" : "msubsup", {}, node, below, top];
    if (below) return [limits ? "munder" : "msub", {}, node, below];
    return top ? [limits ? "mover" : "msup", {}, node, top] : node;
  }

  /** @returns {{node: any, limits?: boolean}}  a node of null shows nothing */
  atom() {
    const token = this.next();
    if (token === "{") {
      const before = this.font;
      if ((this.depth += 1) > DEPTH) throw new MathError("the formula is nested too deeply");
      const items = this.items(CLOSING);
      this.expect("}");
      this.depth -= 1;
      this.font = before;
      return { node: row(items) };
    }
    if (token === "}") throw new MathError("a brace too many");
    if (token === "&" || token === "^" || token === "_") throw new MathError(`unexpected ${token}`);
    if (token === "~") return { node: space(0.25) };
    if (/^\d/.test(token)) return { node: ["mn", {}, [...token].map((c) => lettered(c, this.font)).join("")] };
    if (/^\p{L}$/u.test(token)) return { node: this.letter(token) };
    if (token.startsWith("\\")) return this.command(token.slice(1));
    const stretches = "()[]|".includes(token) ? { stretchy: "false" } : {};
    return { node: ["mo", stretches, CHARACTERS[token] ?? token] };
  }

  letter(character) {
    const made = lettered(character, this.font);
    return ["mi", made !== character || this.font === "mathrm" ? { mathvariant: "normal" } : {}, made];
  }

  command(name) {
    if (Object.hasOwn(LETTERS, name)) return { node: this.letter(LETTERS[name]) };
    if (Object.hasOwn(OPERATORS, name)) return { node: ["mo", {}, OPERATORS[name]] };
    if (Object.hasOwn(SUMS, name)) {
      return { node: ["mo", { largeop: "true", movablelimits: "true" }, SUMS[name]], limits: true };
    }
    if (Object.hasOwn(INTEGRALS, name)) return { node: ["mo", { largeop: "true" }, INTEGRALS[name]] };
    if (FUNCTIONS.has(name)) return this.named(name, LIMITS.has(name));
    if (Object.hasOwn(SPACES, name)) return { node: space(SPACES[name]) };
    if (Object.hasOwn(FENCES, name)) return { node: ["mo", { stretchy: "false" }, FENCES[name]] };
    if (FONTS.has(name)) return { node: this.argument(name) };
    if (Object.hasOwn(OVER, name)) {
      const [mark, stretchy] = OVER[name];
      const node = ["mover", { accent: "true" }, this.argument(), ["mo", { stretchy: String(stretchy) }, mark]];
      return { node, limits: name === "overbrace" };
    }
    if (Object.hasOwn(UNDER, name)) {
      const node = ["munder", { accentunder: "true" }, this.argument(), ["mo", { stretchy: "true" }, UNDER[name]]];
      return { node, limits: name === "underbrace" };
    }
    const size = /^(big|Big|bigg|Bigg)[lrm]?$/.exec(name);
    if (size) {
      const em = `${BIG[size[1]]}em`;
      return { node: ["mo", { stretchy: "true", symmetric: "true", minsize: em, maxsize: em }, this.fence()] };
    }
    if (COMMANDS[name]) return COMMANDS[name](this);
    if (/^[^A-Za-z]$/.test(name) && "#$%&_".includes(name)) return { node: ["mi", {}, name] };
    throw new MathError(`\\${name} is not known`);
  }

  /** A function's name, upright, with a thin space before what follows. */
  named(name, limits) {
    const words = name.replace(/^(lim|arg)(?=sup|inf|max|min)/, "$1 ");
    const node = ["mo", { form: "prefix", movablelimits: limits ? "true" : null, rspace: "0.17em" }, words];
    return { node, limits };
  }

  fence() {
    const token = this.next();
    const made = token.startsWith("\\") ? FENCES[token.slice(1)] : token === "." ? "" : token;
    if (made === undefined || (!token.startsWith("\\") && !FENCE_CHARACTERS.has(token))) {
      throw new MathError(`${token} is not a fence`);
    }
    return { "<": "⟨", ">": "⟩" }[made] ?? made;
  }

  left() {
    const items = [];
    const open = this.fence();
    const stop = new Set(["\\right", "\\middle"]);
    for (;;) {
      items.push(...this.items(stop));
      if (this.next() === "\\right") break;
      items.push(["mo", { fence: "true", stretchy: "true" }, this.fence()]);
    }
    const close = this.fence();
    return { node: ["mrow", {}, fence(open, "prefix"), ...items, fence(close, "postfix")] };
  }

  begin() {
    const name = this.raw();
    const kind = name.replace(/\*$/, "");
    if (!Object.hasOwn(TABLES, kind)) throw new MathError(`the environment ${name} is not known`);
    const [open, close, sides] = TABLES[kind];
    const columns = kind === "array" || kind === "alignat" ? this.raw().replace(/[^lcr]/g, "") : "";
    if ((this.depth += 1) > DEPTH) throw new MathError("the formula is nested too deeply");
    const rows = this.rows(name);
    this.depth -= 1;
    if (!open && !close && !sides && rows.length === 1 && rows[0].length === 1) return { node: row(rows[0][0]) };
    // Only matrices are set as small as in a line; equations keep their full size.
    const attributes = { displaystyle: /matrix|array|cases/.test(kind) ? null : "true" };
    const made = table(rows, columns || sides || "c", attributes);
    if (!open && !close) return { node: made };
    return { node: ["mrow", {}, fence(open, "prefix"), made, fence(close, "postfix")] };
  }
}
