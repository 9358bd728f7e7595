// A reply as its tokens, coloured by how likely each was. One tab stop; arrow keys go from token to token, and the
// token under the pointer or the focus shows what else could have stood there.

import { freshId, h } from "../ui/dom.js";

const STEPS = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -Infinity, End: Infinity };

function percent(logprob) {
  const value = Math.exp(logprob) * 100;
  if (value >= 99.95) return "100 %";
  return value >= 0.01 ? `${value.toFixed(value >= 10 ? 1 : 2)} %` : "< 0.01 %";
}

/** Spaces and line ends as something that can be seen. */
const visible = (text) =>
  text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length)) || "∅";

/** Five steps from likely (no colour) to a surprise. */
function step(logprob) {
  const p = Math.exp(logprob);
  return p > 0.9 ? 0 : p > 0.6 ? 1 : p > 0.3 ? 2 : p > 0.1 ? 3 : 4;
}

/** @param {import("./conversation.js").Token[]} tokens */
export function tokensView(tokens) {
  const card = h("div", { class: "token-card", id: freshId("token"), role: "tooltip", hidden: true });
  const text = h("div", {
    class: "token-text",
    role: "group",
    "aria-label": "Tokens of the reply; arrow keys move between them",
  });
  const spans = tokens.map((token, i) =>
    h("span", {
      class: `token p${step(token[1])}`,
      tabindex: i ? -1 : 0,
      role: "button",
      "aria-describedby": card.id,
      "aria-label": `${visible(token[0])}, ${percent(token[1])}`,
      data: { at: i },
    }, token[0])
  );
  text.append(...spans);

  const show = (span) => showCard(card, span, tokens[span.dataset.at]);
  const tokenAt = (event) => event.target.closest?.(".token");
  text.addEventListener("mouseover", (event) => tokenAt(event) && show(tokenAt(event)));
  text.addEventListener("focusin", (event) => show(tokenAt(event)));
  text.addEventListener("click", (event) => tokenAt(event)?.focus());
  text.addEventListener("mouseleave", () => {
    if (!text.contains(document.activeElement)) card.hidden = true;
  });
  text.addEventListener("focusout", () => {
    card.hidden = true;
  });
  text.addEventListener("keydown", (event) => {
    const at = Number(document.activeElement.dataset.at ?? 0);
    if (event.key === "Escape" && !card.hidden) {
      event.preventDefault();
      card.hidden = true;
    }
    if (!(event.key in STEPS)) return;
    event.preventDefault();
    const next = spans[Math.min(Math.max(at + STEPS[event.key], 0), spans.length - 1)];
    spans[at].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  return h("div", { class: "tokens" }, legend(tokens), text, card);
}

function legend(tokens) {
  const names = ["over 90 %", "60", "30", "10", "below 10 %"];
  const mean = tokens.reduce((sum, token) => sum + token[1], 0) / tokens.length;
  const steps = names.map((name, i) => h("span", { class: `token p${i}` }, name));
  return h(
    "div",
    { class: "token-legend" },
    h("span", {}, "Probability"),
    ...steps,
    h("span", { class: "numbers" }, `perplexity ${Math.exp(-mean).toFixed(2)}`),
  );
}

function showCard(card, span, [text, logprob, others]) {
  const rows = others.some(([other]) => other === text) ? others : [[text, logprob], ...others];
  card.replaceChildren(h(
    "ol",
    {},
    ...rows.map(([other, p]) => {
      const fill = h("span", { class: "token-bar" });
      fill.style.width = `${Math.max(Math.exp(p) * 100, 0.5)}%`;
      return h(
        "li",
        { class: other === text ? "chosen" : null },
        h("code", {}, visible(other)),
        h("span", { class: "token-track" }, fill),
        h("span", { class: "numbers" }, percent(p)),
      );
    }),
  ));
  card.hidden = false;
  const box = card.parentElement.getBoundingClientRect();
  const rect = [...span.getClientRects()].at(-1) ?? span.getBoundingClientRect();
  const left = Math.min(Math.max(rect.left - box.left, 0), Math.max(box.width - card.offsetWidth, 0));
  card.style.left = `${left}px`;
  // Above the token where there is no room below it.
  const room = card.closest(".scroller").getBoundingClientRect().bottom - rect.bottom;
  const above = room < card.offsetHeight + 12;
  card.style.top = `${(above ? rect.top - card.offsetHeight - 6 : rect.bottom + 6) - box.top}px`;
}
