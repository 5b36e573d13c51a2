// A list of tabs as the ARIA practices have it: arrows move, the panel follows.

import { fill, h } from "./dom.js";

/** `parts` are {key, name, show}; `show` gives the panel's content, `chose` hears which one is shown. */
export class Tabs {
  constructor(label, parts, chosen, chose) {
    this.parts = parts;
    this.chose = chose;
    this.buttons = parts.map((part) => h("button", {
      type: "button", role: "tab", id: `tab-${part.key}`, "aria-controls": "panel",
      click: () => this.choose(part.key, true),
    }, part.name));
    this.panel = h("div", { role: "tabpanel", id: "panel", class: "panel" });
    const list = h("div", { role: "tablist", "aria-label": label, class: "tabs", keydown: (event) => this.key(event) },
      this.buttons);
    this.node = h("section", { class: "parts" }, list, this.panel);
    this.choose(parts.some((part) => part.key === chosen) ? chosen : parts[0].key, false);
  }

  choose(key, asked) {
    this.current = key;
    this.parts.forEach((part, place) => {
      const here = part.key === key;
      this.buttons[place].setAttribute("aria-selected", String(here));
      this.buttons[place].tabIndex = here ? 0 : -1;
      if (here) this.panel.setAttribute("aria-labelledby", `tab-${part.key}`);
    });
    fill(this.panel, this.part.show());
    if (asked) this.chose(key);
  }

  get part() {
    return this.parts.find((part) => part.key === this.current);
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const here = this.parts.findIndex((part) => part.key === this.current);
    const next = (here + step + this.parts.length) % this.parts.length;
    this.choose(this.parts[next].key, true);
    this.buttons[next].focus();
  }
}
