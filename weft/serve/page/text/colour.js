// A little colour for code: comments, strings, numbers and words that most languages share. One pass, one expression,
// no grammar; what it does not know stays plain.

import { h } from "../ui/dom.js";

const LIMIT = 50_000;
const HASH = new Set([
  "python",
  "py",
  "bash",
  "sh",
  "shell",
  "zsh",
  "ruby",
  "rb",
  "yaml",
  "yml",
  "toml",
  "r",
  "perl",
  "make",
  "makefile",
  "dockerfile",
]);
const DASH = new Set(["sql", "lua", "haskell", "hs"]);
const PLAIN = new Set(["", "text", "txt", "markdown", "md", "plaintext", "output", "console", "diff", "html", "xml"]);
const WORDS = new Set((
  "abstract and as assert async await begin bool boolean break case catch char class const constexpr continue def default defer del delete do double elif else end enum except export extends extern false False final finally float fn for from func function go goto if impl implements import in include instanceof int interface is lambda let local long loop match mod module mut namespace new nil None not null nullptr or override package pass pub public private protected raise ref return self short signed sizeof static std string struct super switch template then this throw throws trait true True try type typedef typename union unsigned use using var void volatile when where while with yield " +
  "SELECT FROM WHERE INSERT INTO VALUES UPDATE SET CREATE TABLE JOIN LEFT RIGHT INNER ON GROUP ORDER BY LIMIT AND OR NOT NULL AS DISTINCT HAVING"
).split(" "));

const STRING = String.raw`"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?`;
const NUMBER = String.raw`\b\d[\w.]*`;
const WORD = String.raw`[A-Za-z_$][\w$]*`;

function pattern(language) {
  const comment = HASH.has(language)
    ? "#[^\\n]*"
    : DASH.has(language)
    ? "--[^\\n]*"
    : String.raw`//[^\n]*|/\*[^]*?(?:\*/|$)`;
  const long = language.startsWith("py")
    ? String.raw`"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|`
    : language.startsWith("j") || language.startsWith("t")
    ? "`[^`]*`?|"
    : "";
  return new RegExp(`(?<comment>${comment})|(?<string>${long}${STRING})|(?<number>${NUMBER})|(?<word>${WORD})`, "g");
}

/** @returns {(Node|string)[]} */
export function colour(text, language) {
  const name = language.toLowerCase();
  if (PLAIN.has(name) || text.length > LIMIT) return [text];
  const nodes = [];
  let at = 0;
  for (const found of text.matchAll(pattern(name))) {
    const kind = Object.keys(found.groups).find((group) => found.groups[group] !== undefined);
    if (kind === "word" && !WORDS.has(found[0])) continue;
    if (found.index > at) nodes.push(text.slice(at, found.index));
    nodes.push(h("span", { class: `code-${kind}` }, found[0]));
    at = found.index + found[0].length;
  }
  nodes.push(text.slice(at));
  return nodes;
}
