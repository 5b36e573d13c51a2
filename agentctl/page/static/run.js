// The page of a run: figures, the slider through its events, the plot, and its parts as tabs.

import { get } from "./api.js";
import { Candidates, kernelPath } from "./candidates.js";
import { Control } from "./control.js";
import { fill, h, throttled } from "./dom.js";
import { Events } from "./events.js";
import { Health } from "./health.js";
import { Learnt } from "./learnt.js";
import { Money } from "./money.js";
import { Plot } from "./plot.js";
import { figures, state } from "./runs.js";
import { Series } from "./series.js";
import { Tabs } from "./tabs.js";
import { Tree } from "./tree.js";
import { when } from "./text.js";

const SETTLED = 150;
const SPENT_EVERY = 3000; // what was spent is summed over all of a run: seconds of work where that is long
const FETCHING = new Set(["events", "cost", "health"]);

export class RunView {
  /** `at` is the event to look at, null for now; `moved` hears of another, and of the tab. */
  constructor(run, { at, tab, control, moved, go }) {
    this.run = run;
    this.at = at;
    this.tab = tab;
    this.moved = moved;
    this.now = new Series(run);
    this.seen = this.now;
    this.moment = null;
    this.due = null;
    this.asked = 0;
    this.head = h("header", { class: "run-head" });
    this.figures = h("div");
    this.control = control ? new Control(run) : null;
    this.plot = new Plot((name) => go(kernelPath(run, name, this.at, this.tabs?.current ?? null)));
    this.candidates = new Candidates(run);
    this.tree = new Tree(run);
    this.events = new Events(run);
    this.money = new Money(run);
    this.health = new Health(run);
    this.spent = throttled(() => this.at === null && this.money.refresh(null), SPENT_EVERY);
    this.learnt = new Learnt(run);
    this.tabs = null;
    this.node = h("article", { class: "run" }, this.head, this.figures, this.control?.node, this.slider(), this.plot.node,
      h("div", { class: "parts-place" }));
  }

  slider() {
    this.range = h("input", {
      type: "range", id: "moment", min: "1", max: "1", value: "1", step: "1",
      input: () => this.travel(Number(this.range.value)), "aria-describedby": "moment-said",
    });
    this.said = h("output", { id: "moment-said", for: "moment" }, "");
    const step = (by) => () => this.travel((this.at ?? this.now.at) + by);
    this.back = h("button", { type: "button", click: step(-1), "aria-label": "One event back" }, "◀");
    this.ahead = h("button", { type: "button", click: step(1), "aria-label": "One event ahead" }, "▶");
    this.live = h("button", { type: "button", click: () => this.travel(null) }, "Now");
    return h("section", { class: "travel", "aria-label": "Time travel" },
      h("label", { for: "moment" }, "Event "), this.back, this.range, this.ahead, this.live, this.said);
  }

  parts() {
    return [
      { key: "candidates", name: "Candidates", show: () => this.candidates.show(this.seen, this.at) },
      { key: "lineage", name: "Lineage", show: () => this.tree.show(this.seen, this.moment?.run.best, this.at) },
      { key: "beam", name: "Beam and memory", show: () => this.learnt.show(this.moment, this.at) },
      { key: "events", name: "Events", show: () => this.events.show(this.at === null ? null : this.moment?.seq ?? null, this.at) },
      { key: "cost", name: "Cost and time", show: () => this.money.show(this.at) },
      { key: "health", name: "Health", show: () => this.health.show(this.at) },
    ];
  }

  async load(signal) {
    const [whole, moment] = await Promise.all([
      get(["runs", this.run, "series"], {}, { signal }), get(["runs", this.run, "moment"], { at: this.at }, { signal })]);
    this.now.merge(whole);
    if (this.at !== null) {
      this.seen = new Series(this.run).merge(await get(["runs", this.run, "series"], { at: this.at }, { signal }));
    }
    this.moment = moment;
    this.tabs = new Tabs("Parts of the run", this.parts(), this.tab, (tab) => this.moved({ tab }));
    this.node.querySelector(".parts-place").replaceWith(this.tabs.node);
    this.draw();
    await this.refresh(); // of what came while this was fetched, the feed told in vain
  }

  /** Fetch what came since the last look. While the past is shown, only the slider grows. */
  async refresh() {
    if (!this.tabs) return;
    const asked = this.asked;
    const [since, moment] = await Promise.all([
      get(["runs", this.run, "series"], { since: this.now.at }),
      this.at === null ? get(["runs", this.run, "moment"]) : null]);
    if (since.at === this.now.at) return;
    this.now.merge(since);
    if (this.at === null) {
      if (asked !== this.asked || moment === null) return;
      this.moment = moment;
      this.draw();
      if (this.tabs.current === "cost") this.spent();
      else await this.renew();
    } else {
      this.place();
    }
  }

  /** Ask again where the list of runs has another state: whether anybody drives a run is in no event. */
  async agree(state_) {
    if (!this.tabs || this.at !== null || this.moment.run.state === state_) return;
    const asked = this.asked;
    const moment = await get(["runs", this.run, "moment"]);
    if (asked !== this.asked) return;
    this.moment = moment;
    this.draw();
  }

  /** Go to an event; null is now, and so is the last one. A preview is shown at once, what was so exactly as soon as it is there. */
  travel(at) {
    const last = this.now.at;
    this.at = at === null || at >= last ? null : Math.max(1, at);
    this.asked += 1;
    const asked = this.asked;
    this.seen = this.at === null ? this.now : this.now.until(this.at);
    this.place();
    this.plot.show(this.seen, this.bounds);
    clearTimeout(this.due);
    this.due = setTimeout(async () => {
      const [moment, exact] = await Promise.all([
        get(["runs", this.run, "moment"], { at: this.at }),
        this.at === null ? null : get(["runs", this.run, "series"], { at: this.at })]);
      if (asked !== this.asked) return;
      this.moment = moment;
      if (exact) this.seen = new Series(this.run).merge(exact);
      this.moved({ at: this.at });
      this.draw();
      await this.renew();
    }, SETTLED);
  }

  get bounds() {
    return { tight_ms: this.moment?.run.model_bound_ms };
  }

  draw() {
    const run = this.moment.run;
    fill(this.head,
      h("h2", { tabindex: "-1" }, this.run, " ", state(run.state)),
      h("p", { class: "soft" }, `${run.problem} (${run.size}) on ${run.target}, seed ${run.seed}; planned by ${run.planner.join(", ")}, judged by ${run.evaluator} (${run.toolchain})`),
      run.needs_approval.length ? h("p", { class: "warn" }, `It waits for a person: ${run.needs_approval.join(", ")}`) : null);
    fill(this.figures, figures(this.moment));
    this.control?.show(run, this.at);
    this.place();
    this.plot.show(this.seen, this.bounds);
    if (!FETCHING.has(this.tabs.current)) this.tabs.part.show();
  }

  /** Let the tab that shows ask for the moment, where it asks for itself. */
  async renew() {
    const { current } = this.tabs;
    if (current === "cost") await this.money.refresh(this.at);
    else if (current === "health") await this.health.refresh(this.at);
    else if (current === "events" && this.at === null && this.events.upto === null) await this.events.refresh();
    else if (current === "events") this.tabs.part.show();
  }

  place() {
    const last = this.now.at;
    const here = this.at ?? last;
    this.range.max = String(last);
    this.range.value = String(here);
    const what = this.moment && this.moment.at === here ? `: ${this.moment.type}, ${when(this.moment.time)}` : "";
    this.said.textContent = `${here.toLocaleString("en")} of ${last.toLocaleString("en")}${what}${this.at === null ? "" : "; the past"}`;
    this.range.setAttribute("aria-valuetext", this.said.textContent);
    this.live.disabled = this.at === null;
    this.ahead.disabled = this.at === null;
    this.back.disabled = here <= 1;
    this.node.classList.toggle("past", this.at !== null);
  }
}
