// Conversations in the browser's own storage, each under a key of its own, so that two tabs do not overwrite each other.

import { keysOf, recall, recallJson, remember } from "../ui/memory.js";
import { toast } from "../ui/toast.js";
import { readConversation } from "./conversation.js";

const PREFIX = "weft.chat.";
const LAST = "weft.last";

/** @type {Map<string, import("./conversation.js").Conversation>} */
const kept = new Map();
const listeners = new Set();
let warned = false;

export function loadConversations() {
  for (const key of keysOf(PREFIX)) take(key);
  addEventListener("storage", (event) => {
    if (!event.key?.startsWith(PREFIX)) return;
    if (event.newValue === null) kept.delete(event.key.slice(PREFIX.length));
    else take(event.key);
    tell();
  });
}

function take(key) {
  const conversation = readConversation(recallJson(key, null));
  if (conversation) kept.set(conversation.id, conversation);
}

function tell() {
  for (const react of listeners) react();
}

export const onStore = (react) => listeners.add(react);
export const conversations = () => [...kept.values()].sort((a, b) => b.updated - a.updated);
export const conversation = (id) => kept.get(id);
export const lastOpen = () => recall(LAST);
export const setLastOpen = (id) => remember(LAST, id);

/** Keep a conversation. When the storage is full, token probabilities of other conversations go first. */
export function keep(one) {
  kept.set(one.id, one);
  // An empty conversation is not worth a place in the list of the next visit.
  if (one.messages.length && !write(one) && !makeRoom(one) && !warned) {
    warned = true;
    toast("This browser's storage is full: the conversation is not saved. Export it, or delete older ones.");
  }
  tell();
}

/** Drop the probabilities of other conversations, the oldest first, until this one fits; whether it does. */
function makeRoom(one) {
  const others = conversations().reverse().filter((other) => other.id !== one.id);
  return others.some((other) => dropTokens(other) && write(other) && write(one));
}

function write(one) {
  return remember(PREFIX + one.id, JSON.stringify(one));
}

function dropTokens(one) {
  let dropped = false;
  for (const message of one.messages) {
    for (const reply of message.replies ?? []) {
      dropped ||= reply.tokens.length > 0;
      reply.tokens = [];
    }
  }
  return dropped;
}

export function forget(id) {
  kept.delete(id);
  remember(PREFIX + id, null);
  tell();
}
