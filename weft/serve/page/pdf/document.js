// A PDF file as its objects and pages. The file is read from its start to its end and the last definition of an object
// counts, so that damaged tables of offsets do not matter; objects inside of compressed streams are read too.

import { decodeStream } from "./filters.js";
import { Name, PdfError, Reader, Ref, textOf, Word } from "./syntax.js";

const OBJECT = /(\d+)[\0\t\n\f\r ]+(\d+)[\0\t\n\f\r ]+obj\b|\btrailer\b/g;
const MAX_PAGES = 3000;
const MAX_DEPTH = 50;

/** A stream: its dictionary, and its bytes as they lie in the file. */
export class Stream {
  constructor(dictionary, bytes) {
    this.dictionary = dictionary;
    this.bytes = bytes;
  }
}

/** @param {Uint8Array} bytes @returns {Promise<Document>} */
export async function openDocument(bytes) {
  const text = textOf(bytes);
  if (!/%PDF-\d/.test(text.slice(0, 2048))) throw new PdfError("this is not a PDF file");
  const document = new Document();
  document.scan(text, bytes);
  if (document.trailer.has("Encrypt")) {
    throw new PdfError("the PDF is encrypted; open it with its password and print it to a new PDF");
  }
  await document.expand();
  return document;
}

class Document {
  constructor() {
    /** @type {Map<number, any>} */
    this.objects = new Map();
    this.trailer = new Map();
    /** @type {[number, any][]}  in the order of the file */
    this.found = [];
  }

  scan(text, bytes) {
    OBJECT.lastIndex = 0;
    for (let match = OBJECT.exec(text); match; match = OBJECT.exec(text)) {
      const reader = new Reader(text, OBJECT.lastIndex);
      const value = reader.next();
      if (match[1] === undefined) {
        if (value instanceof Map) this.add(value);
      } else {
        const whole = value instanceof Map ? streamAt(reader, value, text, bytes) : null;
        this.found.push([Number(match[1]), whole ?? value]);
        if (whole && this.isXref(value)) this.add(value);
      }
      OBJECT.lastIndex = Math.max(reader.at, OBJECT.lastIndex);
    }
    for (const [number, value] of this.found) this.objects.set(number, value);
  }

  isXref(dictionary) {
    return dictionary.get("Type")?.text === "XRef";
  }

  add(trailer) {
    for (const [key, value] of trailer) this.trailer.set(key, value);
  }

  /** Read the objects inside of object streams, each at its stream's place in the file. */
  async expand() {
    this.objects.clear();
    for (const [number, value] of this.found) this.objects.set(number, value);
    const inside = [];
    for (const [at, [, value]] of this.found.entries()) {
      if (!(value instanceof Stream) || value.dictionary.get("Type")?.text !== "ObjStm") continue;
      inside.push([at, await this.unpacked(value)]);
    }
    this.objects.clear();
    const streams = new Map(inside);
    for (const [at, [number, value]] of this.found.entries()) {
      this.objects.set(number, value);
      for (const [other, made] of streams.get(at) ?? []) this.objects.set(other, made);
    }
    this.found = [];
  }

  async unpacked(stream) {
    const text = textOf(await this.data(stream));
    const count = Number(this.get(stream.dictionary.get("N"))) || 0;
    const first = Number(this.get(stream.dictionary.get("First"))) || 0;
    const heads = new Reader(text);
    const made = [];
    for (let i = 0; i < count; i += 1) {
      const [number, offset] = [heads.next(), heads.next()];
      if (typeof number !== "number" || typeof offset !== "number") break;
      made.push([number, new Reader(text, first + offset).next()]);
    }
    return made;
  }

  /** What a reference stands for; anything else is itself. */
  get(value, depth = 0) {
    if (!(value instanceof Ref)) return value;
    return depth < MAX_DEPTH ? this.get(this.objects.get(value.number), depth + 1) : undefined;
  }

  /** An entry of a dictionary or of a stream's dictionary. */
  entry(value, key) {
    const whole = this.get(value);
    const dictionary = whole instanceof Stream ? whole.dictionary : whole;
    return dictionary instanceof Map ? this.get(dictionary.get(key)) : undefined;
  }

  /** The decoded bytes of a stream. */
  data(stream) {
    const get = (key) => {
      const value = this.get(stream.dictionary.get(key));
      return Array.isArray(value) ? value.map((item) => this.get(item)) : value;
    };
    return decodeStream(stream.bytes, get);
  }

  /** Pages in their order, each with the resources that it has or inherits. */
  pages() {
    const found = [];
    const seen = new Set();
    const visit = (reference, resources, depth) => {
      const node = this.get(reference);
      if (!(node instanceof Map) || seen.has(node) || depth > MAX_DEPTH || found.length >= MAX_PAGES) return;
      seen.add(node);
      const own = this.get(node.get("Resources")) ?? resources;
      const kids = this.get(node.get("Kids"));
      if (Array.isArray(kids)) { for (const kid of kids) visit(kid, own, depth + 1); }
      else found.push({ node, resources: own });
    };
    visit(this.entry(this.trailer.get("Root"), "Pages"), undefined, 0);
    if (found.length) return found;
    // No tree that leads anywhere: take whatever says that it is a page.
    for (const value of this.objects.values()) {
      if (value instanceof Map && value.get("Type") instanceof Name && value.get("Type").text === "Page") {
        found.push({ node: value, resources: this.get(value.get("Resources")) });
      }
    }
    return found.slice(0, MAX_PAGES);
  }
}

/** The stream after a dictionary, or null where there is none. */
function streamAt(reader, dictionary, text, bytes) {
  const before = reader.at;
  const word = reader.next();
  if (!(word instanceof Word) || word.text !== "stream") {
    reader.at = before;
    return null;
  }
  const start = reader.at + (text[reader.at] === "\r" && text[reader.at + 1] === "\n" ? 2 : 1);
  const stated = dictionary.get("Length");
  // A length may be a reference to an object that comes later, or wrong: then the end is looked for.
  let end = typeof stated === "number" ? start + stated : -1;
  if (end < 0 || !/^\s{0,2}endstream/.test(text.slice(end, end + 12))) {
    end = text.indexOf("endstream", start);
    if (end < 0) end = text.length;
    if (text[end - 1] === "\n") end -= 1;
    if (text[end - 1] === "\r") end -= 1;
  }
  reader.at = end;
  return new Stream(dictionary, bytes.subarray(start, end));
}
