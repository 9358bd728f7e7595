// Calls of tools in a reply: what the model asks for, and a form in which the user gives the results.

import { freshId, h } from "../ui/dom.js";
import { codeBlock } from "../text/markdown.js";

/** An object or a list that a text consists of, indented; null for anything else. */
export function asJson(text) {
  if (!/^\s*[{[]/.test(text)) return null;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

/** @param {import("./conversation.js").Call} call */
function callView([name, text], running, ...more) {
  const shown = (running ? null : asJson(text)) ?? text;
  const inside = [h("p", { class: "call-name" }, name), codeBlock(shown, "json"), ...more];
  return h("section", { class: "call", "aria-label": `Call of ${name}` }, ...inside);
}

/** The calls as they are, for a reply that is still written or already answered. */
export const callsView = (calls, running) => calls.map((call) => callView(call, running));

/**
 * The calls with a field each for its result.
 * @param {import("./conversation.js").Call[]} calls
 * @param {(results: {name: string, content: string}[]) => void} answer
 */
export function callsForm(calls, answer) {
  const areas = calls.map(([name]) =>
    h("textarea", { id: freshId("result"), rows: 2, placeholder: `What ${name} returns, as text or JSON`, required: true })
  );
  const send = h("button", { type: "submit", class: "button primary small" }, calls.length > 1 ? "Send results" : "Send result");
  const form = h(
    "form",
    { class: "calls-form" },
    ...calls.map((call, i) =>
      callView(
        call,
        false,
        h("div", { class: "field" }, h("label", { for: areas[i].id }, `Result of ${call[0]}`), areas[i]),
      )
    ),
    h("div", { class: "row between" }, h("span", { class: "hint" }, "Nothing is called: you give the result."), send),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    answer(calls.map(([name], i) => ({ name, content: areas[i].value.trim() })));
  });
  return form;
}

/** A message that holds results. */
export function toolMessage(message) {
  const parts = message.results.map(({ name, content }) => {
    const json = asJson(content);
    return h(
      "details",
      { class: "result", open: content.length < 400 },
      h("summary", {}, "Result of ", h("code", {}, name)),
      codeBlock(json ?? content, json ? "json" : "text"),
    );
  });
  return { element: h("article", { class: "message tool", "aria-label": "Results" }, ...parts), update() {} };
}
