"""Read models of a run with its ancestors: a fork has what its parent had at the forked event.

A fork's rows contain no copies of its ancestors' rows. Each query walks the lineage, root first, and takes
from every segment what lies before its end. A later segment replaces what an earlier one says of a candidate,
because a fork may judge again what its parent judged.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

from state import point_in_time
from state.queries import Segment, lineage

RowDicts = list[dict[str, Any]]

_COLUMNS_BY_MARK = {
    "source": ("source", "author", "note"),
    "judged_at": (
        "verdict", "stage", "error_code", "error_message", "latency_ms", "lo_ms", "hi_ms", "predicted",
        "bottleneck", "profile", "code", "cached_from", "judged_at",
    ),
    "compared_at": ("level", "compared_at"),
    "decided_at": ("decision", "reason", "duplicate_of", "role", "decided_at"),
}  # fmt: skip
"""The columns that one event sets in an attempt's row, by the column with that event's run_seq."""

_PLAN_COLUMNS = ("technique", "site", "title", "predicted_speedup")
_SLOT_COLUMNS = ("parent", "planner", "model")

RUNS_QUERY = """
WITH RECURSIVE line(run, stream, upto) AS MATERIALIZED (
  SELECT run, run, 9223372036854775807 FROM runs
  UNION ALL
  SELECT line.run, at.parent, min(at.parent_seq, line.upto)
  FROM line JOIN runs at ON at.run = line.stream WHERE at.parent IS NOT NULL)
SELECT r.*, r.initial_ms / r.best_ms AS speedup,
       (SELECT coalesce(sum(cost_nano_usd), 0) / 1e9 FROM line JOIN spend s
        ON s.run = line.stream AND s.run_seq <= line.upto WHERE line.run = r.run) AS spent_usd,
       (SELECT coalesce(sum(unknown), 0) FROM line JOIN spend s
        ON s.run = line.stream AND s.run_seq <= line.upto WHERE line.run = r.run) AS unknown_costs,
       (SELECT count(*) FROM line JOIN attempts a ON a.run = line.stream AND a.run_seq <= line.upto
        WHERE line.run = r.run AND a.source IS NOT NULL) AS proposed,
       (SELECT count(*) FROM line JOIN attempts a ON a.run = line.stream AND a.judged_at <= line.upto
        WHERE line.run = r.run AND a.verdict IS NOT NULL) AS evaluated,
       (SELECT count(*) FROM line JOIN attempts a ON a.run = line.stream AND a.judged_at <= line.upto
        WHERE line.run = r.run AND a.verdict <> 'correct') AS failed
FROM runs r ORDER BY r.first_seq DESC"""
"""All runs, newest first, with their speed-up, spend in USD and counts of attempts."""


def load_attempts(
    connection: sqlite3.Connection, run: str, upto: int | None = None, since: int | None = None
) -> RowDicts:
    """Return every candidate that a run proposed, in order, with its plan, verdict and decision.

    `speedup` is its parent's latency divided by its own. `history` is 1 for a latency from before a rebase,
    which does not compare with later ones. With `upto`, everything is as it was after that event of the run.
    With `since`, only candidates that a later event mentions are returned, without `speedup` if no later
    event mentions the parent.
    """
    segments = lineage(connection, run)
    if upto is not None:
        segments = point_in_time.cut_segments(segments, upto)
    names = None if since is None or not segments else _changed_candidates(connection, segments[-1], since)
    if names is not None and not names:
        return []
    found: dict[str, dict[str, Any]] = {}
    plans: dict[tuple[int, ...], dict[str, Any]] = {}
    slots: dict[tuple[int, ...], dict[str, Any]] = {}
    first = 0 if names is None else min(names.values())
    for number, segment in enumerate(segments, start=1):
        if _is_rebased(connection, segment.stream):
            for row in found.values():
                row["history"] = int(row["latency_ms"] is not None)
        plans |= {
            (row["round"], row["slot"], row["plan"]): row
            for row in _read_segment(connection, "plans", segment, first=first)
        }
        slots |= {
            (row["round"], row["slot"]): row
            for row in _read_segment(connection, "slots", segment, first=first)
        }
        for row in _read_segment(connection, "attempts", segment, first=first):
            if names is None or row["candidate"] in names:
                _merge_row(found, row, segment.upto)
        point_in_time.restore_rows(connection, found, segments[:number])
    for row in found.values():
        plan = plans.get((row["round"], row["slot"], row["plan"]), {})
        slot = slots.get((row["round"], row["slot"]), {})
        row.update({name: plan.get(name) for name in _PLAN_COLUMNS})
        row.update({name: slot.get(name) for name in _SLOT_COLUMNS})
        row["speedup"] = _compute_speedup(found.get(row["parent"]), row)
    return sorted(found.values(), key=lambda row: row["seq"])


def _changed_candidates(connection: sqlite3.Connection, last: Segment, since: int) -> dict[str, int]:
    """Return the candidates that a stream's events after `since` mention, with their rounds."""
    rows = connection.execute(
        "SELECT candidate, round FROM attempts WHERE run = ?1 AND run_seq <= ?3"
        " AND (run_seq > ?2 OR judged_at > ?2 OR compared_at > ?2 OR decided_at > ?2)",
        (last.stream, since, last.upto),
    )
    return dict(rows.fetchall())


def load_failed_plans(connection: sqlite3.Connection, run: str, upto: int | None = None) -> RowDicts:
    """Return the plans that a run has not, in order: what their slots were assigned, and why there is none.

    `upto` is as in `load_attempts`.
    """
    plans: dict[tuple[int, ...], dict[str, Any]] = {}
    slots: dict[tuple[int, ...], dict[str, Any]] = {}
    segments = lineage(connection, run)
    for segment in segments if upto is None else point_in_time.cut_segments(segments, upto):
        for row in _read_segment(connection, "plans", segment):
            plans[row["round"], row["slot"], row["plan"]] = row
        for row in _read_segment(connection, "slots", segment):
            slots[row["round"], row["slot"]] = row
    failed = [row for row in plans.values() if row["error_code"] is not None]
    for row in failed:
        slot = slots.get((row["round"], row["slot"]), {})
        row.update({name: slot.get(name) for name in _SLOT_COLUMNS})
    return failed


def load_candidates(connection: sqlite3.Connection, run: str) -> RowDicts:
    """Return a run's correct kernels with comparable latencies, fastest first; columns as in `load_attempts`.

    Copies of a refuted kernel are left out: they were not judged further, and are just as wrong.
    """
    compared = [row for row in load_attempts(connection, run) if not row["history"]]
    correct = [row for row in compared if row["verdict"] == "correct" and row["reason"] != "refuted"]
    return sorted(correct, key=lambda row: (row["latency_ms"] or 0.0, row["seq"]))


def load_spend(connection: sqlite3.Connection, run: str, upto: int | None = None) -> RowDicts:
    """Return what a run's paid calls cost, by role and model; `unknown` counts calls without a known price.

    `calls` are attempts at an answer, and `answered` of them got one. `endpoint` and `model` are None if no
    model was asked. With `upto`, everything is as it was after that event of the run.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    segments = lineage(connection, run)
    for segment in segments if upto is None else point_in_time.cut_segments(segments, upto):
        for row in _read_segment(connection, "spend", segment):
            place = {"run": run, **{name: row[name] for name in ("role", "endpoint", "model")}}
            entry = found.setdefault((row["role"], row["model"] or ""), {**place, "calls": 0, "answered": 0})
            entry["calls"] += 1
            entry["answered"] += row["outcome"] == "answered"
            for name in ("unknown", "cost_nano_usd", "input_tokens", "output_tokens", "cached_tokens"):
                entry[name] = entry.get(name, 0) + row[name]
    for entry in found.values():
        entry["cost_usd"] = entry["cost_nano_usd"] / 1e9
    return [found[place] for place in sorted(found)]


def _read_segment(
    connection: sqlite3.Connection, table: str, segment: Segment, *, first: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield a table's rows of a segment, in the order in which they first appeared.

    `first` is the earliest round of interest.
    """
    rounds = f" AND round >= {first:d}" if first else ""
    cursor = connection.execute(
        f"SELECT * FROM {table} WHERE run = ? AND run_seq <= ?{rounds} ORDER BY run_seq",  # noqa: S608 - ours
        (segment.stream, segment.upto),
    )
    names = [column[0] for column in cursor.description]
    return (dict(zip(names, row, strict=True)) for row in cursor.fetchall())


def _is_rebased(connection: sqlite3.Connection, stream: str) -> bool:
    found = connection.execute("SELECT rebased FROM runs WHERE run = ?", (stream,)).fetchone()
    return found is not None and found[0] == 1


def _merge_row(found: dict[str, dict[str, Any]], row: dict[str, Any], upto: int) -> None:
    """Merge what a segment up to its end says of a candidate into what earlier segments said."""
    told = row | {"history": 0}
    earlier = found.get(row["candidate"])
    for mark, names in _COLUMNS_BY_MARK.items():
        after = mark != "source" and (row[mark] or 0) > upto
        if row[mark] is None or after:
            told |= {name: earlier and earlier[name] for name in names}
    if earlier is not None:
        told |= {"seq": earlier["seq"], "history": earlier["history"] if row["judged_at"] is None else 0}
    found[row["candidate"]] = told


def _compute_speedup(parent: dict[str, Any] | None, row: dict[str, Any]) -> float | None:
    if parent is None or parent["latency_ms"] is None or row["latency_ms"] is None:
        return None
    same = parent["history"] == row["history"]
    return float(parent["latency_ms"] / row["latency_ms"]) if same else None
