// A side panel: beside the content on a wide screen, a drawer over it on a narrow one.

import { h, whenMedia } from "./dom.js";
import { recall, remember } from "./memory.js";

/**
 * @param {HTMLElement} panel  its id is the key under which the browser remembers whether it is open when wide
 * @param {"left"|"right"} side
 * @param {string} narrow  the media query under which it is a drawer
 * @param {HTMLElement} button  opens and shuts it
 */
export function makeDrawer(panel, side, narrow, button) {
  const key = `weft.${panel.id}`;
  const scrim = h("div", { class: "scrim", on: { click: () => set(false) } });
  panel.before(scrim);
  let drawer = false;
  let open = true;

  function show() {
    panel.classList.toggle("drawer", drawer);
    panel.classList.toggle(side, drawer);
    panel.classList.toggle("open", open);
    panel.hidden = !drawer && !open;
    panel.inert = drawer && !open;
    scrim.hidden = !(drawer && open);
    button.setAttribute("aria-expanded", String(open));
    // Everything behind an open drawer is out of reach, so Tab stays inside.
    for (const other of outside(panel, scrim)) other.inert = drawer && open;
    for (const [name, value] of [["role", "dialog"], ["aria-modal", "true"]]) {
      if (drawer) panel.setAttribute(name, value);
      else panel.removeAttribute(name);
    }
  }

  function set(next) {
    open = next;
    show();
    if (drawer && open) {
      // In the next frame: what is only beginning to be visible cannot take the focus.
      const first = panel.querySelector("button, input, select, textarea");
      requestAnimationFrame(() => requestAnimationFrame(() => first.focus({ preventScroll: true })));
    } else if (drawer) button.focus({ preventScroll: true });
    else remember(key, open ? "open" : "shut");
  }

  button.addEventListener("click", () => set(!open));
  panel.querySelector(".close")?.addEventListener("click", () => set(false));
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
    if (drawer && open && event.key === "Escape") {
      event.preventDefault();
      set(false);
    }
  });
  whenMedia(narrow, (matches) => {
    drawer = matches;
    open = drawer ? false : recall(key) !== "shut";
    show();
  });
  return { toggle: () => set(!open), close: () => drawer && open && set(false) };
}

function outside(panel, scrim) {
  const siblings = [...panel.parentElement.children].filter((other) =>
    other !== panel && other !== scrim && !other.classList.contains("drawer")
  );
  return [document.querySelector(".bar"), ...siblings];
}
