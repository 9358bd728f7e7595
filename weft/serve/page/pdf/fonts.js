// Fonts of a PDF file: from the bytes of a string to characters and widths.

import { Stream } from "./document.js";
import { characterOf, encodingOf, standardWidth } from "./glyphs.js";
import { Name, Reader, textOf, Word } from "./syntax.js";

const UNKNOWN = "\ufffd";
const MAX_RANGE = 65536;
const SYMBOLIC = 4;

/**
 * @typedef {{read: (bytes: string) => {text: string, width: number, space: boolean}[]}} Font
 *   `width` in thousandths of an em; `space` says whether word spacing applies
 */

/** @returns {Promise<Font>} */
export async function openFont(document, reference) {
  const font = document.get(reference);
  const entry = (key) => document.entry(font, key);
  const unicode = entry("ToUnicode") instanceof Stream ? cmapOf(textOf(await document.data(entry("ToUnicode")))) : null;
  const composite = entry("Subtype")?.text === "Type0";
  if (composite) return compositeFont(document, entry, unicode);
  return simpleFont(document, entry, unicode, await ownEncoding(document, entry("FontDescriptor")));
}

/** The encoding that a Type 1 font program states in its readable part: glyph names by code. */
async function ownEncoding(document, descriptor) {
  const program = document.entry(descriptor, "FontFile");
  const made = new Map();
  if (!(program instanceof Stream)) return made;
  const head = textOf((await document.data(program)).subarray(0, 20_000)).split("eexec")[0];
  for (const [, code, name] of head.matchAll(/\bdup\s+(\d{1,3})\s*\/(\S+)\s+put/g)) made.set(Number(code), name);
  return made;
}

function simpleFont(document, entry, unicode, own) {
  const name = entry("BaseFont")?.text ?? "";
  const characters = charactersOf(document, entry, own);
  const first = Number(entry("FirstChar")) || 0;
  const widths = [entry("Widths") ?? []].flat().map((width) => Number(document.get(width)) || 0);
  const scale = entry("Subtype")?.text === "Type3" ? 1000 * (Number(document.get(entry("FontMatrix")?.[0])) || 0.001) : 1;
  const widthOf = (code) => (widths.length ? widths[code - first] ?? 0 : standardWidth(name, code)) * scale;
  const read = (bytes) =>
    [...bytes].map((c) => {
      const code = c.charCodeAt(0);
      const text = unicode?.map.get(c) ?? (characters[code] || UNKNOWN);
      return { text, width: widthOf(code), space: code === 32 };
    });
  return { read };
}

/** Characters by code: the base encoding or the font program's own, changed by /Differences. */
function charactersOf(document, entry, own) {
  const encoding = entry("Encoding");
  const base = encoding instanceof Name ? encoding : document.entry(encoding, "BaseEncoding");
  const descriptor = entry("FontDescriptor");
  const embedded = ["FontFile", "FontFile2", "FontFile3"].some((key) => document.entry(descriptor, key));
  const symbolic = (Number(document.entry(descriptor, "Flags")) & SYMBOLIC) !== 0;
  const unknown = !base && embedded && symbolic; // a subset with codes of its own
  const made = unknown ? Array(256).fill("") : encodingOf(base?.text ?? "");
  if (!base) for (const [code, name] of own) made[code] = characterOf(name);
  let code = 0;
  for (const item of document.entry(encoding, "Differences") ?? []) {
    if (typeof item === "number") code = item;
    else if (item instanceof Name) {
      made[code] = characterOf(item.text);
      code += 1;
    }
  }
  return made;
}

function compositeFont(document, entry, unicode) {
  const encoding = entry("Encoding");
  const descendant = document.get((entry("DescendantFonts") ?? [])[0]);
  const usual = Number(document.entry(descendant, "DW") ?? 1000);
  const widths = widthsOf(document, document.entry(descendant, "W") ?? []);
  // Maps such as UniJIS-UTF16-H have the characters as codes.
  const direct = encoding instanceof Name && /^Uni.*(UCS2|UTF16)/.test(encoding.text);
  const read = (bytes) => {
    const made = [];
    for (let at = 0; at < bytes.length;) {
      const size = unicode ? unicode.sizeAt(bytes, at) : 2;
      const code = bytes.slice(at, at + size);
      const cid = [...code].reduce((sum, c) => sum * 256 + c.charCodeAt(0), 0);
      const text = unicode?.map.get(code) ?? (direct ? utf16(code) : UNKNOWN);
      made.push({ text, width: widths.get(cid) ?? usual, space: size === 1 && cid === 32 });
      at += size;
    }
    return made;
  };
  return { read };
}

/** /W: [first [w w …] first last w …]. */
function widthsOf(document, list) {
  const made = new Map();
  for (let i = 0; i < list.length;) {
    const [first, second] = [Number(document.get(list[i])), document.get(list[i + 1])];
    if (Array.isArray(second)) {
      second.forEach((width, k) => made.set(first + k, Number(document.get(width))));
      i += 2;
    } else {
      const last = Math.min(Number(second), first + MAX_RANGE);
      for (let cid = first; cid <= last; cid += 1) made.set(cid, Number(document.get(list[i + 2])));
      i += 3;
    }
  }
  return made;
}

const utf16 = (bytes) =>
  bytes.replace(/[^][^]/g, (pair) => String.fromCharCode(pair.charCodeAt(0) * 256 + pair.charCodeAt(1)));

/** A ToUnicode map: texts by code, and how many bytes the code at a place has. */
export function cmapOf(text) {
  const map = new Map();
  const sizes = new Set();
  const reader = new Reader(text);
  let operands = [];
  for (let item = reader.next(); item !== undefined; item = reader.next()) {
    if (!(item instanceof Word)) {
      operands.push(item);
      continue;
    }
    if (item.text === "endbfchar") {
      for (let i = 0; i + 1 < operands.length; i += 2) set(operands[i], operands[i + 1]);
    } else if (item.text === "endbfrange") {
      for (let i = 0; i + 2 < operands.length; i += 3) range(operands[i], operands[i + 1], operands[i + 2]);
    } else if (item.text === "endcodespacerange") {
      for (const code of operands) if (typeof code === "string") sizes.add(code.length);
    }
    operands = [];
  }

  function set(code, value) {
    if (typeof code === "string" && typeof value === "string") map.set(code, utf16(value));
    else if (typeof code === "string" && value instanceof Name) map.set(code, characterOf(value.text));
  }
  function range(first, last, value) {
    if (typeof first !== "string" || typeof last !== "string") return;
    const number = (code) => [...code].reduce((sum, c) => sum * 256 + c.charCodeAt(0), 0);
    const count = Math.min(number(last) - number(first) + 1, MAX_RANGE);
    for (let k = 0; k < count; k += 1) {
      if (Array.isArray(value)) set(plus(first, k), value[k]);
      else if (typeof value === "string") set(plus(first, k), plus(value, k));
    }
  }
  for (const code of map.keys()) sizes.add(code.length);
  const ordered = [...sizes].filter((size) => size > 0).sort();
  const sizeAt = (bytes, at) => ordered.find((size) => map.has(bytes.slice(at, at + size))) ?? ordered.at(-1) ?? 2;
  return { map, sizeAt };
}

/** A text of bytes as a number, plus `k`. */
function plus(bytes, k) {
  const made = [...bytes].map((c) => c.charCodeAt(0));
  for (let i = made.length - 1, carry = k; i >= 0 && carry; i -= 1) {
    carry += made[i];
    made[i] = carry & 255;
    carry >>= 8;
  }
  return String.fromCharCode(...made);
}
