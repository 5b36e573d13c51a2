"""`agentctl best` and `agentctl diff`: kernels out of the log, and what changed between two of them."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from daemon.ctl import exits
from daemon.ctl.app import Session, common
from daemon.ctl.choices import known_run
from daemon.ctl.words import ms, times
from daemon.errors import DaemonError
from daemon.profiles import counters_of
from state.fold import RunState
from state.model import INITIAL_KEY
from state.reader import LogReader


@dataclass(frozen=True, slots=True)
class Version:
    """One kernel of a run: its source, and its latency and counters where it was judged correct."""

    id: str
    source: str
    latency_ms: float | None
    predicted: bool | None
    counters: dict[str, float]


@click.command(epilog=exits.epilog())
@click.argument("run")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write the kernel here instead of to stdout."
)
@common
def best(session: Session, run: str, output: Path | None) -> None:
    """Give a run's best kernel so far."""
    with LogReader.open(session.home) as reader:
        known_run(reader, run)
        version = find(reader, run, "best")
    if output is not None:
        try:
            output.write_text(version.source, encoding="utf-8")
        except OSError as error:
            raise DaemonError(f"{output}: {error.strerror}", code="unwritable_output") from error
    about: dict[str, Any] = {"run": run, "candidate": version.id, "latency_ms": version.latency_ms}
    about |= {"predicted": version.predicted, "output": None if output is None else str(output)}
    if output is None:
        session.emit({**about, "source": version.source}, version.source.rstrip("\n"))
    else:
        session.emit(about, f"wrote {version.id} ({_latency(version)}) to {output}")


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
    content = {
        "run": run, "a": old.id, "b": new.id, "a_ms": old.latency_ms, "b_ms": new.latency_ms,
        "speedup": speedup, "counters": moved, "diff": patch,
    }  # fmt: skip
    width = max((len(name) for name in moved), default=0)
    table = [f"  {name:{width}}  {was:>12.5g} -> {now:.5g}" for name, (was, now) in moved.items()]
    head = f"{old.id}: {_latency(old)} -> {new.id}: {_latency(new)}, {times(speedup)}"
    session.emit(content, "\n".join([head, *table, patch.rstrip("\n")]))


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
        predicted=None if row.get("predicted") is None else bool(row["predicted"]),
        counters=counters_of(reader.blob(row["profile"])) if row.get("profile") else {},
    )


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


def _latency(version: Version) -> str:
    if version.latency_ms is None:
        return "no latency"
    return f"{ms(version.latency_ms)} {'predicted' if version.predicted else 'measured'}"
