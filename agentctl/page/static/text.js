// Numbers in words, the same ones as on the command line (agentctl/formatting.py).

export const NONE = "-";

function digits(value, wanted) {
  if (value === 0) return "0";
  const text = value.toPrecision(wanted);
  return text.includes("e") ? String(Number(text)) : text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

export const number = (value, wanted = 4) => (value === null || value === undefined ? NONE : digits(value, wanted));
export const ms = (value) => (value === null || value === undefined ? NONE : `${digits(value, 4)} ms`);
export const times = (value) => (value === null || value === undefined ? NONE : `${value.toFixed(2)}x`);
export const percent = (value) => (value === null || value === undefined ? NONE : `${value.toFixed(1)} %`);
export const usd = (value) => (value === null || value === undefined ? "unknown" : `$${value.toFixed(2)}`);
export const count = (value, noun) => `${value.toLocaleString("en")} ${noun}${value === 1 ? "" : "s"}`;
export const words = (name) => String(name).replaceAll("_", " ");

/** A latency with where it comes from, and its interval. */
export function latency(timed) {
  if (!timed) return "no latency";
  const kind = timed.predicted ? "predicted" : "measured";
  const [low, high] = [number(timed.lo_ms), number(timed.hi_ms)];
  const between = low === high ? "" : ` (${low} to ${high})`;
  return `${ms(timed.ms)} ${kind}${between}${timed.unlike ? ", unlike anything measured" : ""}`;
}

/** h:mm:ss, or m:ss below an hour. */
export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (value) => String(value).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

/** A short time of work: ms below a second, else seconds. */
export const took = (value) => (value === null || value === undefined ? NONE : value < 1000 ? `${value.toFixed(0)} ms` : `${(value / 1000).toFixed(1)} s`);

/** A value with the decimal prefix that leaves one to three digits in front. */
export function scaled(value, unit) {
  for (const [factor, prefix] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= factor) return `${(value / factor).toFixed(1)} ${prefix}${unit}`;
  }
  return `${digits(value, 4)} ${unit}`;
}

/** A counter with its unit, which the end of its name says. */
export function counter(name, value) {
  if (name.endsWith("_bytes")) return scaled(value, "B");
  if (name.endsWith("_flops")) return scaled(value, "flop");
  if (name.endsWith("_percent")) return percent(value);
  if (name.endsWith("time")) return ms(1e3 * value);
  return Number.isInteger(value) ? value.toLocaleString("en") : number(value);
}

/** UTC to the second, without its date's T. */
export const when = (iso) => (iso ? `${iso.slice(0, 10)} ${iso.slice(11, 19)}Z` : NONE);

/** A change in a line: of several rewrites, the first. */
export function brief(title) {
  const parts = (title ?? "").split("; ");
  return parts.length > 1 ? `${parts[0]}, and more` : parts[0];
}

const ENDED = {
  rounds: "all rounds done", target: "target reached", plateau: "no more gains", near_bound: "near the model bound",
  budget: "budget spent", initial_rejected: "the initial kernel was rejected", no_proposals: "nothing left to try",
  infrastructure: "the infrastructure failed",
};

/** Why a run ended or rests, in words. */
export const reason = (said) => (said ? ENDED[said] ?? said : "");

const DISCARDED = { slower: "not faster" };

/** What became of a candidate, in words. */
export function fate(row) {
  if (row.decision === "kept") return row.role === "explorer" ? "kept, explores" : "kept";
  if (row.decision === "discarded") return DISCARDED[row.reason] ?? words(row.reason ?? "discarded");
  if (row.verdict) return row.verdict === "correct" ? "correct, undecided" : words(row.verdict);
  return row.error_code ? words(row.error_code) : "in flight";
}
