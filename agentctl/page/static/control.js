// Steering a run: forms whose answers come from the log. What is refused says why, beside the form.

import { maySteer, steer } from "./api.js";
import { h, fill } from "./dom.js";
import { runPath } from "./runs.js";

function field(id, label, made, help) {
  const note = help ? h("p", { class: "soft", id: `${id}-help` }, help) : null;
  if (help) made.setAttribute("aria-describedby", `${id}-help`);
  made.id = id;
  return h("div", { class: "field" }, h("label", { for: id }, label), made, note);
}

const REASON = (verb) => field(`${verb}-reason`, "Reason, kept in the log", h("input", { name: "reason", maxlength: "500", placeholder: "asked for" }));
const SETTINGS = (verb) => field(`${verb}-settings`, "Settings, one KEY=VALUE a line",
  h("textarea", { name: "settings", rows: "3", placeholder: "search.rounds=8" }), "Keys as in docs/configuration.md; they count from the next round on.");

const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

const VERBS = [
  { verb: "pause", name: "Pause", tell: "Start nothing new; what is in flight is finished.", fields: () => [REASON("pause")], allowed: (run) => ["running", "queued", "interrupted"].includes(run.state) },
  { verb: "resume", name: "Resume", tell: "Carry on.", fields: () => [REASON("resume")], allowed: (run) => run.state === "paused" && !run.needs_approval.length },
  { verb: "approve", name: "Approve", tell: "Let the run pass the point at which it waits for a person.", fields: () => [REASON("approve")], allowed: (run) => run.needs_approval.length > 0 },
  { verb: "set", name: "Set", tell: "Change settings of the run.", fields: () => [SETTINGS("set")], allowed: live },
  { verb: "propose", name: "Propose", tell: "Enter a kernel of yours, to be judged like any other.", allowed: live, fields: () => [
    field("propose-note", "What it changes, for people", h("input", { name: "note", maxlength: "500" })),
    field("propose-source", "Source of the kernel", h("textarea", { name: "source", rows: "10", required: true, spellcheck: "false", class: "mono" }))] },
  { verb: "fork", name: "Fork", tell: "Continue from an event as a run of its own; this one goes on undisturbed.", allowed: () => true, fields: (at) => [
    field("fork-seq", "From its event number", h("input", { name: "seq", type: "number", min: "1", value: at ?? "", placeholder: "the last" })), SETTINGS("fork")] },
  { verb: "cancel", name: "Cancel", tell: "End the run for good; what is in flight is dropped.", fields: () => [REASON("cancel")], allowed: live, grave: true },
];

function live(run) {
  return !["completed", "cancelled"].includes(run.state);
}

function command(verb, run, form) {
  const given = new FormData(form);
  const said = { verb, run };
  for (const [name, value] of given) {
    const text = String(value);
    if (name === "settings") said.settings = lines(text);
    else if (name === "seq") Object.assign(said, text ? { seq: Number(text) } : {});
    else if (name === "source") said.source = text;
    else if (text.trim()) said[name] = text.trim();
  }
  if (verb === "fork" && !said.settings) said.settings = [];
  return said;
}

function told(answer, run) {
  if (answer.state === "queued") return ["Queued: nobody owns this home now; agentd, or the next agentctl run, takes it up."];
  const result = answer.result ?? {};
  if (result.changed) {
    const changed = Object.entries(result.changed).map(([key, [old, now]]) => `${key} ${JSON.stringify(old)} → ${JSON.stringify(now)}`);
    return [changed.length ? `Done: ${changed.join(", ")}, from round ${result.from_round} on.` : "Done, and nothing changes."];
  }
  if (result.candidate) return [`Done: it is ${result.candidate} of round ${result.round}.`];
  if (result.run && result.run !== run) return ["Done: ", h("a", { href: runPath(result.run) }, result.run)];
  return ["Done."];
}

/** The buttons and forms for a run; only those are shown that its state allows. */
export class Control {
  constructor(run) {
    this.run = run;
    this.open = null;
    this.bar = h("div", { class: "bar-buttons" });
    this.form = h("div");
    this.node = h("section", { class: "control", "aria-label": "Steer this run" }, this.bar, this.form);
  }

  /** Show the verbs that a run's state allows; of the past (`at` is an event) there is only a fork. */
  show(view, at) {
    const seq = this.form.querySelector("[name=seq]");
    if (seq && at !== this.at) seq.value = at ?? "";
    this.at = at;
    const offered = VERBS.filter((one) => (at === null ? one.allowed(view) : one.verb === "fork"));
    if (!maySteer()) {
      fill(this.bar, h("p", { class: "soft" }, "To steer from this tab, open the address that agentctl ui printed."));
      return;
    }
    fill(this.bar, offered.map((one) => h("button", {
      type: "button", "data-key": `verb ${one.verb}`, class: one.grave ? "grave" : null, "aria-expanded": String(this.open === one.verb),
      click: () => this.choose(this.open === one.verb ? null : one),
    }, one.name)), at === null ? null : h("p", { class: "soft" }, "From the past a run can only be forked; the rest is done from now."));
    if (this.open && !offered.some((one) => one.verb === this.open)) this.open = null;
  }

  choose(one) {
    this.open = one?.verb ?? null;
    for (const button of this.bar.querySelectorAll("button")) button.setAttribute("aria-expanded", String(button.dataset.key === `verb ${this.open}`));
    if (!one) {
      fill(this.form);
      return;
    }
    const said = h("p", { role: "status", class: "answer" });
    const send = h("button", { type: "submit", class: one.grave ? "grave" : null }, one.grave ? `${one.name} for good` : one.name);
    const form = h("form", { submit: (event) => {
      event.preventDefault();
      this.send(one.verb, form, send, said);
    } }, h("h3", {}, `${one.name} ${this.run}`), h("p", { class: "soft" }, one.tell), one.fields(this.at), send, said);
    fill(this.form, form);
    form.querySelector("input, textarea")?.focus();
  }

  async send(verb, form, button, said) {
    button.disabled = true;
    said.className = "answer";
    said.textContent = "sent, waiting for the answer ...";
    try {
      const answer = await steer(command(verb, this.run, form));
      said.classList.add("good");
      fill(said, told(answer, this.run));
    } catch (error) {
      said.classList.add("bad");
      fill(said, `Refused: ${error.message}${error.hint ? ` (${error.hint})` : ""}`);
    } finally {
      button.disabled = false;
    }
  }
}
