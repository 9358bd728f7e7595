// Colours of the stylesheet as numbers, for what is drawn and cannot use CSS.

/** A colour of the page, as [red, green, blue]; `name` is a custom property such as --accent. */
export function pageColour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  probe.hidden = true;
  document.body.append(probe);
  const parts = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  probe.remove();
  return parts;
}

/** Between two colours, `t` from 0 to 1. */
export const mix = (a, b, t) => a.map((value, i) => Math.round(value + (b[i] - value) * t));

export const rgb = (colour) => `rgb(${colour.join(" ")})`;

/** Black or white, whichever can be read on the colour. */
export function inkOn([red, green, blue]) {
  return 0.299 * red + 0.587 * green + 0.114 * blue > 145 ? "#14201f" : "#ffffff";
}
