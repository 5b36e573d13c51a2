"""`agentctl lineage` and `agentctl replay`: show how runs descend from each other, and rebuild a run
from its events.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from agentctl.app import Session, common_options
from agentctl.event_lines import SHORT_VERSION
from agentctl.event_lookup import find_event
from agentctl.formatting import format_count, format_ms, format_round, format_run_state, format_speedup
from agentctl.run_lookup import find_run, read_event_number
from agentctl.verbs.fork import parse_place
from agentctl.views import as_json
from agentctl.views.run import run_view, status_word
from daemon import exits
from daemon.run_settings import diff_configs
from state.events import ConfigChanged, RunForked
from state.fold import RunState
from state.home import HomeLayout
from state.lock import read_owner
from state.model import Rebase, RunConfig
from state.reader import LogReader

Rows = list[dict[str, Any]]


@click.command(epilog=exits.epilog())
@click.argument("run", required=False)
@common_options
def lineage(session: Session, run: str | None) -> None:
    """Draw the tree of runs: which continue which, from which event, and with what changed.

    With RUN, the tree that it is part of.
    """
    with LogReader.open(session.home) as reader:
        reader.check_end()
        rows = {row["run"]: row for row in reversed(reader.run_rows())}
        roots = [name for name, row in rows.items() if row["parent"] is None]
        if run is not None:
            roots = [_root_run(rows, str(find_run(reader, run)["run"]))]
        owned = read_owner(HomeLayout(session.home).lock) is not None
        with session.progress_bar("reading runs") as bar:
            trees = []
            for number, root in enumerate(roots, start=1):
                trees.append(_build_tree(reader, rows, root, owned=owned))
                bar(number, len(roots))
    lines = [line for tree in trees for line in _draw_tree(tree)]
    session.emit({"runs": trees}, "\n".join(lines) if lines else "no runs")


def _root_run(rows: Mapping[str, dict[str, Any]], run: str) -> str:
    while (parent := rows[run]["parent"]) is not None:
        run = parent
    return run


def _build_tree(
    reader: LogReader, rows: Mapping[str, dict[str, Any]], run: str, *, owned: bool
) -> dict[str, Any]:
    """Return a run with its forks, ordered by the events that they continue."""
    row = rows[run]
    state = reader.run_state(run)
    forks = sorted(
        (name for name, other in rows.items() if other["parent"] == run),
        key=lambda name: (rows[name]["parent_seq"], rows[name]["first_seq"]),
    )
    return {
        "run": run,
        "parent": row["parent"],
        "parent_seq": row["parent_seq"],
        "state": status_word(state, owned=owned),
        "round": state.round,
        "rounds": state.config.search.rounds,
        "best_ms": state.best.latency_ms if state.best else None,
        "predicted": state.best.benchmark.predicted if state.best else None,
        "speedup": state.initial.latency_ms / state.best.latency_ms if state.best and state.initial else None,
        "changed": {key: list(both) for key, both in _fork_changes(reader, row).items()},
        "forks": [_build_tree(reader, rows, name, owned=owned) for name in forks],
    }


def _fork_changes(reader: LogReader, row: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return which settings and prompts of its parent a fork changed, and the toolchain if it differs."""
    if row["parent"] is None:
        return {}
    before = reader.run_state(row["parent"], row["parent_seq"])
    own = reader.read(stream=row["run"], after=row["first_seq"] - 1, limit=2)
    forked = own[0].event
    assert isinstance(forked, RunForked)
    begun = own[1].event if len(own) > 1 and own[1].seq == own[0].seq + 1 else None
    changed = begun if isinstance(begun, ConfigChanged) else None
    found: dict[str, tuple[Any, Any]] = {}
    if forked.rebase is not None:
        found = _rebase_changes(before, forked.rebase)
    elif changed is not None:
        found = diff_configs(_current_settings(before), RunConfig.model_validate(changed.config))
    if changed is not None and changed.prompts is not None:
        found["prompts"] = (before.next_prompts, changed.prompts)
    return found


def _rebase_changes(before: RunState, rebase: Rebase) -> dict[str, tuple[Any, Any]]:
    found = diff_configs(_current_settings(before), rebase.config)
    if rebase.problem.digest != before.problem.digest:
        found.setdefault("run.problem", (before.problem.name, rebase.problem.name))
    if rebase.toolchain != before.toolchain:
        found["toolchain"] = (before.toolchain, rebase.toolchain)
    return found


def _current_settings(state: RunState) -> RunConfig:
    return state.pending_config or state.config


def _draw_tree(tree: dict[str, Any], lead: str = "", branch: str = "") -> Iterator[str]:
    yield f"{lead}{branch}{_format_run(tree)}"
    below = lead + {"": "", "├─ ": "│  ", "└─ ": "   "}[branch]
    for number, fork in enumerate(tree["forks"], start=1):
        yield from _draw_tree(fork, below, "└─ " if number == len(tree["forks"]) else "├─ ")


def _format_run(tree: dict[str, Any]) -> str:
    at = "" if tree["parent_seq"] is None else f" from @{tree['parent_seq']}"
    said = [f"{tree['run']}{at}", tree["state"], f"round {tree['round']}/{tree['rounds']}"]
    if tree["best_ms"] is not None:
        kind = "predicted" if tree["predicted"] else "measured"
        said.append(f"best {format_ms(tree['best_ms'])} {kind}, {format_speedup(tree['speedup'])}")
    said += [
        f"{key} {_format_value(key, old)} -> {_format_value(key, new)}"
        for key, (old, new) in tree["changed"].items()
    ]
    return "  ".join(said)


def _format_value(key: str, value: Any) -> str:
    return str(value)[:SHORT_VERSION] if key == "prompts" else str(value)


def _format_status(state: RunState) -> str:
    rounds = format_round(state.round, state.config.search.rounds)
    return f"{state.status}, {rounds}, {format_count(len(state.open), 'effect')} in flight"


@click.command(epilog=exits.epilog())
@click.argument("place", metavar="RUN[@SEQ]")
@click.option("--to", metavar="SEQ", callback=read_event_number, help="Stop after this event of the run.")
@common_options
def replay(session: Session, place: str, to: int | None) -> None:
    """Rebuild a run from its first event, check every hash, and show how the run stood at the end.

    It uses no snapshots and no lists. Each row must continue the one before it by hash. If a row recorded the
    hash of the state after it, the state must have that hash. The first row that fails is named, and the
    status is 4.
    """
    run, run_seq = parse_place(place)
    if run_seq is not None and to is not None:
        raise click.UsageError("give RUN@SEQ or --to, not both")
    upto = run_seq if to is None else to
    with LogReader.open(session.home) as reader:
        reader.check_end()
        run = str(find_run(reader, run)["run"])
        if upto is not None:
            find_event(reader, run, upto)
        began = time.perf_counter()
        with session.progress_bar("folding events") as bar:
            found = reader.replay_run(run, upto, progress=bar)
        seconds = time.perf_counter() - began
    skipped = f", {found.other_folds} of other versions skipped" if found.other_folds else ""
    text = [
        f"{run}@{found.run_seq}: {format_count(found.events, 'event')} folded, hash {found.hash[:16]}",
        f"{format_count(found.state_hashes, 'state hash', 'state hashes')} compared and equal{skipped}",
        "read: " + ", then ".join(f"{stream} to @{last}" for stream, last in found.line),
        _format_status(found.state),
        format_run_state(found.state),
    ]
    session.emit(
        {
            **as_json(run_view(run, found.state)),
            "run_seq": found.run_seq,
            "hash": found.hash,
            "events": found.events,
            "events_per_second": round(found.events / seconds),
            "state_hashes": found.state_hashes,
            "state_hashes_of_other_versions": found.other_folds,
            "read": [{"run": stream, "to": last} for stream, last in found.line],
        },
        "\n".join(text),
    )
