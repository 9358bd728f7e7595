// How much of the model's context the conversation takes, and which of its oldest messages would have to go.

import { postJson } from "../api/client.js";
import { modelNamed } from "../api/models.js";
import { h } from "../ui/dom.js";
import { whole } from "../ui/numbers.js";
import { toolsOf, wireMessages, withoutPictures } from "./request.js";

const WAIT_MS = 350;
const LETTERS_PER_TOKEN = 4; // an estimate, for models that are not loaded
const REPLY_TOKENS = 1024; // room for a reply that has no limit of its own
const NEARLY = 0.8;
const START = { "aria-valuemin": 0, "aria-valuemax": 1, "aria-valuenow": 0 };

/** Tokens that a request with these messages takes, as the model's own template writes them. */
async function countTokens(conversation, messages) {
  const tools = toolsOf(conversation);
  const body = { model: conversation.adapter || conversation.model, messages: wireMessages(conversation, messages) };
  if (tools.length) body.tools = tools;
  const answer = await postJson("apply-template", body, { quiet: true });
  return answer.tokens;
}

/** How many tokens of messages leave room for a reply. */
function roomFor(conversation) {
  const { context } = modelNamed(conversation.model) ?? { context: 0 };
  const reply = Math.min(conversation.settings.max_tokens ?? REPLY_TOKENS, Math.ceil(context / 4));
  return context - reply;
}

/**
 * The first message that can stay so that the rest fits: it is the user's, so that an answer never stands alone. Null
 * where not even the last one fits.
 */
export async function oldestThatFits(conversation, messages) {
  const starts = [...messages.keys()].filter((i) => messages[i].role === "user");
  const room = roomFor(conversation);
  let [low, high] = [0, starts.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (await countTokens(conversation, messages.slice(starts[middle])) < room) high = middle;
    else low = middle + 1;
  }
  return starts[low] ?? null;
}

/**
 * A bar that shows how full the context is with what is written now.
 * @param {() => import("./conversation.js").Conversation} current
 * @param {() => {content: string, files: import("./conversation.js").File[]}} draft
 */
export function makeMeter(current, draft) {
  const bar = h("span", { class: "meter-bar" });
  const words = h("span", { class: "numbers" });
  const element = h(
    "div",
    { class: "meter", role: "meter", "aria-label": "Context used", hidden: true, ...START },
    h("span", { class: "meter-track" }, bar),
    words,
  );
  let timer = 0;
  let asked = 0;

  function update() {
    clearTimeout(timer);
    timer = setTimeout(measure, WAIT_MS);
  }

  async function measure() {
    const one = current();
    const model = modelNamed(one.model);
    const mine = (asked += 1);
    element.hidden = !model?.context;
    if (!model?.context) return;
    const { content, files } = draft();
    const more = content.trim() || files.length ? [{ role: "user", content, files }] : [];
    const { messages, pictures } = withoutPictures([...one.messages.slice(one.dropped), ...more]);
    const wire = wireMessages(one, messages);
    let tokens = wire.length ? null : 0;
    if (tokens === null && model.state === "ready") {
      tokens = await countTokens(one, messages).catch(() => null) ?? null; // a template may refuse a half conversation
    }
    if (mine !== asked) return;
    const exact = tokens !== null;
    const letters = wire.reduce((sum, message) => sum + message.content.length, 0);
    show(tokens ?? Math.ceil(letters / LETTERS_PER_TOKEN), exact, model.context, pictures);
  }

  function show(tokens, exact, context, pictures) {
    const share = tokens / context;
    bar.style.width = `${Math.min(share, 1) * 100}%`;
    element.dataset.state = share >= 1 ? "full" : share >= NEARLY ? "nearly" : "";
    words.textContent = `${exact ? "" : "about "}${whole(tokens)} of ${whole(context)} tokens` +
      (pictures ? `, and ${pictures === 1 ? "a picture" : `${pictures} pictures`}` : "");
    element.title = share >= 1
      ? "The context is full. The oldest messages have to be left out."
      : "How much of the model's context the conversation and the next message take";
    element.setAttribute("aria-valuemax", String(context));
    element.setAttribute("aria-valuenow", String(Math.min(tokens, context)));
    element.setAttribute("aria-valuetext", words.textContent);
  }
  return { element, update };
}
