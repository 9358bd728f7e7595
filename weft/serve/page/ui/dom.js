// Elements from plain data. Text becomes text nodes, never markup, so nothing that a model writes can become an element.

const SVG = "http://www.w3.org/2000/svg";
const MATHML = "http://www.w3.org/1998/Math/MathML";

/**
 * An HTML element. `on` holds listeners, `data` the dataset; true and false set and drop boolean attributes.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...(Node|string|null|undefined|false)} children
 * @returns {any}
 */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element, as `h`. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** A MathML element, as `h`. */
export function m(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(MATHML, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "value") element.value = value;
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

let count = 0;

/** An id that no other element of the page has. */
export function freshId(word) {
  count += 1;
  return `${word}-${count}`;
}

/** Run `work` at most once a frame; the last call wins. */
export function oncePerFrame(work) {
  let frame = 0;
  return () => {
    if (!frame) {
      frame = requestAnimationFrame(() => {
        frame = 0;
        work();
      });
    }
  };
}

/** A media query and what to do when its answer changes; called once at the start. */
export function whenMedia(query, react) {
  const media = matchMedia(query);
  media.addEventListener("change", () => react(media.matches));
  react(media.matches);
  return media;
}
