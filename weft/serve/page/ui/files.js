// Files to and from the user, and the clipboard.

import { h } from "./dom.js";
import { toast } from "./toast.js";

export function saveFile(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // some browsers begin the download later
}

/** The text of a file that the user chooses, or null; larger files than `limit` bytes are refused. */
export function chooseFile(accept, limit) {
  return new Promise((resolve) => {
    const input = h("input", { type: "file", accept, hidden: true, "aria-label": "File" });
    input.addEventListener("cancel", () => {
      input.remove();
      resolve(null);
    });
    input.addEventListener("change", () => {
      const file = input.files[0];
      input.remove();
      if (file && file.size > limit) toast(`${file.name} has ${file.size} bytes; at most ${limit} are read.`);
      resolve(file && file.size <= limit ? file.text() : null);
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
