// The views as ARIA tabs; the address keeps the choice.

/** @param {(name: string) => void} shown  called with the view's name each time one is shown */
export function startTabs(shown) {
  const tabs = [...document.querySelectorAll('[role="tab"]')];
  const names = tabs.map((tab) => tab.id.replace("tab-", ""));
  let current = "";

  function show(name, focus = false) {
    if (!names.includes(name) || name === current) return;
    current = name;
    tabs.forEach((tab, i) => {
      const chosen = names[i] === name;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
      document.getElementById(`view-${names[i]}`).hidden = !chosen;
      if (chosen && focus) tab.focus();
      if (chosen) tab.scrollIntoView({ block: "nearest", inline: "nearest" });
    });
    history.replaceState(null, "", name === names[0] ? location.pathname + location.search : `#${name}`);
    shown(name);
  }

  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => show(names[i]));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const to = step ? (i + step + names.length) % names.length : { Home: 0, End: names.length - 1 }[event.key];
      if (to !== undefined) {
        event.preventDefault();
        show(names[to], true);
      }
    });
  });
  addEventListener("hashchange", () => show(location.hash.slice(1)));
  show(names.includes(location.hash.slice(1)) ? location.hash.slice(1) : names[0]);
  return { show, current: () => current };
}
