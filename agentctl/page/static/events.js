// The event stream: newest first, by family and text, with older ones on demand; each opens to all it says.

import { get } from "./api.js";
import { choice, kernelPath } from "./candidates.js";
import { fill, h } from "./dom.js";
import { when } from "./text.js";

const FAMILIES = ["run", "command", "round", "plan", "execution", "evaluation", "decision", "learning", "safety", "call", "log"];
const MOST = 1000;

export class Events {
  constructor(run) {
    this.run = run;
    this.scope = "run";
    this.types = "";
    this.text = "";
    this.lines = [];
    this.before = null;
    this.upto = null;
    this.due = null;
    this.asked = 0;
    this.list = h("ol", { class: "events" });
    this.more = h("div");
    this.node = h("div", {}, this.form(), this.list, this.more);
  }

  form() {
    const set = (name, pause) => (value) => {
      this[name] = value;
      clearTimeout(this.due);
      this.due = setTimeout(() => this.again(), pause);
    };
    return h("form", { class: "filters", submit: (event) => event.preventDefault() },
      choice("scope", "Of", [["run", "this run"], ["system", "the system"], ["all", "all runs"]], this.scope, set("scope", 0)),
      choice("family", "Family", [["", "all"], ...FAMILIES.map((name) => [name, name])], this.types, set("types", 0)),
      h("label", { for: "text" }, "With ", h("input", {
        id: "text", type: "search", placeholder: "any words", maxlength: "200", input: (event) => set("text", 250)(event.target.value),
      })));
  }

  get query() {
    return { run: { run: this.run, system: "system", all: "" }[this.scope], types: this.types, text: this.text };
  }

  /** Show what there is up to an event's number in the log; null is the newest. */
  show(upto, at) {
    if (!this.lines.length || upto !== this.upto) {
      this.upto = upto;
      this.at = at;
      this.again();
    }
    return this.node;
  }

  async again() {
    const asked = (this.asked += 1);
    const found = await get(["events"], { ...this.query, before: this.upto === null ? null : this.upto + 1 });
    if (asked !== this.asked) return;
    this.lines = found.lines;
    this.before = found.before;
    this.draw();
  }

  /** Add what happened since, while the newest are shown. */
  async refresh() {
    if (this.upto !== null) return;
    if (!this.lines.length) {
      await this.again();
      return;
    }
    const asked = this.asked;
    const found = await get(["events"], { ...this.query, after: this.lines[0].seq });
    if (asked !== this.asked || !found.lines.length) return;
    this.lines = [...found.lines, ...this.lines].slice(0, MOST);
    this.before = this.lines.at(-1).seq;
    fill(this.list, this.lines.map((line) => this.made(line)));
  }

  async older() {
    const asked = this.asked;
    const found = await get(["events"], { ...this.query, before: this.before });
    if (asked !== this.asked) return;
    this.lines = [...this.lines, ...found.lines].slice(-MOST);
    this.before = found.before;
    this.draw();
  }

  draw() {
    fill(this.list, this.lines.length ? this.lines.map((line) => this.made(line)) : h("li", { class: "soft" }, "No such events."));
    fill(this.more, this.before === null ? null
      : h("button", { type: "button", "data-key": "older", click: () => this.older() }, "Older events"));
  }

  /** Lines are made once: what is open stays open while others come. */
  made(line) {
    line.node ??= this.line(line);
    return line.node;
  }

  line(line) {
    const detail = h("div");
    const fold = h("details", { toggle: () => fold.open && !detail.firstChild && this.open(line, detail) },
      h("summary", { "data-key": `event ${line.seq}` },
        h("time", { datetime: line.time, class: "soft" }, when(line.time)), " ",
        h("span", { class: "soft" }, `${line.run}@${line.run_seq}`), " ",
        h("span", { class: `family f-${line.family}` }, line.type), " ",
        h("span", {}, [line.candidate, line.text].filter(Boolean).join(": "))), detail);
    return h("li", {}, fold);
  }

  async open(line, detail) {
    fill(detail, h("p", { class: "soft" }, "loading ..."));
    const found = await get(["events", line.run, line.run_seq]);
    const isKernel = line.candidate && line.run !== "system";
    fill(detail,
      isKernel ? h("p", {}, h("a", { href: kernelPath(line.run, line.candidate, line.run === this.run ? this.at : null, "events") }, `kernel ${line.candidate}`)) : null,
      h("pre", { class: "raw", tabindex: "0" }, JSON.stringify(found.event, null, 2)),
      Object.entries(found.blobs).map(([digest, text]) => h("details", {}, h("summary", {}, `blob ${digest.slice(0, 12)}`),
        h("pre", { class: "raw", tabindex: "0" }, text))));
  }
}
