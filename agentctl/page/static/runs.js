// The list of runs, with those that wait and where forks come from; and how things are now.

import { fill, h, pill } from "./dom.js";
import { count, ms, percent, reason, times, took, usd, when } from "./text.js";

const KINDS = {
  running: "good", completed: "good", paused: "warn", interrupted: "warn", queued: "soft", cancelled: "soft",
};

export const state = (word) => pill(word, KINDS[word] ?? "");

export const runPath = (run) => `#/run/${encodeURIComponent(run)}`;

function line(run, chosen) {
  const best = run.best_ms === null ? "no correct kernel yet"
    : `${ms(run.best_ms)}${run.predicted ? " predicted" : " measured"}, ${times(run.speedup)}`;
  const from = run.parent ? h("span", { class: "soft" }, `fork of ${run.parent}`) : null;
  return h("li", {},
    h("a", { href: runPath(run.id), "data-key": `run ${run.id}`, "aria-current": run.id === chosen ? "page" : null },
      h("span", { class: "name" }, run.id), state(run.state),
      h("span", { class: "soft" }, `round ${run.round}/${run.rounds} · ${best}`), from));
}

/** The runs in the order of the list; forks stand below what they continue, where that is shown. */
export function families(runs) {
  const shown = new Set(runs.map((run) => run.id));
  const below = Map.groupBy ? Map.groupBy(runs, (run) => run.parent) : group(runs);
  const walk = (run, depth) => [{ run, depth }, ...(below.get(run.id) ?? []).flatMap((one) => walk(one, depth + 1))];
  return runs.filter((run) => !shown.has(run.parent)).flatMap((run) => walk(run, 0));
}

function group(runs) {
  const found = new Map();
  for (const run of runs) found.set(run.parent, [...(found.get(run.parent) ?? []), run]);
  return found;
}

/** Fill the list of runs. */
export function showRuns(node, home, chosen) {
  const rows = families(home.overview.runs).map(({ run, depth }) => {
    const item = line(run, chosen);
    if (depth) item.classList.add("fork");
    return item;
  });
  const waiting = home.waiting.map((run) => h("li", { class: "waits" },
    h("span", { class: "name" }, run), pill("waits", "soft"), h("span", { class: "soft" }, "in the inbox")));
  const more = home.overview.more ? h("p", { class: "soft" }, `${count(home.overview.more, "older run")} not shown`) : null;
  const none = rows.length || waiting.length ? null : h("p", { class: "soft" }, "No runs yet.");
  fill(node, h("ul", { class: "runs" }, waiting, rows), more, none);
}

function inFlight(runs) {
  const busy = runs.filter((run) => run.in_flight);
  if (!busy.length) return h("p", { class: "soft" }, "Nothing is in flight.");
  return h("ul", {}, busy.map((run) => h("li", {}, `${run.id}: `,
    Object.entries(run.in_flight_roles).map(([role, number]) => count(number, role)).join(", "))));
}

function standing(title, items, tell) {
  if (!items.length) return null;
  return h("div", {}, h("h3", {}, title), h("ul", {}, items.map((one) => h("li", {},
    `${one.name} `, pill(one.state, one.state === "up" ? "good" : "warn"), ` ${tell(one)}`))));
}

const provider = (one) => [
  one.resting, `${one.calls - one.failed} of its last ${one.calls} answered`,
  one.median_ms === null ? null : `median ${took(one.median_ms)}`,
].filter(Boolean).join("; ");

const host = (one) => [one.why, one.why && one.remedy, one.device, one.in_flight === null ? null : `${one.in_flight} in flight`]
  .filter(Boolean).join("; ");

/** Fill the panel of how things are now; it is refreshed by time too, since hosts change without events. */
export function showNow(node, home) {
  const { daemon, runs, providers, hosts, day } = home.overview;
  const rate = runs.find((run) => run.evaluations_per_hour !== null);
  const troubled = runs.filter((run) => run.errors);
  fill(node,
    h("dl", { class: "facts" },
      h("dt", {}, "owner"),
      h("dd", {}, daemon.state === "running" ? `${daemon.kind} ${daemon.pid} since ${when(daemon.since)}` : "nobody"),
      rate ? [h("dt", {}, "rate"), h("dd", {}, `${Math.round(rate.evaluations_per_hour).toLocaleString("en")} kernels judged per hour`)] : null,
      daemon.queued ? [h("dt", {}, "inbox"), h("dd", {}, `${count(daemon.queued, "command")} wait`)] : null,
      day ? [h("dt", {}, day.date), h("dd", {}, `${usd(day.spent_usd)}, ${count(day.spent_calls, "call")}`)] : null),
    inFlight(runs),
    standing("Providers", providers, provider),
    standing("Hosts", hosts, host),
    daemon.config_refused ? h("p", { class: "warn" }, `an edit was refused: ${daemon.config_refused}`) : null,
    troubled.map((run) => h("p", { class: "warn" }, `${run.id}: ${count(run.errors.count, "error")} lately, the last: ${run.errors.last}`)),
    home.remedies.map((one) => h("p", { class: "remedy" }, `${one.run}: ${one.why}. `, h("code", {}, one.command))));
}

/** The figures of a run, as cards. */
export function figures(moment) {
  const run = moment.run;
  const kind = run.predicted ? "predicted" : "measured";
  const between = run.best_ms === null ? "" : `${ms(run.best_lo_ms)} to ${ms(run.best_hi_ms)}`;
  const sure = run.best_wins_percent === null || run.speedup === 1 ? "" : `faster with ${percent(run.best_wins_percent)} confidence`;
  const cap = run.caps.usd ? `of ${usd(run.caps.usd)}` : run.spent_calls ? count(run.spent_calls, "call") : "no model is paid";
  const cards = [
    ["best", run.best_ms === null ? "none yet" : `${ms(run.best_ms)} ${kind}`, between],
    ["speed-up", times(run.speedup), sure],
    ["of the roofline", percent(run.percent_of_peak), ""],
    ["of the model bound", percent(run.percent_of_model_bound), moment.below_bound ?? `bound ${ms(run.model_bound_ms)}`],
    ["round", `${run.round} of ${run.rounds}`, reason(run.reason)],
    ["judged", run.evaluated.toLocaleString("en"), `${run.failed} not correct, ${count(run.duplicates, "duplicate")}`],
    ["spent", usd(run.spent_usd), cap],
    ["in flight", String(run.in_flight), run.reserved_usd ? `${usd(run.reserved_usd)} reserved` : ""],
  ];
  return h("dl", { class: "figures" }, cards.map(([name, value, note]) => h("div", {},
    h("dt", {}, name), h("dd", {}, value), note ? h("dd", { class: "soft" }, note) : null)));
}
