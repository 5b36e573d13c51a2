// The tree of lineages: which kernel was made from which, with latencies and what became of them.

import { fill, h } from "./dom.js";
import { kernelPath } from "./candidates.js";
import { competes } from "./series.js";
import { brief, count, fate, ms, times } from "./text.js";

const MOST = 200;

export class Tree {
  constructor(run) {
    this.run = run;
    this.all = false;
    this.closed = new Set();
    this.list = h("div");
    const box = h("input", { type: "checkbox", id: "every", change: (event) => {
      this.all = event.target.checked;
      this.draw();
    } });
    this.node = h("div", {},
      h("form", { class: "filters" }, h("label", { for: "every" }, box, " also what was not kept")),
      h("p", { class: "soft" }, "● kept, ★ the best, ↩ not kept; a kernel stands below the one it was made from"),
      this.list);
  }

  show(series, best, at) {
    this.series = series;
    this.at = at;
    this.best = best;
    if (series) this.draw();
    return this.node;
  }

  draw() {
    const below = new Map();
    const roots = [];
    const ways = this.all ? null : this.kept();
    for (const row of this.series.rows) {
      if (ways && !ways.has(row.candidate)) continue;
      if (row.parent && this.series.get(row.parent) && row.parent !== row.candidate) {
        const siblings = below.get(row.parent);
        if (siblings) siblings.push(row);
        else below.set(row.parent, [row]);
      } else {
        roots.push(row);
      }
    }
    fill(this.list, roots.length ? this.branch(roots, below, 0) : h("p", { class: "soft" }, "No kernel was kept yet."));
  }

  /** What was kept, and all that it came from. */
  kept() {
    const found = new Set();
    for (const row of this.series.rows) {
      let one = row.decision === "kept" ? row : undefined;
      while (one && !found.has(one.candidate)) {
        found.add(one.candidate);
        one = one.parent ? this.series.get(one.parent) : undefined;
      }
    }
    return found;
  }

  branch(rows, below, depth) {
    const shown = rows.slice(0, MOST);
    const rest = rows.length - shown.length;
    return h("ul", { class: depth ? "branch" : "tree" },
      shown.map((row) => h("li", {}, this.leaf(row, below, depth))),
      rest ? h("li", { class: "soft" }, `and ${count(rest, "more")}`) : null);
  }

  leaf(row, below, depth) {
    const children = below.get(row.candidate);
    const sign = row.candidate === this.best ? "★" : row.decision === "kept" ? "●" : "↩";
    const line = [
      h("span", { "aria-hidden": "true", class: `sign ${row.decision === "kept" ? "kept" : "other"}` }, sign), " ",
      h("a", { href: kernelPath(this.run, row.candidate, this.at, "lineage"), "data-key": `tree ${row.candidate}` }, row.candidate), " ",
      competes(row) ? h("span", { class: "num" }, `${ms(row.latency_ms)} `) : null,
      this.series.speedup(row) === null ? null : h("span", { class: "soft" }, `${times(this.series.speedup(row))} `),
      h("span", { class: "soft" }, [row.candidate === this.best ? "the best" : fate(row), brief(row.title)].filter(Boolean).join(" · ")),
    ];
    if (!children) return h("div", { class: "leaf" }, line);
    const open = !this.closed.has(row.candidate);
    const held = h("div");
    const fold = h("details", { open, toggle: () => {
      this.closed[fold.open ? "delete" : "add"](row.candidate);
      if (fold.open && !held.firstChild) held.append(this.branch(children, below, depth + 1));
    } }, h("summary", { "data-key": `fold ${row.candidate}` }, line), held);
    if (open) held.append(this.branch(children, below, depth + 1));
    return fold;
  }
}
