// Conversations from files and to files: this page's own, lists of messages in the OpenAI shape, and the exports of
// ChatGPT and Open WebUI. Pure functions.

import { contentOf, readConversation, shownReply, titleOf } from "./conversation.js";

const MAX_CONVERSATIONS = 5000;

/** Every conversation that a file's text holds; throws SyntaxError where the text is not JSON. */
export function readFileText(text) {
  const raw = JSON.parse(text);
  const items = Array.isArray(raw) && raw.some((item) => item?.role) ? [{ messages: raw }] : [raw].flat();
  const found = items.slice(0, MAX_CONVERSATIONS).map((item) => readConversation(asOurs(item)));
  return found.filter((one) => one?.messages.length);
}

/** What another program exports, in this page's shape. */
function asOurs(raw) {
  if (raw?.mapping && typeof raw.mapping === "object") return fromChatGpt(raw);
  if (raw?.chat && typeof raw.chat === "object") return fromOpenWebUi(raw);
  return raw;
}

/** ChatGPT keeps a tree of messages: the path from the current node to the root is the conversation. */
function fromChatGpt(raw) {
  const path = [];
  const seen = new Set();
  let id = raw.current_node ?? Object.keys(raw.mapping).at(-1);
  for (; id && raw.mapping[id] && !seen.has(id); id = raw.mapping[id].parent) {
    seen.add(id);
    path.unshift(raw.mapping[id].message);
  }
  const messages = path.filter((message) => ["user", "assistant"].includes(message?.author?.role)).map((message) => ({
    role: message.author.role,
    content: (message.content?.parts ?? []).filter((part) => typeof part === "string").join("\n"),
    model: message.metadata?.model_slug,
  }));
  return { title: raw.title, updated: milliseconds(raw.update_time), messages: messages.filter(({ content }) => content) };
}

function fromOpenWebUi(raw) {
  const { chat } = raw;
  const messages = Array.isArray(chat.messages) ? chat.messages : Object.values(chat.history?.messages ?? {});
  return { title: chat.title ?? raw.title, updated: milliseconds(raw.updated_at), system: chat.system, messages };
}

const milliseconds = (time) => (typeof time === "number" ? (time < 1e11 ? time * 1000 : time) : undefined);

/** The conversation as a page of Markdown. */
export function toMarkdown(conversation) {
  const parts = [`# ${titleOf(conversation)}`];
  if (conversation.system) parts.push(`**System**\n\n${conversation.system}`);
  for (const message of conversation.messages) parts.push(section(message));
  return `${parts.join("\n\n---\n\n")}\n`;
}

function section(message) {
  if (message.role === "tool") {
    return message.results.map(({ name, content }) => `**Result of \`${name}\`**\n\n${fenced(content)}`).join("\n\n");
  }
  const user = message.role === "user";
  const who = user ? "You" : shownReply(message).model || "Assistant";
  const calls = user ? [] : shownReply(message).calls.map(([name, text]) => `Calls \`${name}\`\n\n${fenced(text, "json")}`);
  const files = user ? message.files.map(({ name, picture }) => `${picture ? "Picture" : "File"}: ${name}`) : [];
  return `**${who}**\n\n${[...files, contentOf(message), ...calls].filter(Boolean).join("\n\n")}`;
}

const fenced = (text, language = "") => `\`\`\`${language}\n${text}\n\`\`\``;
