// The beam, what is in flight, and what the run has learnt, at the moment that is looked at.

import { kernelPath } from "./candidates.js";
import { fill, h, pill, table } from "./dom.js";
import { brief, latency, times, usd, words } from "./text.js";

const notes = (title, items, empty) => h("section", {}, h("h3", {}, title), items.length
  ? h("ul", { class: "notes" }, items.map((one) => h("li", {}, pill(one.kind, one.kind === "negative" || one.kind === "refuted" || one.kind === "failed" ? "bad" : "good"),
    " ", h("code", {}, one.technique), one.speedup === null ? "" : ` ${times(one.speedup)}`, ` ${one.text}`)))
  : h("p", { class: "soft" }, empty));

export class Learnt {
  constructor(run) {
    this.run = run;
    this.node = h("div");
  }

  show(moment, at) {
    if (!moment) return this.node;
    const link = (name) => h("a", { href: kernelPath(this.run, name, at, "beam"), "data-key": `beam ${name}` }, name);
    const beam = moment.beam.map((one) => [
      link(one.candidate), one.role, latency(one.latency), times(one.gain), words(one.level), brief(one.title)]);
    const flights = moment.in_flight.map((one) => [
      one.candidate, one.role, one.model ?? "", String(one.delivery), one.reserved_usd ? usd(one.reserved_usd) : ""]);
    fill(this.node,
      h("section", {}, beam.length ? table("The beam", ["kernel", "role", "latency", "over the initial", "compared", "change"], beam)
        : h("p", { class: "soft" }, "No beam yet.")),
      h("section", {}, flights.length ? table("In flight", ["for", "role", "model", "delivery", "reserved"], flights)
        : h("p", { class: "soft" }, "Nothing is in flight.")),
      notes("Optimisation memory, the newest first", moment.experiences, "Nothing is remembered yet."),
      notes("How predictions fared, the newest first", moment.reflections, "Nothing was reflected on yet."));
    return this.node;
  }
}
