// Making elements. Text is only ever set as text: nothing that a kernel or a model wrote becomes markup.

const SVG = "http://www.w3.org/2000/svg";
const HIDDEN = /[\p{C}\p{Zl}\p{Zp}]/gu;
const SPOKEN = new Set(["title", "aria-label", "aria-valuetext"]);

/** A text in which what nobody sees is written as its code: marks of direction let a line read as another. */
export function visible(text) {
  return String(text).replace(HIDDEN, (mark) => (mark === "\n" || mark === "\t" ? mark : `\\u${mark.codePointAt(0).toString(16).padStart(4, "0")}`));
}

function put(node, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name === "style") {
    for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
  } else if (typeof value === "function") {
    node.addEventListener(name, value);
  } else {
    node.setAttribute(name, value === true ? "" : SPOKEN.has(name) ? visible(value) : String(value));
  }
}

function add(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    node.append(child instanceof Node ? child : document.createTextNode(visible(child)));
  }
  return node;
}

/** An element with attributes, listeners (functions, by the event's name) and children. */
export function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) put(node, name, value);
  return add(node, children);
}

/** The same in SVG. */
export function s(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) put(node, name, value);
  return add(node, children);
}

/** An element of a drawing that the server made: a tag, its attributes and its children. */
export function drawn(node) {
  return typeof node === "string" ? node : s(node.tag, node.attributes, node.children.map(drawn));
}

/** Put children in the place of those there are; what has the focus keeps it, by its data-key. */
export function fill(node, ...children) {
  const held = node.contains(document.activeElement) ? document.activeElement.dataset?.key : undefined;
  node.replaceChildren();
  add(node, children);
  if (held === undefined) return;
  for (const one of node.querySelectorAll("[data-key]")) {
    if (one.dataset.key === held) {
      one.focus({ preventScroll: true });
      return;
    }
  }
}

/** A table from a list of headings and rows of cells. */
export function table(caption, headings, rows, attributes = {}) {
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {},
      h("caption", { class: attributes.unseen ? "unseen" : null }, h("span", {}, caption)),
      h("thead", {}, h("tr", {}, headings.map((one) => h("th", { scope: "col" }, one)))),
      h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, place) =>
        place === 0 ? h("th", { scope: "row" }, cell) : h("td", {}, cell)))))));
}

/** A pill with a word that says how something stands. */
export function pill(word, kind = "") {
  return h("span", { class: `pill ${kind}` }, word);
}

/** Call `work` at most once in `pause` ms, and once more for what came meanwhile. */
export function throttled(work, pause) {
  let due = null;
  let last = 0;
  return () => {
    if (due !== null) return;
    const left = Math.max(0, last + pause - performance.now());
    due = setTimeout(async () => {
      try {
        await work();
      } finally {
        last = performance.now();
        due = null;
      }
    }, left);
  };
}
