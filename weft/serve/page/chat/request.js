// From a conversation to the body of a request, and from the chunks of its answer to a reply. Pure functions.

import { contentOf, DEFAULTS, shownReply } from "./conversation.js";

const ALTERNATIVES = 8;
const MOST_CALLS = 100;

/** The value of a schema's text, or the reason why it is none. */
export function parseSchema(text) {
  if (text.trim() === "") return { schema: null, error: "" };
  try {
    const schema = JSON.parse(text);
    if (typeof schema !== "object" || schema === null || Array.isArray(schema)) {
      return { schema: null, error: "A schema is a JSON object." };
    }
    return { schema, error: "" };
  } catch (error) {
    return { schema: null, error: error.message };
  }
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
    messages: [],
    stream: true,
    stream_options: { include_usage: true },
  };
  if (conversation.system.trim()) body.messages.push({ role: "system", content: conversation.system });
  for (const message of messages) {
    // A reply that failed before it said anything is no part of the conversation.
    if (message.role === "user" || contentOf(message) || !shownReply(message).error) {
      body.messages.push({ role: message.role, content: contentOf(message) });
    }
  }
  const numbers = Object.keys(DEFAULTS).filter((name) => DEFAULTS[name] === null);
  for (const name of numbers) if (settings[name] !== null) body[name] = settings[name];
  if (settings.probabilities) Object.assign(body, { logprobs: true, top_logprobs: ALTERNATIVES });
  if (settings.json) {
    const { schema } = parseSchema(settings.schema);
    body.response_format = schema
      ? { type: "json_schema", json_schema: { name: "answer", strict: true, schema } }
      : { type: "json_object" };
  }
  return body;
}

/**
 * Take one chunk of the stream into the reply.
 * @param {import("./conversation.js").Reply} reply
 */
export function takeChunk(reply, chunk) {
  if (chunk.usage) reply.count = chunk.usage.completion_tokens ?? reply.count;
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
