// How endpoints of models and hosts stood at a moment, and what failed before it that was no kernel's fault.

import { get } from "./api.js";
import { fill, h, pill, table } from "./dom.js";
import { count, took, when } from "./text.js";

const time = (said) => h("time", { datetime: said, class: "num" }, when(said));

export class Health {
  constructor(run) {
    this.run = run;
    this.asked = 0;
    this.node = h("div", {}, h("p", { class: "soft" }, "loading ..."));
  }

  show(at) {
    this.refresh(at);
    return this.node;
  }

  /** Show the moment after event `at`; null is now. Of answers that overtake each other the last asked for counts. */
  async refresh(at) {
    const asked = (this.asked += 1);
    const found = await get(["runs", this.run, "health"], { at });
    if (asked !== this.asked) return;
    const providers = found.providers.map((one) => [
      one.name, h("span", {}, pill(one.state, one.state === "up" ? "good" : "warn"), one.resting ? ` ${one.resting}` : ""),
      `${one.calls - one.failed} of ${one.calls}`, took(one.median_ms), one.models.join(", ")]);
    const hosts = found.hosts.map((one) => [one.host, one.device, `${one.verdicts} of ${found.of_verdicts}`, time(one.latest)]);
    const troubles = found.troubles.map((one) => [h("span", { class: "num" }, one.place), time(one.time), one.type, h("span", { class: "told" }, one.text)]);
    fill(this.node,
      providers.length ? table("Endpoints of models, by their last attempts at answers", ["endpoint", "state", "answered", "median time", "models"], providers)
        : h("p", { class: "soft" }, "No model was asked."),
      hosts.length ? table(`Hosts of the last ${count(found.of_verdicts, "verdict")}`, ["host", "device", "verdicts", "latest"], hosts)
        : h("p", { class: "soft" }, found.of_verdicts ? "Kernels were judged on the machine that drove the run." : "Nothing was judged yet."),
      troubles.length ? table("What failed, the newest first, and was no kernel's fault", ["event", "time", "what", "said"], troubles)
        : h("p", { class: "soft" }, "Nothing failed but kernels."));
  }
}
