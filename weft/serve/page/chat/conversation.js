// What a conversation is, and how one is read that may come from a file or an older page: parts that do not fit are left
// out.

import { pictureUrl } from "../files/pictures.js";

/**
 * A token: its text, its log probability, and the likeliest tokens in its place with theirs.
 * @typedef {[string, number, [string, number][]]} Token
 * A call of a tool: its name and its arguments, which are JSON once they are whole.
 * @typedef {[string, string]} Call
 * A reply. `finish` is OPEN while it is written; `first` is seconds to the first token; `stream` and `event` say where
 * to go on reading after a lost connection; `full` marks an error because the context is full.
 * @typedef {{content: string, reasoning: string, calls: Call[], tokens: Token[], model: string, finish: string,
 *   error: string, full: boolean, count: number, seconds: number, first: number, stream: string, event: number}} Reply
 * A file as the model reads it: its text, or the data: URL of a picture; `note` says what was left out.
 * @typedef {{name: string, text: string, note: string, picture?: string}} File
 * @typedef {{role: "user", content: string, files: File[]} | {role: "assistant", replies: Reply[], shown: number}
 *   | {role: "tool", results: {name: string, content: string}[]}} Message
 * @typedef {{temperature: number|null, top_p: number|null, top_k: number|null, min_p: number|null,
 *   presence_penalty: number|null, frequency_penalty: number|null, repetition_penalty: number|null,
 *   seed: number|null, max_tokens: number|null, probabilities: boolean, json: boolean, schema: string, tools: string,
 *   roll: boolean}} Settings  `roll`: leave out the oldest messages by itself when the context is full
 * A conversation. The first `dropped` messages are shown but no longer sent; `queue` holds messages that wait.
 * @typedef {{id: string, title: string, updated: number, model: string, adapter: string, system: string,
 *   settings: Settings, messages: Message[], dropped: number, queue: {content: string, files: File[]}[]}} Conversation
 */

export const OPEN = "open";
export const INTERRUPTED = "interrupted";

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
  tools: "",
  roll: false,
};

const MAX_MESSAGES = 2000;
const MAX_TITLE = 80;
const MAX_QUEUE = 20;
const MAX_FILES = 20;

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
    dropped: 0,
    queue: [],
  };
}

/** @returns {Reply} */
export function makeReply(model) {
  const texts = { content: "", reasoning: "", model, finish: "", error: "", stream: "" };
  return { ...texts, calls: [], tokens: [], full: false, count: 0, seconds: 0, first: 0, event: -1 };
}

/** The reply that is shown of an assistant's message. */
export const shownReply = (message) => message.replies[message.shown];

/** What a message says, whoever says it. */
export const contentOf = (message) =>
  message.role === "user"
    ? message.content
    : message.role === "tool"
    ? message.results.map(({ content }) => content).join("\n\n")
    : shownReply(message).content;

/** Where the last reply stands: the reply, or null where the last message is not one. */
export function lastReply(conversation) {
  const last = conversation.messages.at(-1);
  return last?.role === "assistant" ? shownReply(last) : null;
}

export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const first = conversation.messages.find((message) => message.role === "user");
  if (!first) return "New conversation";
  return first.content.trim().split("\n")[0].slice(0, MAX_TITLE) || first.files[0]?.name || "Untitled";
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
  conversation.dropped = Math.min(Math.max(Math.trunc(asNumber(raw.dropped)), 0), conversation.messages.length);
  conversation.queue = asList(raw.queue).slice(0, MAX_QUEUE).map((item) => ({
    content: asText(item?.content),
    files: readFiles(item?.files),
  }));
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
  if (raw?.role === "user") {
    const files = [...readFiles(raw.files), ...picturesOfParts(raw.content)];
    return { role: "user", content: textOfParts(raw.content), files };
  }
  if (raw?.role === "tool") return readResults(raw);
  if (raw?.role !== "assistant") return null;
  const replies = asList(raw.replies).length
    ? raw.replies
    : [{ content: textOfParts(raw.content), reasoning: asText(raw.reasoning_content), model: raw.model }];
  const read = replies.slice(0, 100).map(readReply);
  return {
    role: "assistant",
    replies: read,
    shown: Math.min(Math.max(Math.trunc(asNumber(raw.shown)), 0), read.length - 1),
  };
}

/** A text, or the texts of a list of parts. */
const textOfParts = (content) =>
  Array.isArray(content) ? content.map((part) => asText(part?.text ?? part)).filter(Boolean).join("\n") : asText(content);

/** The pictures of a list of parts in the OpenAI shape. */
const picturesOfParts = (content) =>
  asList(content).map((part) => pictureUrl(part?.image_url?.url)).filter(Boolean).slice(0, MAX_FILES)
    .map((picture, i) => ({ name: `picture ${i + 1}`, text: "", note: "", picture }));

const readFiles = (raw) =>
  asList(raw).slice(0, MAX_FILES).filter((file) => file?.name).map((file) => {
    const picture = pictureUrl(file.picture);
    return { name: asText(file.name), text: asText(file.text), note: asText(file.note), ...(picture && { picture }) };
  });

function readResults(raw) {
  const results = asList(raw.results).map((result) => ({ name: asText(result?.name), content: asText(result?.content) }));
  if (!results.length && asText(raw.content)) results.push({ name: asText(raw.name), content: raw.content });
  return results.length ? { role: "tool", results } : null;
}

function readReply(raw) {
  const reply = makeReply(asText(raw?.model));
  for (const name of ["content", "reasoning", "finish", "error", "stream"]) reply[name] = asText(raw?.[name]);
  for (const name of ["count", "seconds", "first"]) reply[name] = asNumber(raw?.[name]);
  reply.event = asNumber(raw?.event, -1);
  reply.full = raw?.full === true;
  reply.calls = asList(raw?.calls).filter(Array.isArray).map(([name, text]) => [asText(name), asText(text)]);
  reply.tokens = asList(raw?.tokens).map(readToken).filter(Boolean);
  return reply;
}

function readToken(raw) {
  if (!Array.isArray(raw) || typeof raw[0] !== "string") return null;
  const others = asList(raw[2]).filter((pair) => Array.isArray(pair) && typeof pair[0] === "string");
  return [raw[0], asNumber(raw[1]), others.slice(0, 20).map(([text, logprob]) => [text, asNumber(logprob)])];
}
