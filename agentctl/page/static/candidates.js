// The table of candidates: filtered by what became of them and by words, sorted, a page at a time.

import { fill, h } from "./dom.js";
import { runPath } from "./runs.js";
import { competes } from "./series.js";
import { brief, count, fate, ms, times } from "./text.js";

const PAGE = 50;
const KEEPS = {
  all: () => true,
  kept: (row) => row.decision === "kept",
  correct: competes,
  failed: (row) => (row.verdict !== null && row.verdict !== "correct") || row.error_code !== null,
};
const ORDERS = {
  newest: (rows) => [...rows].reverse(),
  fastest: (rows) => rows.filter(competes).sort((one, other) => one.latency_ms - other.latency_ms),
  oldest: (rows) => rows,
};

/** A kernel's address: as it was after event `at` (null: as it is), to go back from to the tab `tab`. */
export function kernelPath(run, name, at = null, tab = null) {
  const query = new URLSearchParams(Object.entries({ at, tab }).filter(([, value]) => value !== null)).toString();
  return `${runPath(run)}/kernel/${encodeURIComponent(name)}${query ? `?${query}` : ""}`;
}

/** A select with a label. */
export function choice(id, label, values, chosen, changed) {
  return h("label", { for: id }, `${label} `, h("select", { id, "data-key": id, change: (event) => changed(event.target.value) },
    values.map(([value, name]) => h("option", { value, selected: value === chosen }, name))));
}

export class Candidates {
  constructor(run) {
    this.run = run;
    this.series = null;
    this.which = "all";
    this.order = "newest";
    this.text = "";
    this.shown = PAGE;
    this.list = h("div");
    this.node = h("div", {}, this.form(), this.list);
  }

  form() {
    const set = (name) => (value) => {
      this[name] = value;
      this.shown = PAGE;
      this.draw();
    };
    return h("form", { class: "filters", submit: (event) => event.preventDefault() },
      choice("which", "Show", [["all", "all"], ["kept", "kept"], ["correct", "correct"], ["failed", "failed"]], this.which, set("which")),
      choice("order", "Order", [["newest", "newest"], ["fastest", "fastest"], ["oldest", "oldest"]], this.order, set("order")),
      h("label", { for: "with" }, "With ", h("input", {
        id: "with", type: "search", placeholder: "technique, title, id", input: (event) => set("text")(event.target.value),
      })));
  }

  show(series, at) {
    this.series = series;
    this.at = at;
    if (series) this.draw();
    return this.node;
  }

  draw() {
    const wanted = this.text.toLowerCase();
    const said = (row) => [row.candidate, row.technique, row.title, fate(row), row.author, row.bottleneck].join(" ").toLowerCase();
    const rows = ORDERS[this.order](this.series.rows.filter(KEEPS[this.which]))
      .filter((row) => !wanted || said(row).includes(wanted));
    const body = rows.slice(0, this.shown).map((row) => h("tr", {},
      h("th", { scope: "row" }, h("a", { href: kernelPath(this.run, row.candidate, this.at), "data-key": row.candidate }, row.candidate)),
      h("td", { class: "num" }, ms(row.latency_ms)),
      h("td", { class: "num" }, times(this.series.speedup(row))),
      h("td", { class: "num" }, fate(row)),
      h("td", { title: row.title }, row.title ? brief(row.title) : row.author === "person" ? "by hand" : ""),
      h("td", { class: "soft" }, row.technique ?? "")));
    const more = rows.length > this.shown ? h("button", {
      type: "button", "data-key": "more", click: () => {
        this.shown += PAGE * 4;
        this.draw();
      },
    }, `Show more of ${count(rows.length, "candidate")}`) : null;
    const heads = ["candidate", "latency", "over parent", "fate", "change", "technique"];
    fill(this.list,
      h("p", { class: "soft", role: "status" }, `${count(rows.length, "candidate")}; latencies of the simulator are predicted`),
      h("div", { class: "wide" }, h("table", { class: "candidates" },
        h("thead", {}, h("tr", {}, heads.map((one) => h("th", { scope: "col" }, one)))), h("tbody", {}, body))), more);
  }
}
