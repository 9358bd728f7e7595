// Passages of files, for searching: paragraphs, short ones joined and long ones cut at sentences. Pure.

const SHORT = 160; // letters below which a paragraph is joined with the next one
const LONG = 600; // letters above which it is cut
const SKIPPED = /(^|\/)(\.[^/]+|node_modules|__pycache__|venv)(\/|$)/;

/** Whether a file of a chosen folder is looked at; hidden ones and those that programs make are not. */
export const isWanted = (path) => !SKIPPED.test(path);

/** @returns {string[]}  each on one line */
export function passages(text) {
  const made = [];
  let open = "";
  for (const paragraph of text.split(/\n\s*\n/).map((each) => each.replace(/\s+/g, " ").trim()).filter(Boolean)) {
    open = open ? `${open} ${paragraph}` : paragraph;
    if (open.length < SHORT) continue;
    made.push(...cut(open));
    open = "";
  }
  return open ? [...made, ...cut(open)] : made;
}

function cut(text) {
  if (text.length <= LONG) return [text];
  const made = [""];
  for (const sentence of text.match(/.{1,500}?(?:[.!?]["')]? |$)|.{1,500}(?: |$)|.{1,500}/g)) {
    if (made.at(-1) && made.at(-1).length + sentence.length > LONG) made.push("");
    made[made.length - 1] += sentence;
  }
  return made.map((each) => each.trim()).filter(Boolean);
}
