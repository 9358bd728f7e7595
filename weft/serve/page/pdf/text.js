// The text of a PDF file, page by page, in the order in which it is drawn. It says so where a file has no text, is
// encrypted, or has fonts that do not say which characters their glyphs are.

import { openDocument, Stream } from "./document.js";
import { openFont } from "./fonts.js";
import { Name, PdfError, Reader, textOf, Word } from "./syntax.js";

const DEPTH = 8;
const MAX_OPERATORS = 5_000_000;
const UNREADABLE = 0.2; // the share of characters without a meaning above which the text is refused
const SPACE_EM = 0.16; // a gap between two pieces that is a space
const LINE_EM = 0.4; // how far a line may wander up and down, as for indices
const PARAGRAPH = 1.7; // the distance of two lines, in sizes of the font, above which a paragraph ends

/**
 * @param {Uint8Array} bytes
 * @returns {Promise<{pages: string[], empty: number}>}  `empty` counts the pages without text
 */
export async function pdfText(bytes) {
  const document = await openDocument(bytes);
  const pages = document.pages();
  if (!pages.length) throw new PdfError("the PDF has no pages");
  const fonts = new Map();
  const made = [];
  for (const page of pages) made.push(await pageText(document, page, fonts));
  const texts = made.map((each) => each.text);
  const whole = texts.join("");
  const letters = (whole.match(/[\p{L}\p{N}]/gu) ?? []).length;
  const unknown = (whole.match(/\ufffd/g) ?? []).length;
  if (letters + unknown === 0) {
    const words = pages.length === 1 ? "its page is a picture" : `its ${pages.length} pages are pictures`;
    throw new PdfError(`the PDF has no text: ${words}. Run text recognition (OCR) on it first`);
  }
  if (unknown > UNREADABLE * (letters + unknown)) {
    throw new PdfError("its fonts do not say which characters they show. Print it to a new PDF, or copy the text");
  }
  return { pages: texts, empty: texts.filter((text) => text.trim() === "").length };
}

async function pageText(document, { node, resources }, fonts) {
  const contents = [document.get(node.get("Contents")) ?? []].flat().map((item) => document.get(item));
  const parts = [];
  for (const stream of contents) if (stream instanceof Stream) parts.push(textOf(await document.data(stream)));
  const writer = new Writer();
  const drawing = new Drawing(document, fonts, writer);
  await drawing.run(parts.join("\n"), resources, 0);
  return { text: writer.text() };
}

/** Puts pieces of text together: a new line where the height changes, a space where there is a gap. */
class Writer {
  constructor() {
    this.parts = [];
    this.last = null;
  }

  add(text, x, y, end, size) {
    const last = this.last;
    if (last) {
      const drop = Math.abs(y - last.y);
      const gap = x - last.end;
      if (drop > LINE_EM * Math.max(size, last.size)) this.parts.push(drop > PARAGRAPH * last.size ? "\n\n" : "\n");
      else if (gap > SPACE_EM * size || gap < -size) this.parts.push(" ");
    }
    this.parts.push(text);
    this.last = { y, end, size };
  }

  text() {
    const text = this.parts.join("").replace(/\0/g, "").replace(/[ \u00a0]*\n/g, "\n").replace(/ {2,}/g, " ");
    return text.replace(/(\p{Ll})[-\u00ad]\n(?=\p{Ll})/gu, "$1").replace(/\u00ad/g, "").trim().normalize("NFC");
  }
}

const times = ([a, b, c, d, e, f], [g, h, i, j, k, l]) => [
  a * g + b * i,
  a * h + b * j,
  c * g + d * i,
  c * h + d * j,
  e * g + f * i + k,
  e * h + f * j + l,
];
const IDENTITY = [1, 0, 0, 1, 0, 0];

/** Runs the operators of a content stream that move and show text. */
class Drawing {
  constructor(document, fonts, writer) {
    Object.assign(this, { document, fonts, writer, operators: 0 });
    this.state = { matrix: IDENTITY, font: null, size: 1, spacing: 0, words: 0, scale: 1, leading: 0 };
    this.stack = [];
    this.line = this.place = IDENTITY;
  }

  async run(text, resources, depth) {
    const reader = new Reader(text);
    let operands = [];
    for (let item = reader.next(); item !== undefined; item = reader.next()) {
      if (!(item instanceof Word)) {
        if (operands.length < 100) operands.push(item);
        continue;
      }
      if ((this.operators += 1) > MAX_OPERATORS) throw new PdfError("the PDF draws too much to be read here");
      if (item.text === "BI") skipImage(reader);
      else if (item.text === "Tf") await this.setFont(operands, resources);
      else if (item.text === "Do") await this.form(operands[0], resources, depth);
      else this[`op_${NAMES[item.text] ?? item.text}`]?.(...operands);
      operands = [];
    }
  }

  async setFont([name, size], resources) {
    if (!(name instanceof Name)) return;
    const fonts = this.document.entry(resources, "Font");
    const reference = fonts instanceof Map ? fonts.get(name.text) : undefined;
    const font = this.document.get(reference);
    if (font && !this.fonts.has(font)) this.fonts.set(font, await openFont(this.document, reference));
    this.state.font = this.fonts.get(font) ?? null;
    this.state.size = Number(size) || 1;
  }

  async form(name, resources, depth) {
    const found = this.document.entry(this.document.entry(resources, "XObject"), name?.text);
    if (!(found instanceof Stream) || found.dictionary.get("Subtype")?.text !== "Form" || depth >= DEPTH) return;
    this.op_q();
    const matrix = this.document.entry(found, "Matrix");
    if (Array.isArray(matrix) && matrix.length === 6) this.op_cm(...matrix.map((value) => Number(this.document.get(value))));
    const own = this.document.entry(found, "Resources") ?? resources;
    await this.run(textOf(await this.document.data(found)), own, depth + 1);
    this.op_Q();
  }

  op_q() {
    this.stack.push({ ...this.state });
  }
  op_Q() {
    this.state = this.stack.pop() ?? this.state;
  }
  op_cm(...matrix) {
    if (matrix.length === 6 && matrix.every(Number.isFinite)) this.state.matrix = times(matrix, this.state.matrix);
  }
  op_BT() {
    this.line = this.place = IDENTITY;
  }
  op_Tm(...matrix) {
    if (matrix.length === 6) this.line = this.place = matrix.map(Number);
  }
  op_Td(x, y) {
    this.line = this.place = times([1, 0, 0, 1, Number(x) || 0, Number(y) || 0], this.line);
  }
  op_TD(x, y) {
    this.state.leading = -Number(y) || 0;
    this.op_Td(x, y);
  }
  op_next() {
    this.op_Td(0, -this.state.leading);
  }
  op_Tc(value) {
    this.state.spacing = Number(value) || 0;
  }
  op_Tw(value) {
    this.state.words = Number(value) || 0;
  }
  op_Tz(value) {
    this.state.scale = Number(value) / 100 || 1;
  }
  op_TL(value) {
    this.state.leading = Number(value) || 0;
  }
  op_Tj(text) {
    this.op_TJ([text]);
  }
  op_quote(text) {
    this.op_next();
    this.op_Tj(text);
  }
  op_quotes(words, spacing, text) {
    this.op_Tw(words);
    this.op_Tc(spacing);
    this.op_quote(text);
  }
  op_TJ(items) {
    for (const item of Array.isArray(items) ? items : []) {
      if (typeof item === "string") this.show(item);
      else if (typeof item === "number") this.advance((-item / 1000) * this.state.size * this.state.scale);
    }
  }

  advance(width) {
    this.place = times([1, 0, 0, 1, width, 0], this.place);
  }

  show(bytes) {
    const { font, size, spacing, words, scale } = this.state;
    if (!font) return;
    const start = times(this.place, this.state.matrix);
    let text = "";
    for (const glyph of font.read(bytes)) {
      text += glyph.text;
      this.advance(((glyph.width / 1000) * size + spacing + (glyph.space ? words : 0)) * scale);
    }
    const end = times(this.place, this.state.matrix);
    // Along the line of writing, so that turned text is read too.
    const length = Math.hypot(start[0], start[1]) || 1;
    const [ux, uy] = [start[0] / length, start[1] / length];
    const along = (matrix) => matrix[4] * ux + matrix[5] * uy;
    const across = start[5] * ux - start[4] * uy;
    const em = Math.abs(size) * Math.hypot(start[2], start[3]);
    if (text) this.writer.add(text, along(start), across, along(end), em || 1);
  }
}

const NAMES = { "T*": "next", "'": "quote", '"': "quotes" };

/** Past the bytes of an image that lies in the content itself. */
function skipImage(reader) {
  const start = reader.text.indexOf("ID", reader.at);
  const end = /[\s]EI(?=[\s]|$)/g;
  end.lastIndex = start < 0 ? reader.text.length : start;
  const found = end.exec(reader.text);
  reader.at = found ? end.lastIndex : reader.text.length;
}
