// The page of one candidate: what was planned and expected, what changed, how it was judged, its profile.

import { get } from "./api.js";
import { kernelPath } from "./candidates.js";
import { figures } from "./charts.js";
import { diff, source } from "./code.js";
import { dialogues } from "./dialogue.js";
import { fill, h, pill, table } from "./dom.js";
import { runPath } from "./runs.js";
import { counter, count, duration, fate, latency, ms, number, percent, times, words } from "./text.js";

const AGAINST = { parent: "its parent", initial: "the initial kernel", best: "the best" };

function facts(one, at, tab) {
  const link = (name) => (name ? h("a", { href: kernelPath(one.run, name, at, tab) }, name) : null);
  const rows = [
    ["latency", latency(one.latency)],
    ["over its parent", one.speedup === null ? null : `${times(one.speedup)}${one.wins_percent === null ? "" : `, faster with ${percent(one.wins_percent)} confidence`}`],
    ["over the initial kernel", one.gain === null || !one.parent ? null : times(one.gain)],
    ["verdict", one.verdict ? words(one.verdict) + (one.refuted ? ", though it was correct at first" : "") : null],
    ["fate", fate({ ...one, error_code: one.failure?.code ?? null })],
    ["against", one.against ? [link(one.against), `, faster with only ${percent(one.against_wins_percent)} confidence`] : null],
    ["duplicate of", link(one.duplicate_of)],
    ["parent", link(one.parent)],
    ["made into", one.children.length ? one.children.slice(0, 12).flatMap((name) => [link(name), " "]) : null],
    ["repairs", one.repairs.length ? one.repairs.flatMap((name) => [link(name), " "]) : null],
    ["by", [one.author, one.planner && one.planner !== one.author ? one.planner : null, one.model].filter(Boolean).join(", ")],
    ["bound by", one.bottleneck],
    ["round", `${one.round}, slot ${one.slot}`],
    ["history", one.history ? "its latency is from before the fork, which judges by something else" : null],
  ];
  return h("dl", { class: "facts" }, rows.filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function plan(one) {
  if (!one.title && !one.note) return null;
  const said = one.expected;
  const counterSaid = said?.counter ? `; ${said.counter} ${said.direction < 0 ? "falls" : "rises"}` : "";
  return h("section", {}, h("h3", {}, "Plan, prediction, outcome"),
    h("p", {}, one.steps.length > 1 ? `${one.steps.length} rewrites together, ` : `${one.title ?? one.note} `,
      one.technique ? h("code", {}, one.technique) : null, one.site && one.steps.length < 2 ? ` at ${one.site}` : null),
    one.steps.length > 1 ? h("ol", {}, one.steps.map((step) => h("li", {}, `${step.title} (${words(step.technique)}, ${times(step.speedup)} predicted)`))) : null,
    said ? h("p", {}, `Predicted before it was tried: ${times(said.speedup)}${counterSaid}. `, h("span", { class: "soft" }, said.reason)) : null,
    one.lesson ? h("p", {}, `The prediction was ${one.lesson.grade}: expected ${times(one.lesson.predicted_speedup)}, got ${
      one.lesson.actual_speedup === null ? "no latency" : times(one.lesson.actual_speedup)}. `, h("span", { class: "soft" }, one.lesson.lesson)) : null,
    one.experience ? h("p", {}, "Learnt from it: ", one.experience) : null,
    one.failure ? h("p", { class: "bad" }, fault(one.failure)) : null);
}

const fault = (error) => `${error.line ? `line ${error.line}: ` : ""}${error.message} [${error.code}]${error.hint ? `; ${error.hint}` : ""}`;

const ROLES = { evaluator: "as proposed", verifier: "before the beam", auditor: "before the end" };

function judged(one) {
  if (!one.judgements.length) return h("p", { class: "soft" }, "Not judged yet.");
  const rows = one.judgements.map((said) => [
    ROLES[said.role] ?? said.role, words(said.level), pill(words(said.verdict), said.verdict === "correct" ? "good" : "bad"), said.stage,
    said.identity ? `${said.identity}${said.identity_reason ? `: ${said.identity_reason}` : ""}` : "",
    Object.keys(said.rel_l2).length ? number(Math.max(...Object.values(said.rel_l2)), 2) : "",
    duration(Object.values(said.stage_ms).reduce((sum, value) => sum + value, 0) / 1e3),
    said.cached_from ? `known from ${said.cached_from}` : said.place,
  ]);
  const errors = one.judgements.filter((said) => said.error);
  return h("div", {},
    table("The judge's report", ["when", "compared", "verdict", "stage", "identity", "worst rel. L2", "took", "event"], rows, { unseen: true }),
    errors.map((said) => h("p", { class: "bad" }, fault(said.error))));
}

function profile(own, parent) {
  const held = own.candidate.profile;
  if (!held) return h("p", { class: "soft" }, "No profile was recorded.");
  const lines = (held.top_lines ?? []).map((part) => [part.line ? `line ${part.line}` : "any kernel", words(part.op), ms(part.ms)]);
  const wasted = [...(held.inefficiencies ?? []).map((one) => one.message), ...(held.table_notes ?? [])];
  const memory = Object.entries(held.memory ?? {}).map(([name, use]) => [name.toUpperCase(), `${use.peak} of ${use.capacity} ${use.unit}`, percent((100 * use.peak) / use.capacity)]);
  const former = parent ? (name) => [parent.candidate.counters[name] === undefined ? "" : counter(name, parent.candidate.counters[name])] : () => [];
  const counters = Object.entries(own.candidate.counters).map(([name, value]) => [h("code", {}, name), counter(name, value), ...former(name)]);
  return h("div", {},
    figures(own.figures, own.timeline?.predicted), own.bandwidth ? h("p", {}, own.bandwidth) : null,
    wasted.length ? h("p", {}, `In vain: ${wasted.join("; ")}.`) : null,
    lines.length ? table("Costliest on the critical path", ["where", "what", "time"], lines) : null,
    memory.length ? table("Memory in use at the worst moment", ["memory", "in use", "share"], memory) : null,
    h("details", {}, h("summary", {}, `All ${count(counters.length, "counter")}`),
      table("Counters", ["counter", "this kernel", ...(parent ? ["its parent"] : [])], counters)));
}

/** The page of a candidate after event `at` of its run (null: now); `tab` is the one to go back to. */
export class KernelView {
  constructor(run, name, { at, tab, back }) {
    this.run = run;
    this.name = name;
    this.at = at;
    this.tab = tab;
    this.against = "parent";
    this.node = h("article", { class: "kernel" }, h("p", { class: "soft" }, "loading ..."));
    this.back = back;
  }

  async load(signal) {
    const own = await get(["runs", this.run, "kernels", this.name], { at: this.at }, { signal });
    const one = own.candidate;
    const parent = one.parent && one.parent !== one.id
      ? await get(["runs", this.run, "kernels", one.parent], { at: this.at }, { signal }) : null;
    const held = await get(["runs", this.run, "kernels", this.name, "session"], { at: this.at }, { signal });
    const changes = h("div");
    fill(this.node,
      h("p", {}, h("a", { href: `${runPath(this.run)}${this.back}`, "data-key": "back" }, `← ${this.run}`)),
      h("h2", { tabindex: "-1" }, `Kernel ${one.id}`), this.moment(), facts(one, this.at, this.tab), plan(one),
      h("section", {}, h("h3", {}, "What changed"), this.choice(one, changes), changes),
      h("section", {}, h("h3", {}, "The judge's report"), judged(one)),
      ...dialogues(held, (name) => kernelPath(this.run, name, this.at, this.tab)),
      h("section", {}, h("h3", {}, own.candidate.profile?.predicted ? "Profile (predicted)" : "Profile"), profile(own, parent)),
      h("section", {}, h("h3", {}, "Source"), one.source === null ? h("p", { class: "soft" }, "There is none.") : source(own.lines)));
    await this.compare(one, changes, signal);
  }

  /** Says that this is the past, and leads to now. */
  moment() {
    if (this.at === null) return null;
    return h("p", { class: "then", role: "status" }, `As it was after event ${this.at.toLocaleString("en")}. `,
      h("a", { href: kernelPath(this.run, this.name, null, this.tab) }, "As it is now"));
  }

  choice(one, changes) {
    if (!one.parent) return null;
    return h("p", { class: "filters" }, h("label", { for: "against" }, "Against ", h("select", {
      id: "against", change: (event) => {
        this.against = event.target.value;
        this.compare(one, changes);
      },
    }, Object.entries(AGAINST).map(([value, name]) => h("option", { value, selected: value === this.against }, name)))));
  }

  async compare(one, changes, signal) {
    const other = this.against === "parent" ? one.parent : this.against;
    if (!other) {
      fill(changes, h("p", { class: "soft" }, "This is where the run began."));
      return;
    }
    fill(changes, diff(await get(["runs", this.run, "diff"], { a: other, b: one.id, at: this.at }, { signal })));
  }
}
