// Source in colours, and what changed from one to another. The pieces come from the server's tokenizer.

import { h } from "./dom.js";
import { count } from "./text.js";

const CLASSES = new Set(["kw", "str", "num", "com", "name", "call", "built", "op"]);

const coloured = (pieces) => pieces.map(([kind, text]) => (CLASSES.has(kind) ? h("span", { class: `c-${kind}` }, text) : text));

function row(kind, numbers, content, sign) {
  const said = { "-": "removed", "+": "added" }[kind];
  return h("div", { class: `line ${said ?? ""}` },
    numbers.map((one) => h("span", { class: "no", "aria-hidden": "true" }, one ?? "")),
    h("span", { class: "sign", "aria-label": said }, sign), h("span", { class: "text" }, content));
}

/** A source with its line numbers. */
export function source(lines) {
  return h("div", { class: "code", tabindex: "0", role: "region", "aria-label": "Source of the kernel" },
    lines.map((pieces, place) => row(" ", [place + 1], coloured(pieces), "")));
}

/** A comparison: what went, what came, and a few lines around. */
export function diff(found) {
  if (!found.added && !found.removed) return h("p", { class: "soft" }, `${found.a} and ${found.b} have the same source.`);
  return h("div", {},
    h("p", { class: "soft" }, `${found.a} → ${found.b}: ${count(found.added, "line")} added, ${found.removed} removed`),
    h("div", { class: "code two", tabindex: "0", role: "region", "aria-label": `What changed from ${found.a} to ${found.b}` },
      found.lines.map((one) => (one.kind === "~"
        ? h("div", { class: "line gap" }, `${count(one.skipped, "line")} the same`)
        : row(one.kind, [one.a, one.b], coloured(one.pieces), one.kind)))));
}
