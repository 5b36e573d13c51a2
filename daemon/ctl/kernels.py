"""`agentctl best` and `agentctl diff`: kernels out of the log, and what changed between two of them."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from daemon.ctl import exits
from daemon.ctl.app import Session, common
from daemon.ctl.choices import known_run
from daemon.ctl.words import latency, ms, percentage, sure, times
from daemon.errors import DaemonError
from daemon.profiles import counters_of
from state.fold import RunState
from state.model import INITIAL_KEY, Benchmark
from state.output import write_output
from state.reader import LogReader


@dataclass(frozen=True, slots=True)
class Version:
    """One kernel of a run: its source, and its latency and counters where it was judged correct."""

    id: str
    source: str
    latency_ms: float | None
    lo_ms: float | None
    hi_ms: float | None
    predicted: bool | None
    counters: dict[str, float]
    draws_ms: tuple[float, ...] = ()
    level: str | None = None

    @property
    def benchmark(self) -> Benchmark | None:
        if self.latency_ms is None or self.lo_ms is None or self.hi_ms is None:
            return None
        return Benchmark(
            latency_ms=self.latency_ms, lo_ms=self.lo_ms, hi_ms=self.hi_ms, predicted=bool(self.predicted),
            samples=1, draws_ms=self.draws_ms,
        )  # fmt: skip


@click.command(epilog=exits.epilog())
@click.argument("run")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write the kernel here instead of to stdout."
)
@common
def best(session: Session, run: str, output: Path | None) -> None:
    """Give a run's best kernel so far, also of runs that `agentd` hosts, which write no file of their own."""
    with LogReader.open(session.home) as reader:
        known_run(reader, run)
        version, first = find(reader, run, "best"), find(reader, run, "initial")
    if output is not None:
        write_output(session.home, output, version.source.encode())
    about: dict[str, Any] = {"run": run, "candidate": version.id, "latency_ms": version.latency_ms}
    about |= {"level": version.level}
    about |= {"predicted": version.predicted, "wins_percent": _wins_percent(version, first)}
    about |= {"output": None if output is None else str(output)}
    if output is None:
        session.emit({**about, "source": version.source}, version.source.rstrip("\n"))
    else:
        said = f"{_latency(version)}{sure(version.benchmark, first.benchmark)}"
        session.emit(about, f"wrote {version.id} ({said}) to {output}")


@click.command(epilog=exits.epilog())
@click.argument("run")
@click.argument("a", default="initial")
@click.argument("b", default="best")
@common
def diff(session: Session, run: str, a: str, b: str) -> None:
    """Show what changed from kernel A to kernel B: candidate ids, `initial` or `best`."""
    with LogReader.open(session.home) as reader:
        known_run(reader, run)
        old, new = find(reader, run, a), find(reader, run, b)
    patch = unified(old, new)
    speedup = old.latency_ms / new.latency_ms if old.latency_ms and new.latency_ms else None
    moved = counters(old, new)
    told = [name for name, (was, now) in moved.items() if readable(name, was) != readable(name, now)]
    content = {
        "run": run, "a": old.id, "b": new.id, "a_ms": old.latency_ms, "b_ms": new.latency_ms,
        "a_lo_ms": old.lo_ms, "a_hi_ms": old.hi_ms, "b_lo_ms": new.lo_ms, "b_hi_ms": new.hi_ms,
        "speedup": speedup, "wins_percent": _wins_percent(new, old), "counters": moved, "diff": patch,
    }  # fmt: skip
    names = {name: f"{name} ({NOTES[name]})" if name in NOTES else name for name in told}
    width = max(map(len, names.values()), default=0)
    predicted = "predicted counters" if new.predicted else "counters"
    table = [f"{predicted} that changed, most changed first:"] if told else []
    table += [
        f"  {text:{width}}  {readable(name, moved[name][0]):>12} -> {readable(name, moved[name][1])}"
        for name, text in names.items()
    ]
    gained = f"{times(speedup)}{sure(new.benchmark, old.benchmark)}"
    head = [f"{old.id}: {_latency(old)}", f"{new.id}: {_latency(new)}, {gained}"]
    session.emit(content, "\n".join([*head, *table, patch.rstrip("\n")]))


def find(reader: LogReader, run: str, name: str) -> Version:
    """Return a run's kernel by candidate id, or by `initial` or `best`.

    Raises:
        DaemonError: the run has none of that name (yet).
    """
    state = reader.state(run)
    wanted = _named(state, name)
    rows = {row["candidate"]: row for row in reader.attempts(run)}
    row = rows.get(wanted, {})
    source = state.kernel if wanted == INITIAL_KEY.candidate else row.get("source")
    if source is None:
        raise DaemonError(f"run {run} has no kernel {wanted!r}", code="unknown_candidate")
    return Version(
        id=wanted,
        source=reader.blob(source).decode(),
        latency_ms=row.get("latency_ms"),
        lo_ms=row.get("lo_ms"),
        hi_ms=row.get("hi_ms"),
        predicted=None if row.get("predicted") is None else bool(row["predicted"]),
        counters=counters_of(reader.blob(row["profile"])) if row.get("profile") else {},
        draws_ms=_draws(state).get(wanted, ()),
        level=row.get("level"),
    )


def _draws(state: RunState) -> dict[str, tuple[float, ...]]:
    """Return the draws of the kernels that a run still goes by; of others only the log has them."""
    marks = [mark.candidate for mark in state.checkpoints.values()]
    held = [state.initial, state.best, *(entry.candidate for entry in state.beam), *marks]
    return {one.id: one.benchmark.draws_ms for one in held if one is not None}


def _wins_percent(one: Version, other: Version) -> float | None:
    return one.benchmark.wins_percent(other.benchmark) if one.benchmark and other.benchmark else None


def _named(state: RunState, name: str) -> str:
    if name == "initial":
        return INITIAL_KEY.candidate
    if name != "best":
        return name
    if state.best is None:
        raise DaemonError("there is no correct kernel yet", code="no_kernel")
    return state.best.id


def unified(old: Version, new: Version) -> str:
    """Return the unified diff of two sources."""
    lines = difflib.unified_diff(
        old.source.splitlines(keepends=True), new.source.splitlines(keepends=True), old.id, new.id
    )
    return "".join(lines)


def counters(old: Version, new: Version) -> dict[str, tuple[float, float]]:
    """Return the counters that both profiles have and that moved, those that moved most first."""
    shared = [name for name in old.counters if name in new.counters]
    moved = {name: (old.counters[name], new.counters[name]) for name in shared}

    def size(name: str) -> float:
        was, now = moved[name]
        return abs(now - was) / max(abs(was), abs(now))

    changed = [name for name, (was, now) in moved.items() if was != now]
    return {name: moved[name] for name in sorted(changed, key=size, reverse=True)}


def readable(name: str, value: float) -> str:
    """Return a counter's value with its unit, which the end of its name says."""
    for ending, write in _UNITS.items():
        if name.endswith(ending):
            return write(value)
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"


def scaled(value: float, unit: str) -> str:
    """Return a value with the decimal prefix that leaves one to three digits in front."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.1f} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def _latency(version: Version) -> str:
    return latency(version.benchmark) if version.benchmark else "no latency"


_UNITS: dict[str, Callable[[float], str]] = {
    "_bytes": lambda value: scaled(value, "B"),
    "_flops": lambda value: scaled(value, "flop"),
    "_percent": percentage,
    "time": lambda value: ms(1e3 * value),
}
"""How to write counters, by the ends of their names; times are in seconds."""

NOTES = {
    "hfu_estimated_percent": "flops done, of the tensor engine's peak",
    "mbu_estimated_percent": "bytes moved, of the HBM's peak",
    "mfu_inst_max_achievable_estimated_percent": "flops per byte, of the ridge",
}
"""What a share is of, where its name does not say so."""
