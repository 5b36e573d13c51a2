// Where the page begins: the address says what is shown, the feed says when to look again.

import { get, listen, Refused } from "./api.js";
import { Compare } from "./compare.js";
import { fill, h, throttled } from "./dom.js";
import { KernelView } from "./kernel.js";
import { redrawn } from "./plot.js";
import { RunView } from "./run.js";
import { runPath, showNow, showRuns } from "./runs.js";
import { when } from "./text.js";

const at = (id) => document.getElementById(id);
const NOW_EVERY = 3000;
const UPDATE_EVERY = 150;
const LINES = { live: ["live", "good"], reconnecting: ["reconnecting", "warn"], lost: ["disconnected", "bad"] };

let home = null;
let view = null;
let shown = null;
let leaving = null;
let opening = false;

/** What an address says: #/run/RUN, #/run/RUN/kernel/NAME, #/compare/A/B, with ?at= and ?tab=. */
export function route(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map(decodeURIComponent);
  const asked = new URLSearchParams(query ?? "");
  const number = Number(asked.get("at"));
  return {
    kind: parts[0] === "compare" ? "compare" : parts[2] === "kernel" ? "kernel" : parts[0] === "run" ? "run" : "home",
    parts: parts.slice(1),
    at: Number.isInteger(number) && number > 0 ? number : null,
    tab: asked.get("tab"),
  };
}

function query({ at: moment, tab }) {
  const found = new URLSearchParams();
  if (moment) found.set("at", moment);
  if (tab) found.set("tab", tab);
  const text = found.toString();
  return text ? `?${text}` : "";
}

function trouble(error) {
  const node = at("trouble");
  if (error === null) {
    node.hidden = true;
    return;
  }
  if (error.name === "AbortError") return;
  fill(node, error instanceof Refused ? `${error.message}${error.hint ? ` (${error.hint})` : ""}` : `The server cannot be reached: ${error.message}`);
  node.hidden = false;
}

async function guarded(work) {
  try {
    await work();
    trouble(null);
  } catch (error) {
    trouble(error);
  }
}

async function refreshHome() {
  home = await get(["home"]);
  const { daemon } = home.overview;
  fill(at("owner"), `${daemon.home}, driven by ${daemon.state === "running" ? `${daemon.kind} since ${when(daemon.since)}` : "nobody"}`);
  showRuns(at("runs"), home, shown?.parts[0]);
  showNow(at("now"), home);
  const line = home.overview.runs.find((run) => run.id === view?.run);
  if (line && view instanceof RunView) await view.agree(line.state);
}

function go(hash) {
  location.hash = hash;
}

function made(wanted) {
  const [one, other, third] = wanted.parts;
  const runs = home.overview.runs.map((run) => run.id);
  if (wanted.kind === "compare") return new Compare(one, other, runs, go);
  if (wanted.kind === "kernel") return new KernelView(one, third, { at: wanted.at, tab: wanted.tab, back: query(wanted) });
  const run = wanted.kind === "run" ? one : runs[0];
  if (!run) return null;
  shown = { ...wanted, parts: [run] };
  const moved = (change) => {
    Object.assign(shown, change);
    history.replaceState(null, "", `${runPath(run)}${query(shown)}`);
  };
  return new RunView(run, { at: wanted.at, tab: wanted.tab, control: home.control, moved, go });
}

async function open() {
  leaving?.abort();
  leaving = new AbortController();
  const first = shown === null;
  const wanted = route(location.hash);
  shown = wanted;
  opening = true;
  await guarded(async () => {
    if (home === null || !home.overview.runs.length) await refreshHome();
    opening = false;
    view = made(wanted);
    const other = home.overview.runs.find((run) => run.id !== shown.parts[0]);
    const beside = other && view instanceof RunView
      ? h("p", { class: "soft" }, h("a", { href: `#/compare/${encodeURIComponent(shown.parts[0])}/${encodeURIComponent(other.id)}` }, "Compare with another run")) : null;
    fill(at("main"), beside, view?.node ?? h("p", { class: "soft" }, "No run yet. Start one with ", h("code", {}, "agentctl run"), ", or ", h("code", {}, "agentctl submit"), "; it shows here as it begins."));
    showRuns(at("runs"), home, shown.parts[0]);
    document.title = `${shown.parts[0] ?? "no runs"} · nki-kernel-agent`;
    await view?.load(leaving.signal);
    if (!first) view?.node.querySelector("h2")?.focus({ preventScroll: true });
  });
}

const refresh = throttled(() => guarded(async () => {
  if (view instanceof RunView) await view.refresh();
  else if (view === null && !opening) await open();
}), UPDATE_EVERY);
const refreshNow = throttled(() => guarded(refreshHome), 1000);

const SCHEMES = ["system", "light", "dark"];
const SCHEME = "scheme";

function dress(scheme) {
  document.documentElement.style.setProperty("color-scheme", scheme === "system" ? "light dark" : scheme);
  at("theme").textContent = `Theme: ${scheme}`;
  redrawn();
}

function start() {
  const scheme = () => localStorage.getItem(SCHEME) ?? "system";
  dress(scheme());
  at("theme").addEventListener("click", () => {
    localStorage.setItem(SCHEME, SCHEMES[(SCHEMES.indexOf(scheme()) + 1) % SCHEMES.length]);
    dress(scheme());
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dress(scheme()));
  addEventListener("hashchange", open);
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    at("main").focus();
  });
  setInterval(() => document.hidden || refreshNow(), NOW_EVERY);
  listen(() => {
    refresh();
    refreshNow();
  }, (how) => {
    const [text, kind] = LINES[how];
    at("live").textContent = text;
    at("live").className = `pill ${kind}`;
  });
  open();
}

start();
