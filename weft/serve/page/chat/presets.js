// Presets: a system prompt and settings under a name. Three are built in, others are kept in this browser.

import { askText, confirmDanger } from "../ui/dialog.js";
import { h } from "../ui/dom.js";
import { iconButton } from "../ui/icons.js";
import { recallJson, remember } from "../ui/memory.js";
import { toast } from "../ui/toast.js";
import { DEFAULTS, readSettings } from "./conversation.js";

const KEY = "weft.presets";
const MOST = 50;
const BUILT_IN = [
  { name: "Model defaults", system: null, settings: {} },
  { name: "Precise", system: null, settings: { temperature: 0.2, top_p: 0.9 } },
  { name: "Creative", system: null, settings: { temperature: 1.1, min_p: 0.05 } },
];

/** Presets of the user: those that can be read. A system prompt of null leaves the conversation's own. */
function own() {
  const kept = recallJson(KEY, []);
  return (Array.isArray(kept) ? kept : []).filter((one) => typeof one?.name === "string").slice(0, MOST).map((one) => ({
    name: one.name,
    system: typeof one.system === "string" ? one.system : null,
    settings: readSettings(one.settings),
  }));
}

const same = (preset, { system, settings }) =>
  (preset.system === null || preset.system === system) &&
  JSON.stringify({ ...DEFAULTS, ...preset.settings }) === JSON.stringify({ ...DEFAULTS, ...settings });

/**
 * @param {() => import("./conversation.js").Conversation} current
 * @param {() => void} applied  shows and keeps the settings that were chosen
 */
export function presetField(current, applied) {
  const select = h("select", { id: "preset", "aria-label": "Preset" });
  const save = iconButton("plus", "Save these settings as a preset", add, { class: "small" });
  const bin = iconButton("bin", "Delete this preset", drop, { class: "small" });

  const all = () => [...BUILT_IN, ...own()];
  function update() {
    const presets = all();
    const at = presets.findIndex((preset) => same(preset, current()));
    select.replaceChildren(
      ...(at < 0 ? [h("option", { value: "" }, "Own settings")] : []),
      ...presets.map((preset, i) => h("option", { value: String(i) }, preset.name)),
    );
    select.value = at < 0 ? "" : String(at);
    bin.hidden = at < BUILT_IN.length;
    save.hidden = at >= 0;
  }
  async function add() {
    const { system, settings } = current();
    const words = "The system prompt, the sampling settings, the schema and the tools are saved in this browser.";
    const name = (await askText("Save a preset", words, { label: "Name" }))?.trim().slice(0, 60);
    if (!name) return;
    const others = own().filter((preset) => preset.name !== name);
    if (others.length >= MOST) toast(`At most ${MOST} presets are kept; delete one first.`);
    else remember(KEY, JSON.stringify([...others, { name, system, settings }]));
    update();
    select.focus();
  }
  async function drop() {
    const preset = all()[Number(select.value)];
    if (!(await confirmDanger("Delete this preset?", `“${preset.name}” is kept only in this browser.`, "Delete"))) return;
    remember(KEY, JSON.stringify(own().filter((one) => one.name !== preset.name)));
    update();
    select.focus();
  }
  select.addEventListener("change", () => {
    const preset = all()[Number(select.value)];
    if (!preset || select.value === "") return;
    Object.assign(current().settings, DEFAULTS, preset.settings);
    if (preset.system !== null) current().system = preset.system;
    applied();
  });
  return { element: h("div", { class: "preset" }, select, save, bin), update };
}
