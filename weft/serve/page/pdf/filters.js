// What a stream of a PDF file holds, decoded: FlateDecode with predictors, ASCII85Decode, ASCIIHexDecode.

import { bytesOf, Name, PdfError, textOf } from "./syntax.js";

const MAX_BYTES = 64 << 20;

/**
 * The bytes of a stream after all its filters.
 * @param {Uint8Array} bytes
 * @param {(key: string) => any} get  an entry of the stream's dictionary, with references followed
 */
export async function decodeStream(bytes, get) {
  const names = [get("Filter") ?? get("F") ?? []].flat();
  const parameters = [get("DecodeParms") ?? get("DP") ?? []].flat();
  let made = bytes;
  for (const [i, name] of names.entries()) {
    const kind = name instanceof Name ? name.text : "";
    if (kind === "FlateDecode" || kind === "Fl") made = predicted(await inflate(made), parameters[i]);
    else if (kind === "ASCII85Decode" || kind === "A85") made = ascii85(made);
    else if (kind === "ASCIIHexDecode" || kind === "AHx") made = ascii(textOf(made));
    else throw new PdfError(`the filter ${kind} is not supported`);
  }
  return made;
}

/** Files may have bytes after the compressed data, or be cut: what was decoded until then counts. */
async function inflate(bytes) {
  const stream = new DecompressionStream("deflate");
  const writer = stream.writable.getWriter();
  writer.write(bytes).catch(() => {});
  writer.close().catch(() => {});
  const reader = stream.readable.getReader();
  const parts = [];
  let size = 0;
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      parts.push(value);
      size += value.length;
      if (size > MAX_BYTES) throw new PdfError(`a stream has more than ${MAX_BYTES >> 20} MB`);
    }
  } catch (error) {
    if (error instanceof PdfError || size === 0) {
      reader.cancel().catch(() => {});
      throw error instanceof PdfError ? error : new PdfError("a compressed stream is damaged");
    }
  }
  const whole = new Uint8Array(size);
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

function predicted(bytes, parameters) {
  const number = (key, usual) => (typeof parameters?.get?.(key) === "number" ? parameters.get(key) : usual);
  const predictor = number("Predictor", 1);
  if (predictor < 2) return bytes;
  const pixel = Math.max(1, (number("Colors", 1) * number("BitsPerComponent", 8)) >> 3);
  const width = Math.ceil((number("Colors", 1) * number("BitsPerComponent", 8) * number("Columns", 1)) / 8);
  if (predictor === 2) throw new PdfError("TIFF predictors are not supported");
  const rows = Math.floor(bytes.length / (width + 1));
  const made = new Uint8Array(rows * width);
  for (let row = 0; row < rows; row += 1) {
    const kind = bytes[row * (width + 1)];
    for (let i = 0; i < width; i += 1) {
      const left = i >= pixel ? made[row * width + i - pixel] : 0;
      const up = row ? made[(row - 1) * width + i] : 0;
      const corner = row && i >= pixel ? made[(row - 1) * width + i - pixel] : 0;
      const guess = [0, left, up, (left + up) >> 1, paeth(left, up, corner)][kind] ?? 0;
      made[row * width + i] = bytes[row * (width + 1) + 1 + i] + guess;
    }
  }
  return made;
}

function paeth(left, up, corner) {
  const guess = left + up - corner;
  const [a, b, c] = [Math.abs(guess - left), Math.abs(guess - up), Math.abs(guess - corner)];
  return a <= b && a <= c ? left : b <= c ? up : corner;
}

const ascii = (text) => Uint8Array.from(bytesOf(text.split(">")[0].replace(/[^0-9a-fA-F]/g, "")), (c) => c.charCodeAt(0));

function ascii85(bytes) {
  const made = [];
  let group = [];
  const flush = (count) => {
    const value = group.reduce((sum, digit) => sum * 85 + digit, 0);
    for (let i = 0; i < count; i += 1) made.push(Math.floor(value / 256 ** (3 - i)) & 255);
    group = [];
  };
  for (const byte of bytes) {
    if (byte === 126) break; // ~>
    if (byte === 122 && !group.length) made.push(0, 0, 0, 0);
    else if (byte >= 33 && byte <= 117) group.push(byte - 33);
    if (group.length === 5) flush(4);
  }
  if (group.length > 1) {
    const count = group.length - 1;
    while (group.length < 5) group.push(84);
    flush(count);
  }
  return Uint8Array.from(made);
}
