// What a run cost, and where its time went.

import { get } from "./api.js";
import { figure, shares } from "./charts.js";
import { fill, h, table } from "./dom.js";
import { count, duration, usd } from "./text.js";

export class Money {
  constructor(run) {
    this.run = run;
    this.asked = 0;
    this.node = h("div", {}, h("p", { class: "soft" }, "loading ..."));
  }

  show(at) {
    this.refresh(at);
    return this.node;
  }

  /** Show what was spent by event `at`; null is now. Of answers that overtake each other the last asked for counts. */
  async refresh(at) {
    const asked = (this.asked += 1);
    const found = await get(["runs", this.run, "spending"], { at });
    if (asked !== this.asked) return;
    const rows = found.spent.map((one) => [
      one.role, one.model ?? "none asked", one.calls.toLocaleString("en"), one.answered.toLocaleString("en"),
      one.input_tokens.toLocaleString("en"), one.cached_tokens.toLocaleString("en"), one.output_tokens.toLocaleString("en"), usd(one.usd),
    ]);
    const split = Object.entries(found.split).map(([name, seconds]) => [name, seconds, duration(seconds)]);
    const stages = Object.entries(found.stage_seconds).sort(([, one], [, other]) => other - one);
    const spent = found.usd === null ? `${usd(found.priced_usd)} at known prices, and ${count(found.unpriced, "call")} without one` : usd(found.usd);
    fill(this.node,
      h("h3", {}, "Cost"), h("p", {}, `${spent}; ${count(found.calls, "call")}, ${count(found.tokens, "token")}`),
      figure(found.figure),
      rows.length ? table("By role and model", ["role", "model", "calls", "answered", "tokens in", "of these cached", "tokens out", "cost"], rows)
        : h("p", { class: "soft" }, "No call was paid for."),
      h("h3", {}, "Time"), h("p", {}, `${duration(found.seconds)} from the run's first event to ${at === null ? "its latest" : "this one"}`),
      shares(split, "Where the time went"),
      stages.length ? table("Evaluations, by stage", ["stage", "in all"], stages.map(([name, seconds]) => [name, duration(seconds)])) : null);
  }
}
