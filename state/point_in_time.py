"""Read models as of an earlier event: overwritten columns are looked up among the events again.

A row of the attempts holds the last value of each column, and values rarely change: a verdict, the level of
comparison, or a decision changes only for kernels that were compared further, kept again or refuted. So an
earlier list is today's list up to that event, plus a few look-ups for what was overwritten since.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from state.events import EvaluationCompleted, KernelKept
from state.model import EffectKey, Role
from state.queries import MAX_SEQ, Segment, lineage_row, row_by_key
from state.upcast import decode_event

_JUDGES = (Role.EVALUATOR, Role.VERIFIER, Role.AUDITOR)
"""In the order in which they judge a kernel."""


def cut_segments(segments: Iterable[Segment], upto: int) -> tuple[Segment, ...]:
    """Return the part of a lineage up to an event."""
    return tuple(one._replace(upto=min(one.upto, upto)) for one in segments if one.after < upto)


def restore_rows(
    connection: sqlite3.Connection, found: Mapping[str, dict[str, Any]], segments: Sequence[Segment]
) -> None:
    """Restore, in rows of `segments`, what was overwritten after the last segment's end."""
    last = segments[-1]
    if last.upto == MAX_SEQ:
        return
    for name in _overwritten_candidates(connection, last):
        row = found.get(name)
        if row is not None:
            _restore_verdict(connection, row, segments)
            _restore_decision(connection, row, last)


def _overwritten_candidates(connection: sqlite3.Connection, last: Segment) -> list[str]:
    """Return a stream's candidates that events after the segment's end mention."""
    rows = connection.execute(
        "SELECT candidate FROM attempts WHERE run = ?1 AND run_seq <= ?2"
        " AND (judged_at > ?2 OR compared_at > ?2 OR decided_at > ?2)",
        (last.stream, last.upto),
    )
    return [name for (name,) in rows.fetchall()]


def _restore_verdict(
    connection: sqlite3.Connection, row: dict[str, Any], segments: Sequence[Segment]
) -> None:
    for role in _JUDGES:
        place = EffectKey.parse(f"{row['candidate']}.{role}")
        for stream, _, upto in segments:
            stored = row_by_key(connection, stream, f"{place}#outcome")
            if stored is None or stored.run_seq > upto:
                continue
            event = decode_event(stored)
            if isinstance(event, EvaluationCompleted):
                row |= _verdict_columns(event, stored.run_seq, first=role is Role.EVALUATOR)


def _verdict_columns(event: EvaluationCompleted, run_seq: int, *, first: bool) -> dict[str, Any]:
    """Return the columns that a verdict sets; a later pass only adds that more was compared."""
    said, timed = event.evaluation, event.evaluation.benchmark
    told: dict[str, Any] = {"level": said.level.value, "compared_at": run_seq}
    if said.is_correct and not first:
        return told
    return told | {
        "verdict": said.verdict.value, "stage": said.stage, "bottleneck": said.bottleneck,
        "error_code": said.error and said.error.code, "error_message": said.error and said.error.message,
        "latency_ms": timed and timed.latency_ms, "lo_ms": timed and timed.lo_ms,
        "hi_ms": timed and timed.hi_ms, "predicted": timed and int(timed.predicted),
        "profile": said.profile, "code": said.code, "cached_from": event.cached_from, "judged_at": run_seq,
    }  # fmt: skip


def _restore_decision(connection: sqlite3.Connection, row: dict[str, Any], last: Segment) -> None:
    """Restore that a kernel was kept, the only decision that is ever overwritten."""
    if row["decision"] is not None:
        return
    found = connection.execute(
        "SELECT max(run_seq) FROM kept WHERE run = ? AND candidate = ? AND run_seq <= ? AND afresh <> 1",
        (last.stream, row["candidate"], last.upto),
    ).fetchone()
    stored = lineage_row(connection, last.stream, found[0]) if found[0] is not None else None
    event = decode_event(stored) if stored is not None else None
    if isinstance(event, KernelKept):
        row |= {"decision": "kept", "role": event.role.value, "decided_at": found[0]}
