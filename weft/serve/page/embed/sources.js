// Texts out of files and folders: their passages, and from which file each came.

import { FileError, readFile } from "../files/read.js";
import { isWanted, passages } from "../files/passages.js";
import { h } from "../ui/dom.js";
import { icon } from "../ui/icons.js";
import { toast } from "../ui/toast.js";

/** @type {Map<string, string>}  the file of a passage */
const origins = new Map();
export const originOf = (text) => origins.get(text) ?? "";

/**
 * Two buttons that add passages.
 * @param {(texts: string[]) => void} add
 * @param {number} most  how many texts can be embedded at once
 */
export function sourceButtons(add, most) {
  const input = (folder) => {
    const made = h("input", { type: "file", multiple: true, hidden: true, "aria-label": folder ? "Folder" : "Files" });
    if (folder) made.webkitdirectory = true;
    made.addEventListener("change", () => {
      read([...made.files]);
      made.value = "";
    });
    return made;
  };
  const [files, folder] = [input(false), input(true)];
  const button = (name, label, from) =>
    h("button", { type: "button", class: "button quiet small", on: { click: () => from.click() } }, icon(name), label);

  async function read(chosen) {
    const wanted = chosen.filter((file) => isWanted(file.webkitRelativePath || file.name));
    const found = [];
    const refused = [];
    for (const file of wanted) {
      const path = file.webkitRelativePath || file.name;
      try {
        const { text } = await readFile(file);
        for (const passage of passages(text)) {
          origins.set(passage, path);
          found.push(passage);
        }
      } catch (error) {
        refused.push(error instanceof FileError ? error.message : `${path}: ${error.message}`);
      }
    }
    add(found.slice(0, most));
    toast(summary(found.length, wanted.length - refused.length, refused, most));
  }
  return h("span", { class: "row" }, button("file", "Files", files), button("folder", "Folder", folder), files, folder);
}

function summary(found, files, refused, most) {
  const parts = [`${found} ${found === 1 ? "passage" : "passages"} from ${files} ${files === 1 ? "file" : "files"}.`];
  if (found > most) parts.push(`Only the first ${most} are taken; weft search has no such limit.`);
  if (refused.length) parts.push(refused.length === 1 ? refused[0] : `${refused.length} files were left out: ${refused[0]}`);
  return parts.join(" ");
}
