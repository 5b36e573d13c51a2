"""Read models: disposable tables for people and pages, updated in the transaction of each append.

They answer "which runs, which attempts, what did it cost" without a replay. They follow from the events
alone, so they can be dropped and rebuilt, and `verify` compares them with a rebuild. A fork does not copy its
ancestors' rows: rows carry the run_seq of their event, and the reader (`state.lineage_read_models`) takes the
ancestors' rows from before the fork.

Each handler turns one event into parameters of named statements. The statements of a whole commit run kind by
kind, in table order, so different kinds must not write the same columns of a row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from state import spend
from state.errors import NoLog, ReadModelsStale
from state.events import (
    AgentEnded,
    CallCompleted,
    CallFailed,
    CallLost,
    EvaluationCompleted,
    EvaluationFailed,
    ExecutionFailed,
    ExperienceRecorded,
    KernelDiscarded,
    KernelKept,
    KernelProposed,
    KernelRefuted,
    KernelTried,
    PlanFailed,
    PlanProposed,
    PredictionBatch,
    ReflectionRecorded,
    RoundStarted,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunForked,
    RunPaused,
    RunResumed,
)
from state.model import SYSTEM_STREAM, EffectKey, Role, RunStatus, is_simplification
from state.records import RecordedEvent
from state.schema import get_meta, set_meta, transaction
from state.spend import ReadModelChange

READ_MODEL_VERSION = 7
"""Raise it with any change of tables or handlers; opening a log rebuilds other versions' read models."""

TABLES = {
    "runs": """run TEXT PRIMARY KEY, parent TEXT, parent_seq INT, rebased INT NOT NULL, problem TEXT,
        size TEXT, target TEXT, toolchain TEXT, seed INT, plain_ms REAL, tight_ms REAL,
        status TEXT NOT NULL, reason TEXT NOT NULL, ended INT NOT NULL, round INT NOT NULL,
        initial_ms REAL, best_ms REAL, best TEXT, predicted INT,
        first_seq INT NOT NULL, created_us INT NOT NULL""",
    "slots": """run TEXT, round INT, slot INT, parent TEXT NOT NULL, planner TEXT NOT NULL, model TEXT,
        run_seq INT NOT NULL, PRIMARY KEY(run, round, slot)""",
    "plans": """run TEXT, round INT, slot INT, plan INT, technique TEXT, site TEXT, title TEXT,
        predicted_speedup REAL, error_code TEXT, error_message TEXT, seq INT NOT NULL, run_seq INT NOT NULL,
        PRIMARY KEY(run, round, slot, plan)""",
    "predictions": """run TEXT, round INT, slot INT, variants INT NOT NULL, predicted INT NOT NULL,
        failed INT NOT NULL, instructions INT NOT NULL, best_ms REAL, error_code TEXT, run_seq INT NOT NULL,
        PRIMARY KEY(run, round, slot)""",
    "attempts": """run TEXT, candidate TEXT, round INT NOT NULL, slot INT NOT NULL, plan INT NOT NULL,
        implementation INT NOT NULL, repair INT NOT NULL, source TEXT, author TEXT, note TEXT, verdict TEXT,
        stage TEXT, error_code TEXT, error_message TEXT, latency_ms REAL, lo_ms REAL, hi_ms REAL,
        predicted INT, bottleneck TEXT, profile TEXT, code TEXT, cached_from TEXT, judged_at INT,
        level TEXT, compared_at INT, decision TEXT, reason TEXT, duplicate_of TEXT, role TEXT, decided_at INT,
        seq INT NOT NULL, run_seq INT NOT NULL, PRIMARY KEY(run, candidate)""",
    "spend": """run TEXT, run_seq INT, role TEXT NOT NULL, unknown INT NOT NULL, cost_nano_usd INT NOT NULL,
        input_tokens INT NOT NULL, output_tokens INT NOT NULL, endpoint TEXT, model TEXT, outcome TEXT,
        cached_tokens INT NOT NULL, ms REAL, PRIMARY KEY(run, run_seq)""",
    "kept": """run TEXT, run_seq INT, candidate TEXT, latency_ms REAL, predicted INT, afresh INT NOT NULL,
        PRIMARY KEY(run, run_seq)""",
    "evaluations": """cache_key TEXT, correct INT, level TEXT, seq INT NOT NULL,
        PRIMARY KEY(cache_key, correct, level)""",
}

_PLACE = "run, candidate, round, slot, plan, implementation, repair, seq, run_seq"


def _upsert(*columns: str) -> str:
    names = ", ".join(columns)
    marks = ", ".join("?" * (9 + len(columns)))
    sets = ", ".join(
        # statements do not run in the order of events, so take the smallest seq for the first event
        [f"{name} = min({name}, excluded.{name})" for name in ("seq", "run_seq")]
        + [f"{name} = excluded.{name}" for name in columns]
    )
    target = f"attempts({_PLACE}, {names})"
    return f"INSERT INTO {target} VALUES ({marks}) ON CONFLICT DO UPDATE SET {sets}"  # noqa: S608 - our names


STATEMENTS = {
    "run": """INSERT INTO runs VALUES (?, NULL, NULL, 0, ?, ?, ?, ?, ?, ?, ?, 'running', '', 0, 0,
        NULL, NULL, NULL, NULL, ?, ?)""",
    "fork": """WITH RECURSIVE line(run, parent, parent_seq) AS (
          SELECT run, parent, parent_seq FROM runs WHERE run = ?2
          UNION ALL
          SELECT up.run, up.parent, up.parent_seq
          FROM line JOIN runs up ON up.run = line.parent WHERE line.parent_seq >= ?3)
        INSERT INTO runs SELECT ?1, ?2, ?3, 0, problem, size, target, toolchain, seed, plain_ms,
          tight_ms, 'running', '', 0, 0, NULL, NULL, NULL, NULL, ?4, ?5
        FROM runs WHERE run = (SELECT run FROM line WHERE parent IS NULL OR parent_seq < ?3)""",
    "rebased": """UPDATE runs SET rebased = 1, problem = ?, size = ?, target = ?, toolchain = ?, seed = ?,
        plain_ms = ?, tight_ms = ? WHERE run = ?""",
    "status": "UPDATE runs SET status = ?, reason = ?, ended = ? WHERE run = ?",
    "round": "UPDATE runs SET round = ? WHERE run = ?",
    "best": """UPDATE runs SET initial_ms = coalesce(initial_ms, ?1), predicted = ?2,
        best = CASE WHEN best_ms <= ?1 THEN best ELSE ?3 END, best_ms = min(coalesce(best_ms, ?1), ?1)
        WHERE run = ?4""",
    "slot": "INSERT INTO slots VALUES (?, ?, ?, ?, ?, ?, ?)",
    "plan": "INSERT OR REPLACE INTO plans VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "predicted": "INSERT OR REPLACE INTO predictions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "proposed": _upsert("source", "author", "note"),
    "unproposed": _upsert("error_code", "error_message", "judged_at"),
    "judged": _upsert(
        "verdict", "stage", "error_code", "error_message", "latency_ms", "lo_ms", "hi_ms", "predicted",
        "bottleneck", "profile", "code", "cached_from", "judged_at",
    ),
    "compared": _upsert("level", "compared_at"),
    "decided": _upsert("decision", "reason", "duplicate_of", "role", "decided_at"),
    "spent": "INSERT INTO spend VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "evaluated": "INSERT OR IGNORE INTO evaluations VALUES (?, ?, ?, ?)",
    "kept": "INSERT INTO kept VALUES (?, ?, ?, ?, ?, ?)",
    "standing": """WITH RECURSIVE line(run, upto, told) AS (
          SELECT ?1, 9223372036854775807, 1
          UNION ALL
          SELECT at.parent, min(at.parent_seq, line.upto),
            line.told AND NOT (at.rebased AND line.upto > at.parent_seq)
          FROM line JOIN runs at ON at.run = line.run WHERE at.parent IS NOT NULL),
        before AS (SELECT kept.* FROM line JOIN kept ON kept.run = line.run AND kept.run_seq <= line.upto
          WHERE line.told)
        UPDATE runs SET
          round = max(round, (SELECT coalesce(max(slots.round), 0)
            FROM line JOIN slots ON slots.run = line.run AND slots.run_seq <= line.upto
            WHERE slots.slot <> 2000)),
          initial_ms = coalesce((SELECT latency_ms FROM before ORDER BY run_seq LIMIT 1), initial_ms),
          (best_ms, best, predicted) = (SELECT latency_ms, candidate, predicted FROM before
            WHERE latency_ms IS NOT NULL
              AND run_seq >= (SELECT coalesce(max(run_seq), 0) FROM before WHERE afresh)
            ORDER BY latency_ms, run_seq LIMIT 1)
        WHERE run = ?1""",
}  # fmt: skip
"""In the order in which they run for one commit."""

Batches = dict[str, list[tuple[Any, ...]]]


def event_changes(item: RecordedEvent) -> Iterable[ReadModelChange]:
    """Return the changes that one event makes in the read models."""
    handler = _HANDLERS.get(type(item.event))
    return () if handler is None or item.stream == SYSTEM_STREAM else handler(item, item.event)


def write_changes(connection: sqlite3.Connection, wanted: Iterable[ReadModelChange]) -> None:
    """Write the changes of a group of events in the current transaction."""
    batches: Batches = {}
    for name, parameters in wanted:
        if name == "fork":  # a fork copies rows that an earlier event of the group may have changed
            _execute_batches(connection, batches)
            batches = {}
        batches.setdefault(name, []).append(parameters)
    if batches:
        _execute_batches(connection, batches)


def _execute_batches(connection: sqlite3.Connection, batches: Batches) -> None:
    for name, statement in STATEMENTS.items():
        if name in batches:
            connection.executemany(statement, batches[name])


def create_tables(connection: sqlite3.Connection) -> None:
    """Create empty read models, replacing existing ones."""
    for table, columns in TABLES.items():
        connection.execute(f"DROP TABLE IF EXISTS {table}")
        connection.execute(f"CREATE TABLE {table}({columns}) STRICT, WITHOUT ROWID")


def is_current(connection: sqlite3.Connection) -> bool:
    """Return whether the read models have the current version."""
    return get_meta(connection, "projections") == str(READ_MODEL_VERSION)


def require_current(connection: sqlite3.Connection) -> None:
    """Refuse read models of another version.

    Raises:
        NoLog: they were never made, for a log without events: its owner is making it.
        ReadModelsStale: another version made them.
    """
    if get_meta(connection, "projections") is None and _is_empty(connection):
        raise NoLog("the log is being made; nothing was recorded here yet")
    if not is_current(connection):
        raise ReadModelsStale(
            "the log's lists of runs and attempts are another version's; they are rebuilt when the log is "
            "next opened by its owner: start the daemon, or `agentctl run`"
        )


def _is_empty(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM event LIMIT 1").fetchone() is None


def rebuild_read_models(connection: sqlite3.Connection, events: Iterable[RecordedEvent]) -> None:
    """Rebuild the read models from all events, in one transaction."""
    with transaction(connection):
        create_tables(connection)
        project_events(connection, events)
        set_meta(connection, "projections", str(READ_MODEL_VERSION))


def project_events(connection: sqlite3.Connection, events: Iterable[RecordedEvent]) -> None:
    """Project any number of events, page by page."""
    remaining = iter(events)
    while page := list(islice(remaining, 500)):
        write_changes(connection, (change for item in page for change in event_changes(item)))


# --- handlers --------------------------------------------------------------------------------------

_IF_FASTEST, _AFTER_REFUTATION, _BY_ITS_EVENT = range(3)
"""Values of `kept.afresh`: the kernel is the best if no kept one is faster; else whatever was kept before."""


_FIRST_ROLES = frozenset({Role.EXECUTOR, Role.EVALUATOR})
"""The roles whose failures count before a kernel has a verdict."""


def _place_columns(item: RecordedEvent, key: str) -> tuple[Any, ...]:
    at = EffectKey.parse(key)
    return (
        item.stream, at.candidate_id, at.round, at.slot, at.plan, at.implementation, at.repair,
        item.seq, item.run_seq,
    )  # fmt: skip


def _insert_run(item: RecordedEvent, event: RunCreated) -> Iterator[ReadModelChange]:
    config, bounds = event.config, event.bounds
    yield "run", (
        item.stream, event.problem.name, config.size, config.target, event.toolchain, config.seed,
        bounds.plain_ms, bounds.tight_ms, item.seq, item.ts_us,
    )  # fmt: skip


def _insert_fork(item: RecordedEvent, event: RunForked) -> Iterator[ReadModelChange]:
    yield "fork", (item.stream, event.parent, event.parent_seq, item.seq, item.ts_us)
    yield "standing", (item.stream,)
    if event.rebase is not None:
        config, bounds = event.rebase.config, event.rebase.bounds
        yield "rebased", (
            event.rebase.problem.name, config.size, config.target, event.rebase.toolchain, config.seed,
            bounds.plain_ms, bounds.tight_ms, item.stream,
        )  # fmt: skip


def _status_handler(status: RunStatus) -> Callable[[RecordedEvent, Any], Iterator[ReadModelChange]]:
    ended = status in (RunStatus.CANCELLED, RunStatus.COMPLETED)

    def handler(item: RecordedEvent, event: Any) -> Iterator[ReadModelChange]:
        yield "status", (status.value, str(event.reason), int(ended), item.stream)

    return handler


def _insert_round(item: RecordedEvent, event: RoundStarted) -> Iterator[ReadModelChange]:
    yield "round", (event.round, item.stream)
    for slot in event.slots:
        yield (
            "slot",
            (item.stream, event.round, slot.slot, slot.parent, slot.planner, slot.model, item.run_seq),
        )


def _insert_prediction(item: RecordedEvent, event: PredictionBatch) -> Iterator[ReadModelChange]:
    at, error = EffectKey.parse(event.key), event.error
    yield "predicted", (
        item.stream, at.round, at.slot, event.count, event.predicted, event.failed, event.instructions,
        event.best_ms, error.code if error else None, item.run_seq,
    )  # fmt: skip
    yield from spend.effect_spend(item, event)


def _insert_plan(item: RecordedEvent, event: PlanProposed) -> Iterator[ReadModelChange]:
    at, plan = EffectKey.parse(event.key), event.plan
    yield "plan", (
        item.stream, at.round, at.slot, at.plan, plan.technique, plan.site, plan.title,
        plan.prediction.speedup, None, None, item.seq, item.run_seq,
    )  # fmt: skip
    yield from spend.effect_spend(item, event)


def _insert_failed_plan(item: RecordedEvent, event: PlanFailed) -> Iterator[ReadModelChange]:
    at, error = EffectKey.parse(event.key), event.error
    yield "plan", (
        item.stream, at.round, at.slot, at.plan, None, None, None, None, error.code, error.message, item.seq,
        item.run_seq,
    )  # fmt: skip
    yield from spend.effect_spend(item, event)


def _insert_kernel(item: RecordedEvent, event: KernelProposed) -> Iterator[ReadModelChange]:
    yield "proposed", (*_place_columns(item, event.key), event.source, event.author, event.note)
    yield from spend.effect_spend(item, event)


def _record_failure(
    item: RecordedEvent, event: ExecutionFailed | EvaluationFailed
) -> Iterator[ReadModelChange]:
    """Record why there is no kernel or no verdict. A kernel that has a verdict does not change.

    A winner that cannot be simplified is no failed kernel.
    """
    key = EffectKey.parse(event.key)
    is_kept_as_it_is = isinstance(event, ExecutionFailed) and is_simplification(key)
    if key.role in _FIRST_ROLES and not is_kept_as_it_is:
        yield (
            "unproposed",
            (*_place_columns(item, event.key), event.error.code, event.error.message, item.run_seq),
        )
    yield from spend.effect_spend(item, event)


def _record_verdict(item: RecordedEvent, event: EvaluationCompleted) -> Iterator[ReadModelChange]:
    """Record a verdict. A later pass only adds that more inputs were compared."""
    said = event.evaluation
    if event.cached_from is None:
        yield "evaluated", (event.cache_key, int(said.is_correct), said.level.value, item.seq)
    yield from spend.effect_spend(item, event)
    yield "compared", (*_place_columns(item, event.key), said.level.value, item.run_seq)
    if said.is_correct and EffectKey.parse(event.key).role is not Role.EVALUATOR:
        return
    error = (None, None) if said.error is None else (said.error.code, said.error.message)
    timed = said.benchmark
    interval = (
        (None,) * 4 if timed is None else (timed.latency_ms, timed.lo_ms, timed.hi_ms, int(timed.predicted))
    )
    yield "judged", (
        *_place_columns(item, event.key), said.verdict.value, said.stage, *error, *interval,
        said.bottleneck, said.profile, said.code, event.cached_from, item.run_seq,
    )  # fmt: skip


def _record_tried(item: RecordedEvent, event: KernelTried) -> Iterator[ReadModelChange]:
    """Record that a verdict is known; the kernel itself is no candidate."""
    if event.cached_from is None:
        said = event.evaluation
        yield "evaluated", (event.cache_key, int(said.is_correct), said.level.value, item.seq)


def _record_kept(item: RecordedEvent, event: KernelKept) -> Iterator[ReadModelChange]:
    candidate = event.candidate
    timed = candidate.benchmark
    kept = (item.stream, item.run_seq, candidate.id, timed.latency_ms, int(timed.predicted))
    if event.replaces is None:
        yield "best", (timed.latency_ms, int(timed.predicted), candidate.id, item.stream)
        yield "kept", (*kept, _IF_FASTEST)
    else:  # it is the best now, though a kernel before it may be faster
        yield "kept", (*kept, _BY_ITS_EVENT)
        yield from _simplified_from(item, candidate.id, event.replaces, author=candidate.author)
        yield "standing", (item.stream,)
    yield (
        "decided",
        (*_decision_place(item, candidate.id), "kept", None, None, event.role.value, item.run_seq),
    )


def _record_refuted(item: RecordedEvent, event: KernelRefuted) -> Iterator[ReadModelChange]:
    """Record a refutation. The new best is the one in the event, whatever was kept before."""
    best: tuple[Any, ...] = (None,) * 3
    if event.best is not None:
        timed = event.best.benchmark
        best = (event.best.id, timed.latency_ms, int(timed.predicted))
    yield "kept", (item.stream, item.run_seq, *best, _AFTER_REFUTATION)
    yield "standing", (item.stream,)
    yield (
        "decided",
        (*_decision_place(item, event.candidate), "discarded", "refuted", None, None, item.run_seq),
    )


def _record_discarded(item: RecordedEvent, event: KernelDiscarded) -> Iterator[ReadModelChange]:
    fate = ("discarded", event.reason, event.duplicate_of, None, item.run_seq)
    yield "decided", (*_decision_place(item, event.candidate), *fate)
    if event.against is not None and is_simplification(_executor_key(event.candidate)):
        yield from _simplified_from(item, event.candidate, event.against, author=None)


def _simplified_from(
    item: RecordedEvent, candidate: str, best: str, *, author: str | None
) -> Iterator[ReadModelChange]:
    """Record which kernel was simplified, as the parent of a slot: no round assigned it one."""
    at = _executor_key(candidate)
    yield "slot", (item.stream, at.round, at.slot, best, author or "", None, item.run_seq)


def _executor_key(candidate: str) -> EffectKey:
    return EffectKey.parse(f"{candidate}.{Role.EXECUTOR}")


def _decision_place(item: RecordedEvent, candidate: str) -> tuple[Any, ...]:
    return _place_columns(item, f"{candidate}.{Role.EXECUTOR}")


_HANDLERS: dict[type, Callable[[RecordedEvent, Any], Iterator[ReadModelChange]]] = {
    RunCreated: _insert_run,
    RunForked: _insert_fork,
    RunPaused: _status_handler(RunStatus.PAUSED),
    RunResumed: _status_handler(RunStatus.RUNNING),
    RunCancelled: _status_handler(RunStatus.CANCELLED),
    RunCompleted: _status_handler(RunStatus.COMPLETED),
    RoundStarted: _insert_round,
    PredictionBatch: _insert_prediction,
    PlanProposed: _insert_plan,
    PlanFailed: _insert_failed_plan,
    KernelProposed: _insert_kernel,
    ExecutionFailed: _record_failure,
    EvaluationCompleted: _record_verdict,
    EvaluationFailed: _record_failure,
    ExperienceRecorded: spend.effect_spend,
    ReflectionRecorded: spend.effect_spend,
    KernelKept: _record_kept,
    KernelRefuted: _record_refuted,
    KernelTried: _record_tried,
    KernelDiscarded: _record_discarded,
    AgentEnded: spend.agent_spend,
    CallCompleted: spend.call_spend,
    CallFailed: spend.call_spend,
    CallLost: spend.call_spend,
}
