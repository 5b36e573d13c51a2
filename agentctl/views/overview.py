"""A whole home on one screen: its owner, its runs, the day's budget, and the state of providers and hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from agentctl.views.hosts import HostView, active_hosts
from agentctl.views.owner_process import OwnerProcess, iso_from_us
from agentctl.views.run import RunView, run_view
from daemon.errors import UnknownRun
from state.reader import LogReader
from state.recent_events import CallAttempt, RecentEvents
from state.system import SystemState

MAX_SHOWN = 12
"""Runs that are shown unless you ask for all: those that have not ended, then the newest."""

LAST, LAST_OF_OTHERS = 1000, 100
"""How many last events of a run give its rate and its recent errors; fewer for a run that rests."""

CALLS_PER_RUN = 100
"""How many last attempts at answers of each run give a provider's state."""

VERDICT_TYPE = "EvaluationCompleted"
FAILURE_TYPES = ("EvaluationFailed", "CallFailed", "CallLost")
"""Failures that are no kernel's fault; they are counted as errors."""

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class RecentErrors:
    """Failures among a run's last events that were no kernel's fault; `last` is the newest one, at
    `place`.
    """

    count: int
    last: str
    place: str
    time: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary(RunView):
    """A run in the list. `evaluations_per_hour` is its current rate, None unless it runs.

    `created` and `updated` are the times of its first and its latest event. `errors` is None if nothing
    but kernels failed recently.
    """

    created: str
    updated: str
    parent: str | None
    evaluations_per_hour: float | None
    errors: RecentErrors | None


@dataclass(frozen=True, slots=True)
class ProviderStatus:
    """A model endpoint by its last `calls` attempts at answers; `resting` says why its breaker is open."""

    name: str
    state: str
    resting: str | None
    calls: int
    failed: int
    median_ms: float | None
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DayView:
    """What all runs used on a day (UTC), and what calls under way have reserved.

    `spent_seconds` is the time in which runs were under way, `spent_device_seconds` that on devices.
    """

    date: str
    spent_usd: float
    spent_tokens: int
    spent_calls: int
    spent_seconds: float
    spent_device_seconds: float
    reserved_usd: float


@dataclass(frozen=True, slots=True)
class HomeOverview:
    """`runs` are newest first; `more` is the number of runs that are not shown."""

    daemon: OwnerProcess
    runs: tuple[RunSummary, ...]
    more: int
    providers: tuple[ProviderStatus, ...]
    hosts: tuple[HostView, ...]
    day: DayView | None


def home_overview(
    reader: LogReader | None,
    process: OwnerProcess,
    *,
    now_us: float,
    run: str | None = None,
    all_: bool = False,
    hashed: bool = True,
) -> HomeOverview:
    """Return the state of a home, with one run, the newest ones or all. `reader` is None if it has no
    log.

    `hashed` is as in `run_view`.

    Raises:
        UnknownRun: there is no such run.
        state.errors.StateError: the log cannot be used.
    """
    if reader is None:
        return HomeOverview(process, (), 0, (), (), None)
    rows = reader.run_rows(run)
    if run is not None and not rows:
        raise UnknownRun.with_nearest(run, reader.run_ids())
    shown = rows if all_ else _select_shown(rows)
    lines = tuple(
        _run_summary(reader, row, owned=process.is_running, now_us=now_us, hashed=hashed) for row in shown
    )
    system = reader.system_state()
    return HomeOverview(
        daemon=process,
        runs=lines,
        more=len(rows) - len(shown),
        providers=_provider_statuses(reader, lines, system),
        hosts=active_hosts(reader, Path(process.home), running=process.is_running),
        day=_day_view(system),
    )


def _select_shown(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs that have not ended, and the newest others, in the order of the list."""
    live = sum(not row["ended"] for row in rows)
    ended = {row["run"] for row in islice((row for row in rows if row["ended"]), max(0, MAX_SHOWN - live))}
    return [row for row in rows if not row["ended"] or row["run"] in ended]


def _run_summary(
    reader: LogReader, row: dict[str, Any], *, owned: bool, now_us: float, hashed: bool
) -> RunSummary:
    run = str(row["run"])
    found = run_view(run, reader.run_state(run), owned=owned, hashed=hashed)
    running = found.state == "running"
    happened = reader.recent_events_by_type(run, LAST if running else LAST_OF_OTHERS)
    return RunSummary(
        **{one.name: getattr(found, one.name) for one in fields(found)},
        created=iso_from_us(row["created_us"]),
        updated=iso_from_us(max((one.last_us for one in happened.values()), default=row["created_us"])),
        parent=row["parent"],
        evaluations_per_hour=_evaluation_rate(happened.get(VERDICT_TYPE), now_us) if running else None,
        errors=_recent_errors(reader, run, happened),
    )


def _evaluation_rate(judged: RecentEvents | None, now_us: float) -> float | None:
    """Return evaluations per hour since the first counted one."""
    if judged is None or now_us <= judged.first_us:
        return None
    return judged.number * SECONDS_PER_HOUR / ((now_us - judged.first_us) / 1e6)


def _recent_errors(reader: LogReader, run: str, happened: dict[str, RecentEvents]) -> RecentErrors | None:
    found = {kind: happened[kind] for kind in FAILURE_TYPES if kind in happened}
    if not found:
        return None
    newest = max(found.values(), key=lambda one: one.run_seq)
    item = reader.run_event(run, newest.run_seq)
    assert item is not None
    error = getattr(item.event, "error", None)
    said = error.message if error is not None else getattr(item.event, "reason", item.type)
    return RecentErrors(
        count=sum(one.number for one in found.values()),
        last=str(said),
        place=f"{run}@{newest.run_seq}",
        time=iso_from_us(newest.last_us),
    )


def _provider_statuses(
    reader: LogReader, runs: Sequence[RunSummary], system: SystemState
) -> tuple[ProviderStatus, ...]:
    """Return the endpoints that the runs asked, and those whose breaker is open."""
    asked: dict[str, list[CallAttempt]] = {name: [] for name in system.breakers}
    for run in runs:
        for one in reader.recent_calls(run.id, CALLS_PER_RUN) if run.spent_calls else ():
            asked.setdefault(one.endpoint, []).append(one)
    return tuple(provider_status(name, asked[name], system.breakers.get(name)) for name in sorted(asked))


def provider_status(name: str, asked: Sequence[CallAttempt], resting: str | None) -> ProviderStatus:
    """Return an endpoint's state by its last attempts at answers; `resting` says why its breaker is open."""
    took = [one.ms for one in asked if one.ms is not None]
    failed = sum(one.outcome != "answered" for one in asked)
    return ProviderStatus(
        name=name,
        state="resting" if resting is not None else "failing" if asked and failed == len(asked) else "up",
        resting=resting,
        calls=len(asked),
        failed=failed,
        median_ms=median(took) if took else None,
        models=tuple(sorted({one.model for one in asked})),
    )


def _day_view(system: SystemState) -> DayView | None:
    day = system.day
    if day is None:
        return None
    spent = day.spent
    return DayView(
        date=day.date,
        spent_usd=spent.usd,
        spent_tokens=spent.tokens,
        spent_calls=spent.calls,
        spent_seconds=spent.seconds,
        spent_device_seconds=spent.device_seconds,
        reserved_usd=day.reserved_amount.usd,
    )
