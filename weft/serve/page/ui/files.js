// Files to and from the user, and the clipboard.

import { h } from "./dom.js";
import { bytes } from "./numbers.js";
import { toast } from "./toast.js";

export function saveFile(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // some browsers begin the download later
}

/** The texts of the files that the user chooses, or null; larger files than `limit` bytes are refused. */
export function chooseFiles(accept, limit) {
  return new Promise((resolve) => {
    const input = h("input", { type: "file", accept, multiple: true, hidden: true, "aria-label": "Files" });
    input.addEventListener("cancel", () => {
      input.remove();
      resolve(null);
    });
    input.addEventListener("change", () => {
      const files = [...input.files];
      input.remove();
      const large = files.find((file) => file.size > limit);
      if (large) toast(`${large.name} has ${bytes(large.size)}; at most ${bytes(limit)} can be read.`);
      const read = files.map(async (file) => ({ name: file.name, text: await file.text() }));
      resolve(large || !files.length ? null : Promise.all(read));
    });
    document.body.append(input);
    input.click();
  });
}

/** Copy, also where the page is not in a secure context and has no clipboard interface. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", { class: "hidden-text", value: text, "aria-hidden": "true" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  toast("Copied.");
}

/** A word that is safe in a file name. */
export function fileName(title) {
  return title.normalize("NFKD").replace(/[^\w -]/g, "").trim().replace(/\s+/g, "-").slice(0, 60).toLowerCase() ||
    "conversation";
}
