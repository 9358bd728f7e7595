// What a conversation is, and how one is read that may come from a file or an older page: whatever does not fit is dropped.

/**
 * A token: its text, its log probability, and the likeliest tokens in its place with theirs.
 * @typedef {[string, number, [string, number][]]} Token
 * A call of a tool: its name and its arguments, which are JSON once they are whole.
 * @typedef {[string, string]} Call
 * @typedef {{content: string, reasoning: string, calls: Call[], tokens: Token[], model: string, finish: string,
 *   error: string, count: number, seconds: number, first: number}} Reply  `first`: seconds to the first token
 * @typedef {{role: "user", content: string} | {role: "assistant", replies: Reply[], shown: number}} Message
 * @typedef {{temperature: number|null, top_p: number|null, top_k: number|null, min_p: number|null,
 *   presence_penalty: number|null, frequency_penalty: number|null, repetition_penalty: number|null,
 *   seed: number|null, max_tokens: number|null, probabilities: boolean, json: boolean, schema: string}} Settings
 * @typedef {{id: string, title: string, updated: number, model: string, adapter: string, system: string,
 *   settings: Settings, messages: Message[]}} Conversation
 */

/** @type {Settings} */
export const DEFAULTS = {
  temperature: null,
  top_p: null,
  top_k: null,
  min_p: null,
  presence_penalty: null,
  frequency_penalty: null,
  repetition_penalty: null,
  seed: null,
  max_tokens: null,
  probabilities: false,
  json: false,
  schema: "",
};

const MAX_MESSAGES = 2000;
const MAX_TITLE = 80;

/** @returns {Conversation} */
export function makeConversation(like = {}) {
  return {
    id: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random().toString(36).slice(2)}`,
    title: "",
    updated: Date.now(),
    model: like.model ?? "",
    adapter: like.adapter ?? "",
    system: like.system ?? "",
    settings: { ...DEFAULTS, ...like.settings },
    messages: [],
  };
}

/** @returns {Reply} */
export function makeReply(model) {
  const texts = { content: "", reasoning: "", model, finish: "", error: "" };
  return { ...texts, calls: [], tokens: [], count: 0, seconds: 0, first: 0 };
}

/** The reply that is shown of an assistant's message. */
export const shownReply = (message) => message.replies[message.shown];

/** What a message says, whoever says it. */
export const contentOf = (message) => (message.role === "user" ? message.content : shownReply(message).content);

export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const first = conversation.messages.find((message) => message.role === "user");
  return first ? first.content.trim().split("\n")[0].slice(0, MAX_TITLE) || "Untitled" : "New conversation";
}

const asText = (value) => (typeof value === "string" ? value : "");
const asNumber = (value, otherwise = 0) => (typeof value === "number" && Number.isFinite(value) ? value : otherwise);
const asList = (value) => (Array.isArray(value) ? value : []);

/**
 * A conversation out of untrusted data, or null where it is none.
 * @returns {Conversation|null}
 */
export function readConversation(raw) {
  if (typeof raw !== "object" || raw === null || !Array.isArray(raw.messages)) return null;
  const conversation = makeConversation();
  if (/^[\w-]{8,64}$/.test(asText(raw.id))) conversation.id = raw.id;
  conversation.title = asText(raw.title).slice(0, MAX_TITLE);
  conversation.updated = asNumber(raw.updated, Date.now());
  for (const name of ["model", "adapter", "system"]) conversation[name] = asText(raw[name]);
  conversation.settings = readSettings(raw.settings ?? {});
  for (const message of raw.messages.slice(0, MAX_MESSAGES).map(readMessage)) {
    if (message) conversation.messages.push(message);
  }
  return conversation;
}

/** @returns {Settings} */
export function readSettings(raw) {
  const settings = { ...DEFAULTS };
  for (const [name, usual] of Object.entries(DEFAULTS)) {
    const value = raw?.[name];
    if (usual === null ? Number.isFinite(value) : typeof value === typeof usual) settings[name] = value;
  }
  return settings;
}

/** Also takes the messages of the OpenAI shape: an assistant's `content` is one reply. */
function readMessage(raw) {
  if (raw?.role === "user") return { role: "user", content: asText(raw.content) };
  if (raw?.role !== "assistant") return null;
  const replies = asList(raw.replies).length
    ? raw.replies
    : [{ content: asText(raw.content), reasoning: asText(raw.reasoning_content) }];
  const read = replies.slice(0, 100).map(readReply);
  return {
    role: "assistant",
    replies: read,
    shown: Math.min(Math.max(Math.trunc(asNumber(raw.shown)), 0), read.length - 1),
  };
}

function readReply(raw) {
  const reply = makeReply(asText(raw?.model));
  for (const name of ["content", "reasoning", "finish", "error"]) reply[name] = asText(raw?.[name]);
  for (const name of ["count", "seconds", "first"]) reply[name] = asNumber(raw?.[name]);
  reply.calls = asList(raw?.calls).filter(Array.isArray).map(([name, text]) => [asText(name), asText(text)]);
  reply.tokens = asList(raw?.tokens).map(readToken).filter(Boolean);
  return reply;
}

function readToken(raw) {
  if (!Array.isArray(raw) || typeof raw[0] !== "string") return null;
  const others = asList(raw[2]).filter((pair) => Array.isArray(pair) && typeof pair[0] === "string");
  return [raw[0], asNumber(raw[1]), others.slice(0, 20).map(([text, logprob]) => [text, asNumber(logprob)])];
}

/** The conversation as a page of Markdown. */
export function toMarkdown(conversation) {
  const parts = [`# ${titleOf(conversation)}`];
  if (conversation.system) parts.push(`**System**\n\n${conversation.system}`);
  for (const message of conversation.messages) {
    const who = message.role === "user" ? "You" : shownReply(message).model || "Assistant";
    const calls = message.role === "user" ? [] : shownReply(message).calls;
    const blocks = calls.map(([name, text]) => `Calls \`${name}\`\n\n\`\`\`json\n${text}\n\`\`\``);
    const said = [contentOf(message), ...blocks];
    parts.push(`**${who}**\n\n${said.filter(Boolean).join("\n\n")}`);
  }
  return `${parts.join("\n\n---\n\n")}\n`;
}
