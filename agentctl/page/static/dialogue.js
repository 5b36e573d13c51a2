// A session as a dialogue: what the model said in each turn, its tool calls (folded), what they gave, what it cost.

import { h, pill } from "./dom.js";
import { count, ms, took, words } from "./text.js";

const CALM = new Set(["submitted", "near_bound"]);
const MOST_BRIEF = 140;
/** What is longer may have to be scrolled, also by keyboard. */
const MOST_STILL = 1500;

const tokens = (one) => [
  `${one.input_tokens.toLocaleString("en")} tokens in`,
  one.cached_tokens ? ` (${one.cached_tokens.toLocaleString("en")} cached)` : "",
  `, ${one.output_tokens.toLocaleString("en")} out${one.estimated ? " (estimated)" : ""}`,
].join("");

/** US$ of a turn: a cent is much for one. */
const paid = (value) => (value === null ? "cost unknown" : `$${value.toFixed(4)}`);

function brief(text) {
  const first = text.split("\n", 1)[0];
  return first.length > MOST_BRIEF ? `${first.slice(0, MOST_BRIEF)}...` : first;
}

function result(call) {
  if (call.result === null) return pill("it runs");
  if (call.code) return pill(words(call.code), "bad");
  return call.verdict ? pill(words(call.verdict), call.verdict === "correct" ? "good" : "bad") : null;
}

function toolCall(call) {
  return h("details", { class: "tool" },
    h("summary", {}, h("code", {}, call.tool), " ", result(call), " ", h("span", { class: "soft" }, brief(call.result ?? ""))),
    call.arguments.map(([name, text]) => [
      h("p", { class: "soft" }, name || "sent"), h("pre", { class: "raw", tabindex: "0" }, text)]),
    h("p", { class: "soft" }, ["answered", call.ms === null ? "" : ` in ${took(call.ms)}`,
      call.latency_ms === null ? "" : `, ${ms(call.latency_ms)}`, ` (${call.place})`]),
    call.result === null ? null : h("pre", { class: "raw", tabindex: "0" }, call.result));
}

function turn(one) {
  const spent = one.input_tokens === null ? [] : [tokens(one), paid(one.cost_usd)];
  const again = one.attempt > 1 ? `, attempt ${one.attempt}` : "";
  return h("li", {},
    h("h4", {}, `Turn ${one.number}${again} `, one.outcome === "answered" ? null : pill(words(one.outcome), "warn"),
      h("span", { class: "soft cost" }, [...spent, one.ms === null ? null : took(one.ms)].filter(Boolean).join(", "))),
    one.text ? h("p", { class: "said-text", tabindex: one.text.length > MOST_STILL ? "0" : null }, one.text) : null,
    one.calls.map(toolCall));
}

/** The sections of a kernel's sessions, its planner's first. `path` leads to a kernel by its name. */
export function dialogues(found, path) {
  return [
    found.planning ? section("Planner's session", found.planning) : null,
    section("Session", found, found.session && found.session.candidate !== found.kernel
      ? h("p", {}, "It is the session of ", h("a", { href: path(found.session.candidate) }, found.session.candidate), ", which submitted this kernel besides.")
      : null),
  ];
}

/** One session; null where none was held. */
function section(title, found, note = null) {
  const held = found.session;
  if (!held) return null;
  const ended = held.reason ? pill(words(held.reason), CALM.has(held.reason) ? "good" : "warn") : pill("goes on");
  const spent = held.input_tokens ? `, ${tokens(held)}, ${paid(held.cost_usd)}` : "";
  return h("section", { class: "session" }, h("h3", {}, title),
    h("p", {}, `${held.model}: ${held.turns_taken} of ${count(held.most_turns, "turn")}${spent} `, ended,
      held.detail ? h("span", { class: "soft" }, ` ${held.detail}`) : null),
    note,
    h("ol", { class: "dialogue" }, found.turns.map(turn)),
    found.left_out ? h("p", { class: "soft" }, `${count(found.left_out, "turn")} more: agentctl show prints all`) : null);
}
