// The conversation that is open and what can be done with it: open, start, send, edit, regenerate, continue, undo.

import { blindWords } from "../api/models.js";
import { recallJson, remember } from "../ui/memory.js";
import { toast } from "../ui/toast.js";
import { oldestThatFits } from "./context.js";
import { INTERRUPTED, lastReply, makeConversation, makeReply, readSettings } from "./conversation.js";
import { parseSchema, parseTools } from "./request.js";
import { interruptedRuns, isRunning, startRun, stopRun } from "./runs.js";
import { conversation, conversations, keep, lastOpen, onStore, setLastOpen } from "./store.js";

const USUAL = "weft.settings";
const SAVE_AFTER_MS = 300;

/**
 * Who hears of it: `shown` when another conversation or other messages are to be shown, `grew` when the last reply has
 * more text, `changed` when anything else did, `ended` when a reply of any conversation is complete or has failed.
 * @typedef {{shown: () => void, grew: () => void, changed: () => void,
 *   ended: (reply: import("./conversation.js").Reply) => void}} Listener
 */
export class Session {
  /** @param {Listener} listener */
  constructor(listener) {
    this.listener = listener;
    this.current = conversation(lastOpen() ?? "") ?? conversations()[0] ?? fresh();
    onStore(() => this.#follow());
  }

  /** Go on reading replies that were under way when the page was closed. */
  async resume() {
    for (const one of await interruptedRuns()) {
      const reply = lastReply(one);
      if (reply.stream) this.#run(one, reply, "rejoin");
      else reply.finish = INTERRUPTED;
      if (one.id === this.current.id) this.#show();
    }
  }

  open(id) {
    this.current = conversation(id) ?? this.current;
    this.#show();
  }

  /** A new conversation, or the one that is still empty. */
  start() {
    if (this.current.messages.length || !conversation(this.current.id)) this.current = fresh();
    keep(this.current);
    this.#show();
  }

  /** Send a message, or let it wait until the reply is complete; false where that cannot be, and the user was told why. */
  send(content, files = []) {
    const one = this.current;
    if (isRunning(one.id)) {
      one.queue.push({ content, files });
      keep(one);
      this.listener.changed();
      return true;
    }
    if (!this.#ready(files)) return false;
    one.messages.push({ role: "user", content, files });
    this.#reply();
    return true;
  }

  /** Send the message that waits longest. */
  sendNext() {
    const one = this.current;
    if (!one.queue.length || !this.#ready(one.queue[0].files)) return;
    one.messages.push({ role: "user", ...one.queue.shift() });
    this.#reply();
  }

  /** Take a waiting message out of the queue. */
  unqueue(index) {
    const [item] = this.current.queue.splice(index, 1);
    keep(this.current);
    this.listener.changed();
    return item;
  }

  /** Replace a message of the user and everything after it. */
  edit(index, text) {
    if (!this.#ready()) return;
    const before = structuredClone(this.current.messages);
    const { files } = this.current.messages[index];
    this.current.messages.splice(index, Infinity, { role: "user", content: text, files });
    this.#reply();
    this.#offerUndo(before);
  }

  /** Another reply in the place of message `index`, which stays as a version; the messages after it go. */
  again(index = this.current.messages.length - 1) {
    if (index < 0 || !this.#ready()) return;
    const before = structuredClone(this.current.messages);
    const dropped = this.current.messages.splice(index + 1);
    this.#reply();
    if (dropped.length) this.#offerUndo(before);
  }

  /** Write more of the last reply, which ended before it was complete. */
  goOn() {
    const reply = lastReply(this.current);
    if (!reply || !this.#ready()) return;
    if (!reply.content) {
      this.#forgetReply();
      this.#reply();
    } else {
      this.#run(this.current, reply, "continue");
      this.#show();
    }
  }

  /** Give the results of the calls in the last reply, and let the model go on. */
  answerCalls(results) {
    if (!this.#ready()) return;
    this.current.messages.push({ role: "tool", results });
    this.#reply();
  }

  /** Leave out the oldest messages until the rest fits, and answer again. */
  async dropOldest() {
    const one = this.current;
    if (!this.#ready()) return;
    const messages = one.messages.slice(0, -1);
    const from = await oldestThatFits(one, messages);
    if (from === null || from <= one.dropped) {
      toast("The last message alone is too long for this model. Shorten it, or attach less.");
      return;
    }
    one.dropped = from;
    this.#forgetReply();
    this.#reply();
  }

  /** Send all messages again. */
  bringBack() {
    this.current.dropped = 0;
    keep(this.current);
    this.#show();
  }

  stop() {
    stopRun(this.current.id);
  }

  /** Keep the conversation as it is now. */
  save() {
    keep(this.current);
  }

  /** Keep the settings, a moment after the last change, for this conversation and the next new one. */
  saveSettings() {
    const one = this.current;
    clearTimeout(this.saving);
    this.saving = setTimeout(() => {
      const { model, adapter, system, settings } = one;
      remember(USUAL, JSON.stringify({ model, adapter, system, settings }));
      keep(one);
    }, SAVE_AFTER_MS);
    this.listener.changed();
  }

  #show() {
    setLastOpen(this.current.id);
    this.listener.shown();
  }

  /** Whether the next request has pictures: those of the conversation and of the `files` of its next message. */
  #hasPictures(files) {
    const { messages, dropped } = this.current;
    return [...messages.slice(dropped), { files }].some((one) => one.files?.some(({ picture }) => picture));
  }

  #ready(files = []) {
    const { model, settings } = this.current;
    if (!model) toast("There is no model to talk to.");
    else if (this.#hasPictures(files) && blindWords(model)) {
      toast(`The conversation has pictures, and ${blindWords(model)}`);
    } else if (settings.json && parseSchema(settings.schema).error) {
      toast("The JSON schema is not valid; the settings say where.");
    } else if (!settings.json && parseTools(settings.tools).error) {
      toast("The list of tools is not valid; the settings say where.");
    } else return !isRunning(this.current.id);
    return false;
  }

  /** Let the model answer the last message, or once more where an answer is the last. */
  #reply() {
    const one = this.current;
    const made = makeReply(one.adapter || one.model);
    const last = one.messages.at(-1);
    if (last.role === "assistant") last.shown = last.replies.push(made) - 1;
    else one.messages.push({ role: "assistant", replies: [made], shown: 0 });
    one.dropped = Math.min(one.dropped, one.messages.length - 2);
    one.updated = Date.now();
    this.#run(one, made, "start");
    keep(one);
    this.#show();
  }

  async #run(one, reply, how) {
    const running = startRun(one, reply, (ended) => {
      if (one.id === this.current.id) this.listener.grew();
      if (ended) this.#ended(one, reply);
    }, how);
    await running;
  }

  /** The next message that waits is sent, unless the reply failed or was stopped. */
  async #ended(one, reply) {
    this.listener.ended(reply);
    if (reply.full && one.settings.roll && one === this.current) await this.dropOldest();
    else if (one.queue.length && !reply.error && reply.finish !== "stopped" && one === this.current) this.sendNext();
  }

  /** Remove a last reply that says nothing. */
  #forgetReply() {
    const { messages } = this.current;
    const last = messages.at(-1);
    if (last?.role !== "assistant" || lastReply(this.current).content) return;
    last.replies.splice(last.shown, 1);
    last.shown = Math.max(0, last.replies.length - 1);
    if (!last.replies.length) messages.pop();
  }

  #offerUndo(before) {
    const one = this.current;
    const run = () => {
      stopRun(one.id);
      one.messages = before;
      keep(one);
      if (one === this.current) this.#show();
    };
    toast("Later messages were replaced.", { label: "Undo", run });
  }

  /** Another tab may have written this conversation. */
  #follow() {
    const kept = conversation(this.current.id);
    if (kept && kept !== this.current && !isRunning(this.current.id)) {
      this.current = kept;
      this.#show();
    }
  }
}

/** A conversation with the settings that were used last. */
function fresh() {
  const usual = recallJson(USUAL, {});
  const text = (value) => (typeof value === "string" ? value : "");
  return makeConversation({
    model: text(usual.model),
    adapter: text(usual.adapter),
    system: text(usual.system),
    settings: readSettings(usual.settings),
  });
}
