// Plots as the server drew them, which reports have too; shares of a whole.

import { drawn, h } from "./dom.js";
import { percent } from "./text.js";

const NAMES = { engines: "Engines", timeline: "Engine timeline", roofline: "Roofline", engine_roofs: "Roofs of the engines" };

/** The plots of a kernel's profile, each under its name. */
export function figures(found, predicted) {
  if (!found.length) return h("p", { class: "soft" }, "The profile does not say enough for plots.");
  return found.map((one) => [h("h4", {}, predicted ? `${NAMES[one.name]} (predicted)` : NAMES[one.name]), figure(one)]);
}

/** A plot that the server drew, with its caption and legend; null if there was nothing to draw. */
export function figure(one) {
  if (one === null) return null;
  return h("figure", { class: `scrolls drawn-${one.name}`, tabindex: "0" }, drawn(one.drawing),
    h("figcaption", {}, one.caption, one.legend.length ? h("ul", { class: "chart-legend" },
      one.legend.map(([kind, text]) => h("li", { class: `key-${kind}` }, text))) : null));
}

/** Shares of a whole: a bar in pieces, and each by name. `parts` are [name, value, text]. */
export function shares(parts, label) {
  const total = parts.reduce((sum, [, value]) => sum + value, 0);
  if (!total) return h("p", { class: "soft" }, "Nothing yet.");
  const told = parts.filter(([, value]) => value > 0);
  return h("figure", {},
    h("div", { class: "shares", role: "img", "aria-label": label },
      told.map(([name, value]) => h("span", { class: `share s-${name}`, style: { "flex-grow": String(value) } }))),
    h("ul", { class: "legend" }, told.map(([name, value, text]) => h("li", { class: `key-s-${name}` }, `${name}: ${text} (${percent((100 * value) / total)})`))));
}
