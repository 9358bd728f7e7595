// Replies that are being written. Each conversation has at most one; it goes on while another conversation is shown, and
// after a lost connection or a refresh it is read on from where it was.

import { BrokenOff, readStream, sendDelete } from "../api/client.js";
import { INTERRUPTED, lastReply, OPEN } from "./conversation.js";
import { bodyOf, takeChunk } from "./request.js";
import { conversations, keep } from "./store.js";

/** @type {Map<string, {control: AbortController, conversation: import("./conversation.js").Conversation}>} */
const running = new Map();
const SAVE_EVERY_MS = 2000;
const KEPT_S = 60; // the server goes on for so long when nobody reads
const TRIES = 4;
const ANSWER_MS = 250;
const tabs = new BroadcastChannel("weft.runs");
let leaving = false;

export const isRunning = (id) => running.has(id);

export function stopRun(id) {
  const run = running.get(id);
  if (!run) return;
  const { stream } = lastReply(run.conversation) ?? {};
  if (stream) sendDelete(`weft/streams/${stream}`);
  run.control.abort();
}

/**
 * Write `reply`, the last of the conversation, and call `changed` as it grows and once when it has ended.
 * @param {import("./conversation.js").Conversation} conversation
 * @param {import("./conversation.js").Reply} reply
 * @param {(ended: boolean) => void} changed
 * @param {"start"|"continue"|"rejoin"} how  a new reply, more of one that ended early, or the rest of an open stream
 */
export async function startRun(conversation, reply, changed, how = "start") {
  const control = new AbortController();
  running.set(conversation.id, { control, conversation });
  const [start, before, count] = [performance.now(), reply.seconds, reply.count];
  const seconds = () => before + (performance.now() - start) / 1000;
  let saved = start;
  Object.assign(reply, { finish: OPEN, error: "", full: false });
  const take = ({ chunk, number }) => {
    takeChunk(reply, chunk, how === "continue" ? count : 0);
    reply.event = number;
    if (reply.count && !reply.first) reply.first = seconds();
    if (reply.finish === OPEN) reply.seconds = seconds();
    if (performance.now() - saved > SAVE_EVERY_MS) {
      saved = performance.now();
      keep(conversation);
    }
    changed(false);
  };
  try {
    await readAll(conversation, reply, control.signal, how, take);
    if (reply.finish === OPEN) reply.finish = "stop";
  } catch (error) {
    if (control.signal.aborted) reply.finish = "stopped";
    else if (how === "rejoin" && !(error instanceof BrokenOff)) reply.finish = INTERRUPTED; // the server forgot it
    else Object.assign(reply, { error: error.message, finish: "", full: error.code === "context_length_exceeded" });
  }
  if (leaving) return; // what was kept below says where to go on
  reply.seconds ||= seconds();
  reply.stream = "";
  running.delete(conversation.id);
  conversation.updated = Date.now();
  keep(conversation);
  changed(true);
}

/** Read the stream to its end; one that breaks off is joined again, unless the server does not keep it. */
async function readAll(conversation, reply, signal, how, take) {
  let source = how === "rejoin" ? rejoin(reply, signal) : open(conversation, reply, signal, how);
  for (let tries = 0;; tries += 1) {
    try {
      for await (const event of source) take(event);
      return;
    } catch (error) {
      if (!(error instanceof BrokenOff) || !reply.stream || tries === TRIES || signal.aborted) throw error;
      await new Promise((done) => setTimeout(done, 300 * 2 ** tries));
      source = rejoin(reply, signal);
    }
  }
}

function open(conversation, reply, signal, how) {
  const messages = conversation.messages.slice(conversation.dropped, how === "continue" ? undefined : -1);
  const body = bodyOf(conversation, messages);
  if (how === "continue") Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
  const opened = (response) => Object.assign(reply, { stream: response.headers.get("x-weft-stream") ?? "", event: -1 });
  return readStream("v1/chat/completions", { body, signal, opened, headers: { "x-weft-rejoin": String(KEPT_S) } });
}

const rejoin = (reply, signal) => readStream(`weft/streams/${reply.stream}?starting_after=${reply.event}`, { signal });

/**
 * Conversations whose reply was open when the page was closed, and that no other tab writes.
 * @returns {Promise<import("./conversation.js").Conversation[]>}
 */
export async function interruptedRuns() {
  const open = conversations().filter((one) => lastReply(one)?.finish === OPEN && !isRunning(one.id));
  if (!open.length) return [];
  const taken = new Set();
  const hear = ({ data }) => taken.add(data.runs);
  tabs.addEventListener("message", hear);
  tabs.postMessage({ asks: true });
  await new Promise((done) => setTimeout(done, ANSWER_MS));
  tabs.removeEventListener("message", hear);
  return open.filter((one) => !taken.has(one.id) && !isRunning(one.id));
}

tabs.addEventListener("message", ({ data }) => {
  if (data.asks) { for (const id of running.keys()) tabs.postMessage({ runs: id }); }
});
// What has been written is kept, with its place in the stream, before the page goes.
addEventListener("pagehide", () => {
  for (const { conversation } of running.values()) keep(conversation);
  leaving = true;
});
addEventListener("pageshow", () => {
  leaving = false;
});
