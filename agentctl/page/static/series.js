// A run's candidates in memory: merged as the server tells of them, and as they were at a moment.

/** The candidates and beams of one run; `at` is the event up to which it knows them. */
export class Series {
  constructor(run) {
    this.run = run;
    this.at = 0;
    this.rows = [];
    this.beams = [];
    this.places = new Map();
  }

  /** Take in an answer: a whole series, or what came since. */
  merge(answer) {
    if (!answer.since) {
      this.rows = [];
      this.beams = [];
      this.places.clear();
    }
    for (const cells of answer.rows) this.put(this.named(answer.columns, cells));
    this.beams.push(...answer.beams);
    this.at = answer.at;
    return this;
  }

  named(columns, cells) {
    const row = {};
    for (let place = 0; place < columns.length; place += 1) row[columns[place]] = cells[place];
    return row;
  }

  put(row) {
    const place = this.places.get(row.candidate);
    if (place === undefined) {
      this.places.set(row.candidate, this.rows.length);
      this.rows.push(row);
    } else {
      this.rows[place] = row;
    }
  }

  get(candidate) {
    const place = this.places.get(candidate);
    return place === undefined ? undefined : this.rows[place];
  }

  /** The same as of an earlier event, as far as today's rows tell: a preview while the exact one is fetched. */
  until(at) {
    const past = new Series(this.run);
    for (const row of this.rows) {
      if (row.run_seq > at) continue;
      const judged = row.judged_at !== null && row.judged_at <= at;
      const decided = row.decided_at !== null && row.decided_at <= at;
      past.put({
        ...row,
        ...(judged ? {} : { verdict: null, latency_ms: null, bottleneck: null, level: null, error_code: null }),
        ...(decided ? {} : { decision: null, reason: null, role: null, duplicate_of: null }),
      });
    }
    past.beams = this.beams.filter((beam) => beam.run_seq <= at);
    past.at = at;
    return past;
  }

  /** A candidate's latency over its parent's, null where either has none or they do not compare. */
  speedup(row) {
    const parent = row.parent ? this.get(row.parent) : undefined;
    if (!parent || !parent.latency_ms || !row.latency_ms || parent.history !== row.history) return null;
    return parent.latency_ms / row.latency_ms;
  }
}

/** Whether a candidate has a latency that competes. */
export const competes = (row) => row.latency_ms !== null && row.verdict === "correct" && !row.history;
