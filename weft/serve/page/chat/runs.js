// Replies that are being written. Each conversation has at most one; it goes on while another conversation is shown.

import { postStream } from "../api/client.js";
import { bodyOf, takeChunk } from "./request.js";
import { keep } from "./store.js";

/** @type {Map<string, AbortController>} */
const running = new Map();
const SAVE_EVERY_MS = 2000;

export const isRunning = (id) => running.has(id);
export const stopRun = (id) => running.get(id)?.abort();

/**
 * Write `reply`, the last of the conversation, and call `changed` as it grows and once when it has ended.
 * @param {import("./conversation.js").Conversation} conversation
 * @param {import("./conversation.js").Reply} reply
 * @param {(ended: boolean) => void} changed
 */
export async function startRun(conversation, reply, changed) {
  const control = new AbortController();
  running.set(conversation.id, control);
  const start = performance.now();
  const seconds = () => (performance.now() - start) / 1000;
  let saved = start;
  const body = bodyOf(conversation, conversation.messages.slice(0, -1));
  try {
    for await (const chunk of postStream("v1/chat/completions", body, { signal: control.signal })) {
      takeChunk(reply, chunk);
      if (reply.count && !reply.first) reply.first = seconds();
      if (!reply.finish) reply.seconds = seconds();
      if (performance.now() - saved > SAVE_EVERY_MS) {
        saved = performance.now();
        keep(conversation);
      }
      changed(false);
    }
  } catch (error) {
    if (control.signal.aborted) reply.finish = "stopped";
    else reply.error = error.message;
  }
  reply.seconds ||= seconds();
  running.delete(conversation.id);
  conversation.updated = Date.now();
  keep(conversation);
  changed(true);
}
