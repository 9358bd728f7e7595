// Pictures that a user attaches, as data: URLs: large ones are made smaller, so that they can be sent and kept.

import { bytes, whole } from "../ui/numbers.js";
import { FileError } from "./read.js";

const KINDS = new Set(["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"]);
const NAMES = /\.(png|jpe?g|webp|gif|bmp|tiff?|heic|heif|avif|svg)$/i;
const MAX_BYTES = 50_000_000;
const MAX_PIXELS = 40_000_000;
const LONGEST = 1536; // pixels of the longer side of what is sent
const KEPT_BYTES = 400_000; // a file that is not larger is sent as it is
const QUALITY = 0.9;
const MOST_LETTERS = 8_000_000;

/** What a file dialog offers for a model that sees. */
export const PICTURES = ".png,.jpg,.jpeg,.webp,.gif,.bmp";

/** Whether a file is a picture by its type or its name, of any kind. */
export const isPicture = (file) => file.type.startsWith("image/") || NAMES.test(file.name);

/** A data: URL of a kind of picture that is sent, or "" for anything else. */
export function pictureUrl(value) {
  const fits = typeof value === "string" && value.length <= MOST_LETTERS;
  return fits && /^data:image\/(png|jpeg|webp|gif|bmp);base64,[A-Za-z0-9+/]+=*$/.test(value) ? value : "";
}

/**
 * @param {File} file
 * @returns {Promise<{name: string, text: string, note: string, picture: string}>}  `note` has its size
 */
export async function readPicture(file) {
  if (!KINDS.has(file.type)) {
    throw new FileError(`${file.name} is a picture of another kind; save it as PNG, JPEG or WebP first.`);
  }
  if (file.size > MAX_BYTES) {
    throw new FileError(`${file.name} has ${bytes(file.size)}; a picture can have at most ${bytes(MAX_BYTES)}.`);
  }
  const bitmap = await createImageBitmap(file).catch(() => null);
  if (!bitmap) throw new FileError(`${file.name} cannot be read as a picture; the file may be damaged.`);
  const { width, height } = bitmap;
  try {
    if (width * height > MAX_PIXELS) {
      const most = `${whole(MAX_PIXELS / 1e6)} million`;
      throw new FileError(`${file.name} has ${width} × ${height} pixels; a picture can have at most ${most}.`);
    }
    const keep = file.size <= KEPT_BYTES && Math.max(width, height) <= LONGEST;
    const made = keep ? { url: await urlOf(file), width, height } : await smaller(bitmap);
    const size = `${width} × ${height}`;
    const note = made.width === width ? size : `${size}, sent as ${made.width} × ${made.height}`;
    return { name: file.name || "picture", text: "", note, picture: made.url };
  } finally {
    bitmap.close();
  }
}

/** The picture as a JPEG file whose longer side is at most LONGEST, on white where it is transparent. */
async function smaller(bitmap) {
  const scale = Math.min(1, LONGEST / Math.max(bitmap.width, bitmap.height));
  const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.round(side * scale)));
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0, width, height);
  const blob = await canvas.convertToBlob({ type: "image/jpeg", quality: QUALITY });
  return { url: await urlOf(blob), width, height };
}

function urlOf(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
