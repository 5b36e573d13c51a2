// Latency over candidates, on a canvas: tens of thousands of points, the best so far, the beam, the bounds.

import { h, visible } from "./dom.js";
import { competes } from "./series.js";
import { fate, ms, number, times } from "./text.js";

const PAD = { left: 58, right: 14, top: 22, bottom: 40 };
const NEAR = 18;
const BEAM_LEAST = 6;
const COLOURS = ["text", "soft", "line", "accent", "kept", "other", "beam", "bad", "panel", "bound"];

/** Round values between two ends, on a logarithmic or linear scale. */
export function ticks(low, high, logarithmic, wanted = 6) {
  const found = [];
  if (logarithmic && high / low > 8) {
    for (let ten = 10 ** Math.floor(Math.log10(low)); ten <= high; ten *= 10) {
      for (const step of [1, 2, 5]) if (ten * step >= low && ten * step <= high) found.push(ten * step);
    }
    return found;
  }
  const rough = (high - low) / wanted || 1;
  const ten = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * ten).find((one) => one >= rough);
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) found.push(value);
  return found;
}

let known = null;
const drawn = new Map();

/** Draw all that shows anew: the scheme has changed. */
export function redrawn() {
  known = null;
  for (const [canvas, redraw] of drawn) {
    if (canvas.isConnected) redraw();
    else drawn.delete(canvas);
  }
}

/** The colours of the page's scheme, as a canvas needs them. */
export function colours() {
  if (known) return known;
  const probe = h("span", { hidden: true });
  document.body.append(probe);
  known = {};
  for (const name of COLOURS) {
    probe.style.setProperty("color", `var(--${name})`);
    known[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return known;
}

/** A canvas that is as sharp as the screen, and redraws when its width changes. */
export function sharp(canvas, height, draw) {
  const redraw = () => {
    const width = Math.max(200, canvas.parentElement?.clientWidth ?? 600);
    const ratio = Math.min(3, window.devicePixelRatio || 1);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.setProperty("width", `${width}px`);
    canvas.style.setProperty("height", `${height}px`);
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    draw(pen, width, height);
  };
  const watch = new ResizeObserver(() => {
    if (canvas.isConnected) {
      redraw();
      return;
    }
    watch.disconnect();
    drawn.delete(canvas);
  });
  drawn.set(canvas, redraw);
  requestAnimationFrame(() => canvas.parentElement && watch.observe(canvas.parentElement));
  return redraw;
}

/** The plot of a run; `open` is called with the candidate that somebody chose. */
export class Plot {
  constructor(open) {
    this.open = open;
    this.series = null;
    this.bounds = {};
    this.chosen = null;
    this.points = [];
    this.canvas = h("canvas", {
      tabindex: "0", role: "img", "aria-describedby": "plot-said",
      "aria-label": "Latency over candidates. Left and right go from kernel to kernel, Enter opens one.",
      keydown: (event) => this.key(event),
      mousemove: (event) => this.hover(event),
      mouseleave: () => this.choose(null),
      click: () => this.chosen && this.open(this.chosen.candidate),
      blur: () => this.choose(null),
    });
    this.said = h("p", { id: "plot-said", class: "said", "aria-live": "polite" }, "");
    const names = [
      ["kept", "kept"], ["other", "correct, not kept"], ["best", "best so far"], ["beam", "the beam"],
      ["bad", "no latency (below)"], ["bound", "model bound"],
    ];
    this.legend = h("ul", { class: "legend" },
      names.map(([key, name]) => h("li", { class: `key-${key}` }, name)));
    this.node = h("figure", { class: "plot" }, h("div", { class: "canvas" }, this.canvas), this.legend, this.said);
    this.redraw = sharp(this.canvas, 300, (pen, width, height) => this.draw(pen, width, height));
  }

  show(series, bounds) {
    this.series = series;
    this.bounds = bounds;
    const kept = this.chosen?.candidate;
    this.chosen = (kept && series.get(kept)) || null;
    if (this.canvas.isConnected) this.redraw();
    else requestAnimationFrame(this.redraw);
    this.tell();
  }

  scale(width, height) {
    const timed = this.series.rows.filter(competes);
    let [low, high] = [Infinity, 0];
    for (const row of timed) {
      low = Math.min(low, row.latency_ms);
      high = Math.max(high, row.latency_ms);
    }
    if (!timed.length) [low, high] = [0.5, 1];
    const tight = this.bounds.tight_ms;
    if (tight && tight > 0.6 * low) low = Math.min(low, tight);
    [low, high] = [low * 0.95, high * 1.05];
    const log = high / low > 8;
    const last = Math.max(1, this.series.rows.length - 1);
    const [wide, tall] = [width - PAD.left - PAD.right, height - PAD.top - PAD.bottom - 14];
    const part = (value) => (log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
    return {
      low, high, log, last,
      x: (place) => PAD.left + (wide * place) / last,
      y: (value) => PAD.top + tall * (1 - Math.min(1, Math.max(0, part(value)))),
    };
  }

  draw(pen, width, height) {
    if (!this.series) return;
    const ink = colours();
    pen.clearRect(0, 0, width, height);
    pen.font = "12px system-ui, sans-serif";
    const empty = !this.series.rows.length;
    this.legend.hidden = empty;
    if (empty) {
      pen.fillStyle = ink.soft;
      pen.textAlign = "center";
      pen.fillText("No kernel was proposed yet.", width / 2, height / 2);
      return;
    }
    const scale = this.scale(width, height);
    this.axes(pen, ink, scale, width, height);
    this.beam(pen, ink, scale);
    this.dots(pen, ink, scale, height);
    this.best(pen, ink, scale);
    if (this.chosen) this.mark(pen, ink, scale);
  }

  axes(pen, ink, scale, width, height) {
    pen.fillStyle = ink.soft;
    pen.strokeStyle = ink.line;
    pen.lineWidth = 1;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const value of ticks(scale.low, scale.high, scale.log)) {
      const y = Math.round(scale.y(value)) + 0.5;
      pen.beginPath();
      pen.moveTo(PAD.left, y);
      pen.lineTo(width - PAD.right, y);
      pen.stroke();
      pen.fillText(number(value, 3), PAD.left - 6, y);
    }
    pen.textAlign = "center";
    pen.textBaseline = "top";
    for (const place of ticks(0, scale.last, false, width < 500 ? 4 : 8)) {
      if (Number.isInteger(place)) pen.fillText(String(place), scale.x(place), height - PAD.bottom + 4);
    }
    const names = width < 500 ? "candidates, as proposed" : "candidates, in the order in which they were proposed";
    pen.fillText(names, (width + PAD.left) / 2, height - 17);
    pen.textAlign = "right";
    pen.fillText("ms", PAD.left - 6, 0);
    const tight = this.bounds.tight_ms;
    this.node.querySelector(".key-bound").hidden = !(tight >= scale.low);
    if (tight && tight >= scale.low) {
      pen.strokeStyle = ink.bound;
      pen.setLineDash([6, 4]);
      pen.beginPath();
      pen.moveTo(PAD.left, scale.y(tight));
      pen.lineTo(width - PAD.right, scale.y(tight));
      pen.stroke();
      pen.setLineDash([]);
    }
  }

  /** From each round's end to the next, between the fastest and the slowest kernel of its beam; the last one's has a stub. */
  beam(pen, ink, scale) {
    const { rows, beams } = this.series;
    pen.fillStyle = ink.beam;
    let place = 0;
    const spans = beams.map((beam) => {
      while (place < rows.length && rows[place].run_seq <= beam.run_seq) place += 1;
      const latencies = beam.members.map(([name]) => this.series.get(name)?.latency_ms).filter(Boolean);
      return { place: Math.max(0, place - 1), low: Math.min(...latencies), high: Math.max(...latencies) };
    }).filter((span) => Number.isFinite(span.low));
    spans.forEach((span, number) => {
      const end = number + 1 < spans.length ? spans[number + 1].place : rows.length - 1;
      const [left, right] = [scale.x(span.place), scale.x(Math.max(end, span.place))];
      const [top, bottom] = [scale.y(span.high), scale.y(span.low)];
      const wide = Math.max(BEAM_LEAST, right - left);
      pen.fillRect(Math.min(left, scale.x(scale.last) + BEAM_LEAST / 2 - wide), top - 1, wide, Math.max(3, bottom - top + 2));
    });
  }

  dots(pen, ink, scale, height) {
    this.points = [];
    const floor = height - PAD.bottom - 6;
    const small = this.series.rows.length > 3000 ? 1.5 : 2.5;
    for (const wanted of [false, true]) {
      pen.fillStyle = wanted ? ink.kept : ink.other;
      this.series.rows.forEach((row, place) => {
        const timed = competes(row);
        const kept = timed && row.decision === "kept";
        if (kept !== wanted) return;
        const x = scale.x(place);
        if (timed) {
          const y = scale.y(row.latency_ms);
          pen.beginPath();
          pen.arc(x, y, kept ? small + 1.5 : small, 0, 7);
          pen.fill();
          this.points.push({ x, y, row, place });
        } else if (row.verdict || row.error_code) {
          pen.fillStyle = ink.bad;
          pen.fillRect(x - 0.5, floor, 1.5, 6);
          pen.fillStyle = ink.other;
          this.points.push({ x, y: floor, row, place });
        }
      });
    }
    this.points.sort((one, other) => one.place - other.place);
  }

  best(pen, ink, scale) {
    let best = Infinity;
    pen.strokeStyle = ink.accent;
    pen.lineWidth = 2;
    pen.beginPath();
    this.series.rows.forEach((row, place) => {
      const better = competes(row) && row.decision === "kept" && row.latency_ms < best;
      if (!better) return;
      if (best === Infinity) pen.moveTo(scale.x(place), scale.y(row.latency_ms));
      else pen.lineTo(scale.x(place), scale.y(best));
      best = row.latency_ms;
      pen.lineTo(scale.x(place), scale.y(best));
    });
    if (best < Infinity) pen.lineTo(scale.x(scale.last), scale.y(best));
    pen.stroke();
  }

  mark(pen, ink, scale) {
    const point = this.points.find((one) => one.row.candidate === this.chosen.candidate);
    if (!point) return;
    const row = point.row;
    pen.strokeStyle = ink.text;
    pen.lineWidth = 1.5;
    pen.beginPath();
    pen.arc(point.x, point.y, 7, 0, 7);
    if (competes(row) && row.lo_ms && row.hi_ms) {
      pen.moveTo(point.x, scale.y(row.hi_ms));
      pen.lineTo(point.x, scale.y(row.lo_ms));
    }
    pen.stroke();
  }

  hover(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let [near, distance] = [null, NEAR];
    for (const point of this.points) {
      const one = Math.hypot(point.x - x, point.y - y);
      if (one < distance) [near, distance] = [point, one];
    }
    this.choose(near?.row ?? null);
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, PageDown: 25, PageUp: -25, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Enter" && this.chosen) this.open(this.chosen.candidate);
    if (event.key === "Escape") this.choose(null);
    if (step === undefined || !this.points.length) return;
    event.preventDefault();
    const here = this.points.findIndex((one) => one.row.candidate === this.chosen?.candidate);
    const from = here < 0 ? (step > 0 ? -1 : this.points.length) : here;
    const place = Math.min(this.points.length - 1, Math.max(0, from + step));
    this.choose(this.points[place].row);
  }

  choose(row) {
    if (row?.candidate === this.chosen?.candidate) return;
    this.chosen = row;
    this.redraw();
    this.tell();
  }

  tell() {
    const row = this.chosen;
    if (!row) {
      this.said.textContent = "";
      return;
    }
    const kind = row.predicted ? " predicted" : row.predicted === 0 ? " measured" : "";
    const gain = this.series.speedup(row);
    const parts = [
      row.candidate, row.latency_ms === null ? null : `${ms(row.latency_ms)}${kind}`,
      gain === null ? null : `${times(gain)} over its parent`, fate(row), row.title,
    ];
    this.said.textContent = visible(parts.filter(Boolean).join(", "));
  }
}
