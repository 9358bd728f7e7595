// Files and pictures beside the message that is being written: chosen, dropped or pasted, read at once, and shown.

import { openDialog } from "../ui/dialog.js";
import { h } from "../ui/dom.js";
import { icon, iconButton } from "../ui/icons.js";
import { whole } from "../ui/numbers.js";
import { toast } from "../ui/toast.js";
import { isPicture, PICTURES, readPicture } from "../files/pictures.js";
import { ACCEPTED, FileError, readFile } from "../files/read.js";

const MOST = 10;

/** A file as a chip, a picture as a small one of it; a click shows what the model gets. */
export function fileChip(file, remove = null) {
  if (file.picture) return pictureChip(file, remove);
  const count = file.text.length;
  const size = count === 1 ? "1 character" : `${whole(count)} characters`;
  const open = h(
    "button",
    { type: "button", class: "chip-main", title: "Show the text", on: { click: () => showFile(file) } },
    icon("file"),
    h("span", { class: "chip-name" }, file.name),
    h("small", { class: "numbers" }, [file.note, size].filter(Boolean).join(" · ")),
  );
  return h("li", { class: "chip" }, open, remove && iconButton("close", `Remove ${file.name}`, remove, { class: "small" }));
}

function pictureChip(file, remove) {
  const label = `Show ${file.name}, ${file.note}`;
  const shown = h("img", { src: file.picture, alt: "", draggable: "false" });
  const open = h("button", {
    type: "button",
    class: "chip-picture",
    title: label,
    "aria-label": label,
    on: { click: () => showPicture(file) },
  }, shown);
  const close = remove && iconButton("close", `Remove ${file.name}`, remove, { class: "small" });
  return h("li", { class: "chip picture" }, open, close);
}

function showPicture(file) {
  const words = h("p", {}, file.note);
  const large = h("img", { class: "file-picture", src: file.picture, alt: file.name });
  return openDialog(file.name, [words, large], [{ label: "Close", value: "ok", kind: "primary" }], "wide");
}

function showFile(file) {
  const text = h("pre", { class: "file-text", tabindex: 0 }, file.text);
  const words = h("p", {}, "This is the text that the model reads.");
  return openDialog(file.name, [words, text], [{ label: "Close", value: "ok", kind: "primary" }], "wide");
}

/**
 * @param {() => void} changed  called when a file was added or removed
 * @param {() => string} blind  why no picture can be attached now; "" where the model sees
 */
export function makeAttachments(changed, blind) {
  /** @type {import("./conversation.js").File[]} */
  let files = [];
  let reading = 0;
  const list = h("ul", { class: "chips", "aria-label": "Attached files", hidden: true });
  const input = h("input", { type: "file", multiple: true, accept: ACCEPTED, hidden: true, "aria-label": "Files" });
  const button = iconButton("clip", "Attach files", () => choose(), { class: "attach" });

  function choose() {
    input.accept = blind() ? ACCEPTED : `${PICTURES},${ACCEPTED}`;
    input.click();
  }
  function show() {
    const waiting = reading ? [h("li", { class: "chip reading", role: "status" }, "Reading…")] : [];
    list.replaceChildren(...files.map((file, i) => fileChip(file, () => remove(i))), ...waiting);
    list.hidden = !files.length && !reading;
    changed();
  }
  function remove(i) {
    files.splice(i, 1);
    show();
    button.focus();
  }
  async function add(given) {
    for (const file of given) {
      if (files.length >= MOST) {
        toast(`At most ${MOST} files can be attached to a message.`);
        break;
      }
      reading += 1;
      show();
      try {
        const picture = isPicture(file);
        if (picture && blind()) throw new FileError(`${file.name} is a picture, and ${blind()}`);
        files.push(await (picture ? readPicture : readFile)(file));
      } catch (error) {
        toast(error instanceof FileError ? error.message : `${file.name} could not be read: ${error.message}`);
      }
      reading -= 1;
      show();
    }
  }
  input.addEventListener("change", () => {
    add([...input.files]);
    input.value = "";
  });
  return {
    list,
    input,
    button,
    files: () => files,
    busy: () => reading > 0,
    set(next) {
      files = next;
      show();
    },
    /** Take files that are dropped on `area` or pasted into it. */
    listen(area) {
      const over = (on) => area.classList.toggle("dropping", on);
      area.addEventListener("dragover", (event) => {
        if (!event.dataTransfer?.types.includes("Files")) return;
        event.preventDefault();
        over(true);
      });
      area.addEventListener("dragleave", (event) => area.contains(event.relatedTarget) || over(false));
      area.addEventListener("drop", (event) => {
        over(false);
        if (!event.dataTransfer?.files.length) return;
        event.preventDefault();
        add([...event.dataTransfer.files]);
      });
      area.addEventListener("paste", (event) => {
        if (!event.clipboardData?.files.length) return;
        event.preventDefault();
        add([...event.clipboardData.files]);
      });
    },
  };
}
