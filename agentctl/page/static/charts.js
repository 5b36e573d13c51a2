// Profiles drawn: engines as bars, the predicted timeline as lanes, the roofline, a curve, shares of a whole.

import { h, s } from "./dom.js";
import { colours, sharp, ticks } from "./plot.js";
import { ms, number, percent, scaled, words } from "./text.js";

const ENGINES = [
  ["tensor engine", "tensor_engine_active_time_percent"], ["vector engine", "vector_engine_active_time_percent"],
  ["scalar engine", "scalar_engine_active_time_percent"], ["GpSimd", "gpsimd_engine_active_time_percent"],
  ["DMA", "dma_active_time_percent"], ["HBM bandwidth", "mbu_estimated_percent"],
  ["tensor flops (HFU)", "hfu_estimated_percent"],
];

function bar(value, kind) {
  const wide = Math.min(100, Math.max(0, value ?? 0));
  return h("span", { class: `bar ${kind}` }, h("span", { style: { width: `${wide}%` } }));
}

/** Shares of the time in which each engine is active, beside those of the parent. */
export function engines(counters, parent) {
  const rows = ENGINES.filter(([, key]) => counters[key] !== undefined || parent?.[key] !== undefined);
  if (!rows.length) return h("p", { class: "soft" }, "No profile was recorded.");
  return h("div", { class: "wide" }, h("table", { class: "bars" },
    h("caption", {}, parent ? "Active, of the kernel's time: this kernel above, its parent below" : "Active, of the kernel's time"),
    h("tbody", {}, rows.map(([name, key]) => h("tr", {},
      h("th", { scope: "row" }, name),
      h("td", { class: "drawn" }, bar(counters[key], "own"), parent ? bar(parent[key], "former") : null),
      h("td", { class: "num" }, percent(counters[key]), parent ? h("span", { class: "soft" }, h("br"), percent(parent[key])) : null))))));
}

/** Lanes of a timeline: darker is busier. With a parent's, both are drawn to the same scale. */
export function lanes(own, parent) {
  if (!own) return h("p", { class: "soft" }, "No timeline was recorded with this kernel's profile.");
  const span = Math.max(own.span_ms, parent?.span_ms ?? 0);
  const names = [...new Set([...Object.keys(own.busy_percent), ...Object.keys(parent?.busy_percent ?? {})])];
  const kinds = [["this kernel", own], ...(parent ? [["its parent", parent]] : [])];
  const kind = own.predicted ? "predicted" : "measured";
  return h("figure", { class: "lanes" },
    kinds.map(([title, timeline]) => h("div", {},
      h("h4", {}, `${title}: ${ms(timeline.span_ms)} ${kind}`),
      names.map((name) => lane(name, timeline, span)))),
    h("figcaption", { class: "soft" }, `0 to ${ms(span)}, without the fixed overhead of any kernel; the stronger the colour, the more of that moment the queue is busy`));
}

function lane(name, timeline, span) {
  const parts = timeline.busy_percent[name] ?? [];
  const mean = parts.length ? parts.reduce((sum, one) => sum + one, 0) / parts.length : 0;
  const canvas = h("canvas", { role: "img", "aria-label": `${words(name)}: busy ${percent(mean)} of the time` });
  sharp(canvas, 18, (pen, width, height) => {
    const ink = colours();
    pen.fillStyle = ink.panel;
    pen.fillRect(0, 0, width, height);
    pen.fillStyle = ink.accent;
    const wide = (width * timeline.span_ms) / span / Math.max(1, parts.length);
    const edge = (place) => Math.round(place * wide); // on whole pixels, else seams would show between parts
    parts.forEach((busy, place) => {
      pen.globalAlpha = busy ? 0.15 + (0.85 * busy) / 100 : 0;
      pen.fillRect(edge(place), 1, edge(place + 1) - edge(place), height - 2);
    });
    pen.globalAlpha = 1;
  });
  return h("div", { class: "lane" }, h("span", { class: "lane-name" }, words(name)),
    h("div", { class: "lane-drawn" }, canvas), h("span", { class: "num soft" }, percent(mean)));
}

const ROOF = { width: 560, height: 270, left: 80, right: 16, top: 14, bottom: 44 };

/** The roofline, with a point for each of `kernels`: [name, roofline, class]. */
export function roof(kernels) {
  const [, own] = kernels[0];
  if (!own) return h("p", { class: "soft" }, "The profile does not say enough for a roofline.");
  return h("div", {}, own.intensity === null ? null : products(kernels), engineRoofs(kernels),
    h("p", {}, `It moves ${scaled(own.moved_bytes, "B")} at ${scaled(own.attained_bytes, "B/s")}, ${percent(own.bandwidth_percent)} of the HBM's bandwidth.`));
}

/** Matrix products under the roofline: operations per second over operations per byte. */
function products(kernels) {
  const [, own] = kernels[0];
  const points = kernels.filter(([, one]) => one && one.intensity !== null);
  const [left, right] = ends(points.map(([, one]) => one.intensity).concat(own.ridge));
  const [low, high] = [Math.min(...points.map(([, one]) => one.attained_flops)) / 3, own.peak_flops * 2];
  const x = scale(left, right, ROOF.left, ROOF.width - ROOF.right);
  const y = scale(low, high, ROOF.height - ROOF.bottom, ROOF.top);
  const edge = (value) => Math.max(low, Math.min(own.peak_flops, value * own.bandwidth_bytes));
  const first = Math.max(left, low / own.bandwidth_bytes);
  const line = [[first, edge(first)], [own.ridge, own.peak_flops], [right, own.peak_flops]]
    .map(([one, other]) => `${x(one)},${y(other)}`).join(" ");
  const said = points.map(([name, one]) => `${name}: ${scaled(one.attained_flops, "flop/s")}, ${percent(one.attained_percent)} of the roof`);
  return h("figure", { class: "roof" },
    s("svg", { viewBox: `0 0 ${ROOF.width} ${ROOF.height}`, role: "img", "aria-label": `Roofline. ${said.join(". ")}` },
      ticks(left, right, true).map((value) => s("g", {},
        s("line", { class: "grid", x1: x(value), x2: x(value), y1: ROOF.top, y2: ROOF.height - ROOF.bottom }),
        s("text", { x: x(value), y: ROOF.height - ROOF.bottom + 16, "text-anchor": "middle" }, number(value, 3)))),
      decades(low, high).map((value) => s("g", {},
        s("line", { class: "grid", x1: ROOF.left, x2: ROOF.width - ROOF.right, y1: y(value), y2: y(value) }),
        s("text", { x: ROOF.left - 6, y: y(value) + 4, "text-anchor": "end" }, scaled(value, "").replace(".0", "")))),
      s("polyline", { class: "limit", points: line }),
      points.map(([name, one, kind]) => s("circle", {
        class: `dot ${kind}`, cx: x(one.intensity), cy: y(one.attained_flops), r: kind === "own" ? 5 : 9,
      }, s("title", {}, name))),
      s("text", { x: (ROOF.left + ROOF.width) / 2, y: ROOF.height - 6, "text-anchor": "middle" }, "operations per byte of HBM"),
      s("text", { x: 4, y: ROOF.top }, "flop/s")),
    h("figcaption", {}, h("ul", { class: "legend" },
      points.map(([, , kind], place) => h("li", { class: `key-${kind}` }, said[place])),
      h("li", { class: "key-limit" }, `the roof: ${scaled(own.peak_flops, "flop/s")}, ${scaled(own.bandwidth_bytes, "B/s")}`))));
}

const ENGINE_NAMES = { vector: "Vector", scalar: "Scalar", gpsimd: "GpSimd" };

/**
 * The engines that work element by element under their roofs, each by its letter. Both axes are relative, so that engines
 * of different peaks have one roof: up, the share of the peak; across, time at work over the time that the bytes take.
 */
function engineRoofs(kernels) {
  const points = kernels.flatMap(([name, one, kind]) => (one?.engines ?? []).map((engine) => (
    { name, kind, engine, across: engine.intensity / engine.ridge, up: engine.active_percent }))).reverse();
  if (!points.length) return null;
  const [left, right] = ends([1, ...points.map((one) => one.across)]);
  const low = Math.min(...points.map((one) => one.up)) / 3;
  const x = scale(left, right, ROOF.left, ROOF.width - ROOF.right);
  const y = scale(low, 170, ROOF.height - ROOF.bottom, ROOF.top);
  const first = Math.max(left, low / 100);
  const line = [[first, 100 * first], [1, 100], [right, 100]].map(([one, other]) => `${x(one)},${y(other)}`).join(" ");
  const told = ({ name, engine }) => `${ENGINE_NAMES[engine.engine]} engine, ${name}: ${percent(engine.active_percent)} of ${
    scaled(engine.peak, "")} lane cycles/s; ${engine.side === "memory" ? "the memory" : "the engine"} would bound it first`;
  return h("figure", { class: "roof" },
    s("svg", { viewBox: `0 0 ${ROOF.width} ${ROOF.height}`, role: "img", "aria-label": `Engines under their roofs. ${points.map(told).join(". ")}` },
      ticks(left, right, true).map((value) => s("g", {},
        s("line", { class: "grid", x1: x(value), x2: x(value), y1: ROOF.top, y2: ROOF.height - ROOF.bottom }),
        s("text", { x: x(value), y: ROOF.height - ROOF.bottom + 16, "text-anchor": "middle" }, number(value, 3)))),
      decades(low, 170).map((value) => s("g", {},
        s("line", { class: "grid", x1: ROOF.left, x2: ROOF.width - ROOF.right, y1: y(value), y2: y(value) }),
        s("text", { x: ROOF.left - 6, y: y(value) + 4, "text-anchor": "end" }, `${number(value, 3)} %`))),
      s("polyline", { class: "limit", points: line }),
      points.map((one) => s("g", {}, s("title", {}, told(one)),
        s("circle", { class: `disc ${one.kind}`, cx: x(one.across), cy: y(one.up), r: 9 }),
        s("text", { class: "letter", x: x(one.across), y: y(one.up) + 4, "text-anchor": "middle" }, ENGINE_NAMES[one.engine.engine][0]))),
      s("text", { x: (ROOF.left + ROOF.width) / 2, y: ROOF.height - 6, "text-anchor": "middle" }, "time at work over the bytes' time")),
    h("figcaption", {}, h("ul", { class: "legend stacked" },
      [...points].reverse().map((one) => h("li", { class: `key-${one.kind}` }, told(one))),
      h("li", { class: "key-limit" }, "the roof: left of 1 what the HBM's bandwidth allows, right of it the engine's peak"))));
}

function ends(values) {
  return [Math.min(...values) / 3, Math.max(...values) * 3];
}

const decades = (low, high) => ticks(low, high, true).filter((value) => Number.isInteger(Math.round(Math.log10(value) * 1e6) / 1e6));

function scale(low, high, from, to) {
  return (value) => Math.round((from + ((to - from) * Math.log(value / low)) / Math.log(high / low)) * 10) / 10;
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
