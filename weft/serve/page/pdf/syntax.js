// The objects of a PDF file, read from text in which each character is one byte. Pure.
//
// Numbers, strings, true, false, null and arrays are JavaScript's own; dictionaries are Maps without the slash of their
// keys; names, references and operators have a class each.

export class PdfError extends Error {}

export class Name {
  constructor(text) {
    this.text = text;
  }
}
export class Ref {
  constructor(number) {
    this.number = number;
  }
}
/** A word that is none of these: an operator of a content stream, or obj, stream, endobj. */
export class Word {
  constructor(text) {
    this.text = text;
  }
}

const SPACE = /(?:[\0\t\n\f\r ]+|%[^\r\n]*)*/y;
const NUMBER = /[+-]?(?:\d+\.?\d*|\.\d+)/y;
const NAME = /\/([^\0\t\n\f\r ()<>[\]{}/%]*)/y;
const WORD = /[^\0\t\n\f\r ()<>[\]{}/%]+/y;
const REFERENCE = /[\0\t\n\f\r ]+(\d+)[\0\t\n\f\r ]+R(?![^\0\t\n\f\r ()<>[\]{}/%])/y;
const ESCAPES = { n: "\n", r: "\r", t: "\t", b: "\b", f: "\f" };
const DEPTH = 60;
const END = Symbol("the end of an array or a dictionary");

export class Reader {
  /** @param {string} text @param {number} at */
  constructor(text, at = 0) {
    this.text = text;
    this.at = at;
    this.depth = 0;
  }

  match(pattern) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (found) this.at = pattern.lastIndex;
    return found;
  }

  /** The next object, or undefined at the end. */
  next() {
    const made = this.value();
    return made === END ? this.next() : made; // a bracket too many
  }

  value() {
    this.match(SPACE);
    const c = this.text[this.at];
    if (c === undefined) return undefined;
    if (c === "/") return new Name(unescaped(this.match(NAME)[1]));
    if (c === "(") return this.string();
    if (c === "[") return this.array();
    if (c === "<") return this.text[this.at + 1] === "<" ? this.dictionary() : this.hexadecimal();
    if (c === "]" || c === ">") {
      this.at += c === ">" && this.text[this.at + 1] === ">" ? 2 : 1;
      return END;
    }
    return this.number() ?? this.word();
  }

  number() {
    const found = this.match(NUMBER);
    if (!found) return undefined;
    if (/^\d+$/.test(found[0])) {
      if (this.match(REFERENCE)) return new Ref(Number(found[0]));
    }
    return Number(found[0]);
  }

  word() {
    const found = this.match(WORD);
    if (!found) {
      this.at += 1; // a brace or a parenthesis that nothing opened
      return new Word("");
    }
    if (found[0] === "null") return null;
    return found[0] === "true" || (found[0] === "false" ? false : new Word(found[0]));
  }

  within(read) {
    this.depth += 1;
    if (this.depth > DEPTH) throw new PdfError("objects are nested too deeply");
    const made = read();
    this.depth -= 1;
    return made;
  }

  array() {
    this.at += 1;
    return this.within(() => {
      const items = [];
      for (let item = this.value(); item !== END && item !== undefined; item = this.value()) items.push(item);
      return items;
    });
  }

  dictionary() {
    this.at += 2;
    return this.within(() => {
      const made = new Map();
      for (;;) {
        const key = this.value();
        if (key === END || key === undefined) return made;
        if (!(key instanceof Name)) continue;
        const value = this.value();
        if (value === END || value === undefined) return made;
        made.set(key.text, value);
      }
    });
  }

  string() {
    const parts = [];
    let open = 1;
    let at = this.at + 1;
    for (; at < this.text.length; at += 1) {
      const c = this.text[at];
      if (c === "\\") {
        const octal = /^[0-7]{1,3}/.exec(this.text.slice(at + 1, at + 4));
        const next = this.text[at + 1] ?? "";
        if (octal) parts.push(String.fromCharCode(parseInt(octal[0], 8) & 255));
        else if (next === "\r" && this.text[at + 2] === "\n") at += 1;
        else if (next !== "\n" && next !== "\r") parts.push(ESCAPES[next] ?? next);
        at += octal ? octal[0].length : 1;
        continue;
      }
      if (c === "(") open += 1;
      if (c === ")" && (open -= 1) === 0) break;
      parts.push(c);
    }
    this.at = at + 1;
    return parts.join("");
  }

  hexadecimal() {
    const end = this.text.indexOf(">", this.at);
    const digits = this.text.slice(this.at + 1, end < 0 ? this.text.length : end).replace(/[^0-9a-fA-F]/g, "");
    this.at = end < 0 ? this.text.length : end + 1;
    return bytesOf(digits.length % 2 ? `${digits}0` : digits);
  }
}

/** A text of bytes out of hexadecimal digits. */
export const bytesOf = (digits) =>
  digits.replace(/../g, (pair) => String.fromCharCode(parseInt(pair, 16)));

const unescaped = (name) =>
  name.replace(/#([0-9a-fA-F]{2})/g, (_, pair) => String.fromCharCode(parseInt(pair, 16)));

/** Bytes as a text of one character each. */
export function textOf(bytes) {
  const parts = [];
  for (let i = 0; i < bytes.length; i += 8192) parts.push(String.fromCharCode(...bytes.subarray(i, i + 8192)));
  return parts.join("");
}
