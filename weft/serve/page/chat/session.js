// The conversation that is open and what can be done with it: open, start, send, edit, regenerate, undo.

import { recallJson, remember } from "../ui/memory.js";
import { toast } from "../ui/toast.js";
import { makeConversation, makeReply, readSettings } from "./conversation.js";
import { parseSchema } from "./request.js";
import { isRunning, startRun, stopRun } from "./runs.js";
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

  /** Send a message; false where that cannot be now, and the user has been told why. */
  send(text) {
    if (!this.#ready()) return false;
    this.current.messages.push({ role: "user", content: text });
    this.#reply();
    return true;
  }

  /** Replace a message of the user and everything after it. */
  edit(index, text) {
    if (!this.#ready()) return;
    const before = structuredClone(this.current.messages);
    this.current.messages.splice(index, Infinity, { role: "user", content: text });
    this.#reply();
    this.#offerUndo(before);
  }

  /** Another reply in the place of message `index`, which stays as a version; what came after it goes. */
  again(index = this.current.messages.length - 1) {
    if (index < 0 || !this.#ready()) return;
    const before = structuredClone(this.current.messages);
    const dropped = this.current.messages.splice(index + 1);
    this.#reply();
    if (dropped.length) this.#offerUndo(before);
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

  #ready() {
    const { model, settings } = this.current;
    if (!model) toast("There is no model to talk to.");
    else if (settings.json && parseSchema(settings.schema).error) {
      toast("The JSON schema does not parse; the settings say where.");
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
    one.updated = Date.now();
    startRun(one, made, (ended) => {
      if (one === this.current) this.listener.grew();
      if (ended) this.listener.ended(made);
    });
    keep(one);
    this.#show();
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
