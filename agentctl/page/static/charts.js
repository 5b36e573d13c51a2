// Plots of profiles, as the server drew them; a curve, shares of a whole.

import { drawn, h, s } from "./dom.js";
import { percent } from "./text.js";

const NAMES = { engines: "Engines", timeline: "Engine timeline", roofline: "Roofline", engine_roofs: "Roofs of the engines" };

/** The plots of a kernel's profile, each under its name. */
export function figures(found, predicted) {
  if (!found.length) return h("p", { class: "soft" }, "The profile does not say enough for plots.");
  return found.map((one) => [h("h4", {}, predicted ? `${NAMES[one.name]} (predicted)` : NAMES[one.name]),
    h("figure", { class: `scrolls drawn-${one.name}`, tabindex: "0" }, drawn(one.drawing),
      h("figcaption", {}, one.caption, one.legend.length ? h("ul", { class: "chart-legend" },
        one.legend.map(([kind, text]) => h("li", { class: `key-${kind}` }, text))) : null))]);
}

/** A curve of [x, y] points as SVG; `names` are those of the axes. */
export function curve(points, names, label) {
  if (points.length < 2) return null;
  const [wide, tall] = [560, 160];
  const [right, top] = [points.at(-1)[0] || 1, Math.max(...points.map(([, value]) => value)) || 1];
  const line = points.map(([one, other]) => `${70 + (one / right) * (wide - 80)},${tall - 30 - (other / top) * (tall - 44)}`).join(" ");
  return s("svg", { viewBox: `0 0 ${wide} ${tall}`, role: "img", "aria-label": label, class: "curve" },
    s("polyline", { class: "run", points: line }),
    s("text", { x: 64, y: 18, "text-anchor": "end" }, names.high), s("text", { x: 64, y: tall - 28, "text-anchor": "end" }, names.low),
    s("text", { x: 70, y: tall - 10 }, names.first), s("text", { x: wide - 10, y: tall - 10, "text-anchor": "end" }, names.last));
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
