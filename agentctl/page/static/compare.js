// Two runs beside one another: how each stands, the settings in which they differ, and their ways to the best.

import { get } from "./api.js";
import { choice } from "./candidates.js";
import { fill, h, s, table } from "./dom.js";
import { ticks } from "./plot.js";
import { runPath, state } from "./runs.js";
import { competes, Series } from "./series.js";
import { latency, ms, number, percent, times, usd } from "./text.js";

const [WIDE, TALL, LEFT, BOTTOM] = [560, 232, 58, 52];

/** The best latency after each candidate: [place, ms], where it changes. */
export function progress(series) {
  let best = Infinity;
  const found = [];
  series.rows.forEach((row, place) => {
    if (!competes(row) || row.decision !== "kept" || row.latency_ms >= best) return;
    best = row.latency_ms;
    found.push([place, best]);
  });
  return found;
}

function ways(runs) {
  const told = runs.map(({ name, series }) => ({ name, size: series.rows.length, points: progress(series) })).filter((one) => one.points.length);
  if (!told.length) return h("p", { class: "soft" }, "Neither has a correct kernel yet.");
  const values = told.flatMap((one) => one.points.map(([, value]) => value));
  const [low, high, last] = [Math.min(...values) * 0.95, Math.max(...values) * 1.05, Math.max(1, ...told.map((one) => one.size - 1))];
  const x = (place) => LEFT + ((WIDE - LEFT - 10) * place) / last;
  const y = (value) => 12 + ((TALL - BOTTOM - 12) * (high - value)) / (high - low);
  const path = (one) => one.points.map(([place, value], number_) =>
    (number_ ? `H${x(place)}V${y(value)}` : `M${x(place)},${y(value)}`)).join("") + `H${x(Math.max(0, one.size - 1))}`;
  return h("figure", {},
    s("svg", { viewBox: `0 0 ${WIDE} ${TALL}`, role: "img", "aria-label": "The best latency over candidates, of both runs" },
      ticks(low, high, false).map((value) => s("g", {},
        s("line", { class: "grid", x1: LEFT, x2: WIDE - 10, y1: y(value), y2: y(value) }),
        s("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, number(value, 3)))),
      ticks(0, last, false).filter(Number.isInteger).map((place) => s("text", { x: x(place), y: TALL - BOTTOM + 18, "text-anchor": "middle" }, String(place))),
      told.map((one, place) => s("path", { class: place ? "way other" : "way own", d: path(one) })),
      s("text", { x: (LEFT + WIDE) / 2, y: TALL - 8, "text-anchor": "middle" }, "candidates proposed"),
      s("text", { x: 4, y: 12 }, "ms")),
    h("figcaption", {}, h("ul", { class: "legend" }, told.map((one, place) => h("li", { class: place ? "key-former" : "key-own" },
      `${one.name}: ${ms(one.points.at(-1)[1])} at best`)))));
}

const ROWS = [
  ["state", (run) => state(run.state)], ["problem", (run) => `${run.problem} (${run.size}) on ${run.target}`],
  ["best", (run) => (run.best_ms === null ? "none yet" : latency({ ms: run.best_ms, lo_ms: run.best_lo_ms, hi_ms: run.best_hi_ms, predicted: run.predicted }))],
  ["initial", (run) => ms(run.initial_ms)], ["speed-up", (run) => times(run.speedup)],
  ["of the roofline", (run) => percent(run.percent_of_peak)], ["of the model bound", (run, moment) => moment.below_bound ?? percent(run.percent_of_model_bound)],
  ["round", (run) => `${run.round} of ${run.rounds}`], ["judged", (run) => run.evaluated.toLocaleString("en")],
  ["not correct", (run) => run.failed.toLocaleString("en")], ["spent", (run) => usd(run.spent_usd)], ["toolchain", (run) => run.toolchain],
];

export class Compare {
  constructor(a, b, runs, go) {
    this.pair = [a, b];
    const pick = (place) => choice(`run-${"ab"[place]}`, place ? "and" : "Compare", runs.map((run) => [run, run]), this.pair[place], (value) => {
      const pair = [...this.pair];
      pair[place] = value;
      go(`#/compare/${pair.map(encodeURIComponent).join("/")}`);
    });
    this.body = h("div", {}, h("p", { class: "soft" }, "loading ..."));
    this.node = h("article", {}, h("h2", { tabindex: "-1" }, "Two runs"), h("form", { class: "filters" }, pick(0), pick(1)), this.body);
  }

  async load(signal) {
    const [a, b] = this.pair;
    const [found, ...answers] = await Promise.all([
      get(["compare"], { a, b }, { signal }), ...this.pair.map((run) => get(["runs", run, "series"], {}, { signal }))]);
    const runs = this.pair.map((name, place) => ({ name, series: new Series(name).merge(answers[place]) }));
    const differs = Object.entries(found.settings).map(([key, [one, other]]) => [h("code", {}, key), JSON.stringify(one), JSON.stringify(other)]);
    fill(this.body, ways(runs),
      table("How they stand", ["", ...this.pair.map((name) => h("a", { href: runPath(name) }, name))],
        ROWS.map(([name, tell]) => [name, tell(found.a.run, found.a), tell(found.b.run, found.b)])),
      differs.length ? table("Settings in which they differ", ["setting", a, b], differs)
        : h("p", { class: "soft" }, "Their settings are the same."));
  }
}
