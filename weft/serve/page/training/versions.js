// A run's adapter in the registry: its versions, which of them is in production, and how to change that.

import { getJson, postJson } from "../api/client.js";
import { openDialog } from "../ui/dialog.js";
import { freshId, h } from "../ui/dom.js";
import { toast } from "../ui/toast.js";
import { shown } from "./curve.js";

/** Ask under which name and version an adapter is kept; null when the dialog was left. */
export async function askVersion(name) {
  const field = (label, value) => {
    const input = h("input", { id: freshId("version"), type: "text", value, required: true, autocomplete: "off" });
    return [input, h("div", { class: "field" }, h("label", { for: input.id }, label), input)];
  };
  const [as, first] = field("Name", name);
  const [version, second] = field("Version", "1.0.0");
  const buttons = [{ label: "Cancel", value: "" }, { label: "Register", value: "ok", kind: "primary" }];
  const words = h("p", {}, "A version keeps the adapter as it is now. Versions are numbers as 1.2.0, which never change.");
  const answer = await openDialog("Register this adapter", [words, first, second], buttons);
  return answer === "ok" ? { as: as.value.trim(), version: version.value.trim() } : null;
}

/**
 * The versions of a name, with buttons to promote one and to roll back.
 * @param {string} name
 */
export function versionsCard(name) {
  const path = `v1/registry/${encodeURIComponent(name)}`;
  const body = h("tbody");
  const back = h("button", { type: "button", class: "button small", disabled: true }, "Roll back");
  const element = h(
    "section",
    { class: "card" },
    h("div", { class: "card-head" }, h("h2", {}, `Versions of ${name}`), back),
    h(
      "div",
      { class: "table-box", tabindex: "0", role: "region", "aria-label": `Versions of ${name}` },
      h(
        "table",
        { class: "compared" },
        h("thead", {}, h("tr", {}, ...["Version", "State", "Measured", ""].map((words) => h("th", { scope: "col" }, words)))),
        body,
      ),
    ),
  );
  let drawn = "";

  const act = (verb, given, words) => async (event) => {
    event.currentTarget.disabled = true;
    try {
      const moved = await postJson(`${path}/${verb}`, given);
      toast(words(moved));
    } catch (error) {
      toast(error.message);
    }
    drawn = "";
    await refresh();
  };
  back.addEventListener(
    "click",
    act("rollback", {}, (moved) => `${name} is back at ${moved.version}.`),
  );

  function row(version, production) {
    const current = version.version === production;
    const promote = h("button", {
      type: "button",
      class: "button small",
      "aria-label": `Promote ${version.version}`,
      on: { click: act("promote", { version: version.version }, () => `${name} ${version.version} is in production.`) },
    }, "Promote");
    const measured = version.evaluations.map(({ metric, value }) => `${metric} ${shown(value)}`).join(", ");
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, version.version),
      h("td", {}, current ? "in production" : version.state),
      h("td", { class: "numbers" }, measured || "–"),
      h("td", {}, current ? "" : promote),
    );
  }

  async function refresh() {
    const found = await getJson(path);
    const text = JSON.stringify([found.versions, found.aliases]);
    if (text === drawn) return;
    drawn = text;
    const { production } = found.aliases;
    back.disabled = !production || found.versions.length < 2;
    body.replaceChildren(...[...found.versions].reverse().map((version) => row(version, production)));
  }
  return { element, refresh };
}
