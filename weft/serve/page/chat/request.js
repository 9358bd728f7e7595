// From a conversation to the body of a request, and from the chunks of its answer to a reply. Pure functions.

import { contentOf, DEFAULTS, shownReply } from "./conversation.js";

const ALTERNATIVES = 8;
const MOST_CALLS = 100;
const NUMBERS = Object.keys(DEFAULTS).filter((name) => DEFAULTS[name] === null);

/** The value of a schema's text, or the reason why it is none. */
export function parseSchema(text) {
  const { value, error } = parsed(text);
  if (error || value === null) return { schema: null, error };
  if (typeof value !== "object" || Array.isArray(value)) return { schema: null, error: "A schema is a JSON object." };
  return { schema: value, error: "" };
}

/** The functions that a text lists, as the API takes them, or the reason why it lists none. */
export function parseTools(text) {
  const { value, error } = parsed(text);
  if (error || value === null) return { tools: [], error };
  const tools = [value].flat().map((tool) => (tool?.function ? tool : { type: "function", function: tool }));
  const wrong = tools.findIndex((tool) => typeof tool.function?.name !== "string" || !tool.function.name);
  return wrong < 0 ? { tools, error: "" } : { tools: [], error: `Function ${wrong + 1} has no name.` };
}

function parsed(text) {
  if (text.trim() === "") return { value: null, error: "" };
  try {
    return { value: JSON.parse(text), error: "" };
  } catch (error) {
    return { value: null, error: error.message };
  }
}

/** What a message of the user sends: its pictures and files first, then what was written; a text where it has none. */
export function sentContent({ content, files }) {
  const read = files.filter(({ picture }) => !picture);
  const blocks = read.map(({ name, text }) => `[File: ${name}]\n${text.trimEnd()}\n[End of ${name}]`);
  const text = [...blocks, content].filter(Boolean).join("\n\n");
  if (read.length === files.length) return text;
  const pictures = files.filter(({ picture }) => picture).map(({ picture }) => ({
    type: "image_url",
    image_url: { url: picture },
  }));
  return text ? [...pictures, { type: "text", text }] : pictures;
}

/** Messages without their pictures, and how many there were. */
export function withoutPictures(messages) {
  const pictures = messages.flatMap(({ files }) => files ?? []).filter(({ picture }) => picture).length;
  const left = messages.map((one) => one.files ? { ...one, files: one.files.filter(({ picture }) => !picture) } : one);
  return { messages: pictures ? left : messages, pictures };
}

/**
 * The request that continues `messages`. A setting that is null is left to the server.
 * @param {import("./conversation.js").Conversation} conversation
 * @param {import("./conversation.js").Message[]} messages
 */
export function bodyOf(conversation, messages) {
  const { settings } = conversation;
  const body = {
    model: conversation.adapter || conversation.model,
    messages: wireMessages(conversation, messages),
    stream: true,
    stream_options: { include_usage: true },
  };
  for (const name of NUMBERS) if (settings[name] !== null) body[name] = settings[name];
  if (settings.probabilities) Object.assign(body, { logprobs: true, top_logprobs: ALTERNATIVES });
  const tools = toolsOf(conversation);
  if (tools.length) body.tools = tools;
  if (settings.json) {
    const { schema } = parseSchema(settings.schema);
    body.response_format = schema
      ? { type: "json_schema", json_schema: { name: "answer", strict: true, schema } }
      : { type: "json_object" };
  }
  return body;
}

/** The tools that are offered: none while the reply must be JSON, since a call would not be. */
export const toolsOf = ({ settings }) => (settings.json ? [] : parseTools(settings.tools).tools);

/** Messages in the shape of the API, after the system prompt. */
export function wireMessages(conversation, messages) {
  const system = conversation.system.trim() ? [{ role: "system", content: conversation.system }] : [];
  return [...system, ...messages.flatMap((message, i) => wired(message, i, messages[i + 1]?.role === "tool"))];
}

function wired(message, index, answered) {
  if (message.role === "user") return [{ role: "user", content: sentContent(message) }];
  if (message.role === "tool") {
    return message.results.map(({ content }, i) => ({ role: "tool", tool_call_id: callId(index - 1, i), content }));
  }
  const reply = shownReply(message);
  // A reply that failed before it said anything is no part of the conversation.
  if (!contentOf(message) && reply.error) return [];
  const calls = answered
    ? reply.calls.map(([name, text], i) => ({
      id: callId(index, i),
      type: "function",
      function: { name, arguments: isObject(text) ? text : "{}" },
    }))
    : [];
  return [{ role: "assistant", content: contentOf(message), ...(calls.length ? { tool_calls: calls } : {}) }];
}

/** Nine letters and digits, the form that some chat templates insist on. */
const callId = (message, call) => `c${String(message).padStart(5, "0")}${String(call).padStart(3, "0")}`;

function isObject(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value);
  } catch {
    return false;
  }
}

/**
 * Take one chunk of the stream into the reply.
 * @param {import("./conversation.js").Reply} reply
 * @param {any} chunk
 * @param {number} before  tokens that the reply had when this stream began to continue it
 */
export function takeChunk(reply, chunk, before = 0) {
  if (chunk.usage) reply.count = before + (chunk.usage.completion_tokens ?? reply.count - before);
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const delta = choice.delta ?? {};
  reply.content += delta.content ?? "";
  reply.reasoning += delta.reasoning_content ?? "";
  for (const call of delta.tool_calls ?? []) {
    const place = call.index ?? 0;
    while (reply.calls.length <= Math.min(place, MOST_CALLS)) reply.calls.push(["", ""]);
    const found = reply.calls[place];
    if (!found) continue;
    found[0] += call.function?.name ?? "";
    found[1] += call.function?.arguments ?? "";
  }
  if (choice.finish_reason) reply.finish = choice.finish_reason;
  for (const token of choice.logprobs?.content ?? []) {
    reply.tokens.push([
      token.token,
      token.logprob,
      (token.top_logprobs ?? []).map((other) => [other.token, other.logprob]),
    ]);
  }
  if (!chunk.usage && (delta.content || delta.reasoning_content || delta.tool_calls)) reply.count += 1;
}

/** Tokens a second after the first token, or null before there is a rate. */
export function rateOf(reply) {
  const span = reply.seconds - reply.first;
  return reply.count > 1 && span > 0 ? (reply.count - 1) / span : null;
}
