// Files that a user attaches, as text: plain text and Markdown, and PDF by its own text. Others are refused by name.

import { pdfText } from "../pdf/text.js";
import { PdfError } from "../pdf/syntax.js";
import { bytes } from "../ui/numbers.js";

/** A file that cannot be read; the message says why and what to do. */
export class FileError extends Error {}

const MAX_TEXT_BYTES = 2_000_000;
const MAX_PDF_BYTES = 50_000_000;
const KINDS = [
  [/\.(png|jpe?g|gif|webp|bmp|tiff?|heic|svg)$/i, "is an image; the models here read text only"],
  [/\.(docx?|odt|rtf|pages)$/i, "is a word-processor file; save it as PDF or plain text first"],
  [/\.(xlsx?|ods|numbers)$/i, "is a spreadsheet; save it as CSV first"],
  [/\.(pptx?|odp|key)$/i, "is a presentation; save it as PDF first"],
  [/\.(zip|gz|bz2|xz|7z|rar|tar)$/i, "is an archive; unpack it first"],
  [/\.(mp3|wav|ogg|flac|m4a|mp4|mov|avi|mkv|webm)$/i, "is audio or video; the models here read text only"],
];

/** What a file dialog offers first; any file of text can be chosen. */
export const ACCEPTED = ".txt,.md,.markdown,.pdf,.csv,.tsv,.json,.jsonl,.xml,.html,.yaml,.yml,.toml,.ini,.log,.tex,.rst,.py," +
  ".js,.ts,.c,.h,.cpp,.java,.go,.rs,.rb,.sh,.sql,.css,text/*,application/pdf";

/**
 * @param {File} file
 * @returns {Promise<{name: string, text: string, note: string}>}  `note` says how it was read and what is missing
 */
export async function readFile(file) {
  for (const [names, words] of KINDS) if (names.test(file.name)) throw new FileError(`${file.name} ${words}.`);
  const isPdf = /\.pdf$/i.test(file.name) || file.type === "application/pdf";
  const limit = isPdf ? MAX_PDF_BYTES : MAX_TEXT_BYTES;
  if (file.size > limit) {
    throw new FileError(`${file.name} has ${bytes(file.size)}; at most ${bytes(limit)} can be attached.`);
  }
  const content = new Uint8Array(await file.arrayBuffer());
  const read = isPdf ? await fromPdf(file.name, content) : fromText(file.name, content);
  if (!read.text.trim()) throw new FileError(`${file.name} is empty.`);
  return { name: file.name, ...read };
}

async function fromPdf(name, content) {
  try {
    const { pages, empty } = await pdfText(content);
    const count = `${pages.length} ${pages.length === 1 ? "page" : "pages"}`;
    const note = empty ? `${count}, ${empty} without text` : count;
    return { text: pages.filter((page) => page).join("\n\n"), note };
  } catch (error) {
    if (!(error instanceof PdfError)) throw error;
    throw new FileError(`${name} cannot be read: ${error.message}.`);
  }
}

function fromText(name, content) {
  const marked = { "255,254": "utf-16le", "254,255": "utf-16be" }[content.subarray(0, 2).join()];
  if (marked) return { text: clean(new TextDecoder(marked).decode(content)), note: "" };
  if (content.subarray(0, 8000).includes(0)) {
    throw new FileError(`${name} is not text: it has zero bytes. Text, Markdown and PDF files can be attached.`);
  }
  try {
    return { text: clean(new TextDecoder("utf-8", { fatal: true }).decode(content)), note: "" };
  } catch {
    return { text: clean(new TextDecoder("windows-1252").decode(content)), note: "read as Windows-1252" };
  }
}

const clean = (text) => text.replace(/\r\n?/g, "\n");
