"""`agentctl status`: shows a home on one screen, from the log alone."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence

import click
from click import unstyle

from agentctl.app import Session, common_options
from agentctl.completers import complete_runs
from agentctl.formatting import LEVELS, format_command, format_count, format_speedup, format_usd
from agentctl.run_details import format_run_details, format_shared_state
from agentctl.terminal_style import STATE_STYLES, make_printable, print_line, should_colour, style
from agentctl.text_layout import append_command, format_table, terminal_width, wrap_line
from agentctl.views import as_json
from agentctl.views.overview import HomeOverview, RunSummary, home_overview
from agentctl.views.owner_process import OwnerProcess, find_owner_process
from agentctl.views.run import INTERRUPTED
from daemon import exits
from state.errors import NoLog
from state.home import require_directory
from state.model import Level
from state.reader import LogReader

ENDED = ("completed", "cancelled")

MAX_DETAILED = 4
"""The maximum number of runs that get more than one line, so that all fits on one screen."""

MAX_NAMED = 3
"""The maximum number of runs that one line names; beyond that, it gives their number."""


@click.command(epilog=exits.epilog())
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option(
    "--all", "all_", is_flag=True, help="All runs, not only the newest and those that have not ended."
)
@click.option("--watch", is_flag=True, help="Show it again as it changes, until RUN has ended, or Ctrl-C.")
@common_options
def status(session: Session, run: str | None, *, all_: bool, watch: bool) -> None:
    """Show who owns the home and how its runs stand, newest first; works with the daemon down.

    A run is queued, running, paused, cancelled or completed. One that would be running is called interrupted
    while nobody owns the home; `agentctl resume` carries on with it. For runs that have not ended, and for
    RUN, it also shows the best kernel, what is spent, how fast the run goes, and what is in flight.
    """
    if watch:
        watch_status(session, run, lambda: home_view(session, run, all_=all_), format_overview)
        return
    found = home_view(session, run, all_=all_)
    session.emit(as_json(found), "\n".join(format_overview(found, named=run is not None)))


def format_overview(found: HomeOverview, *, named: bool) -> list[str]:
    """Return the state of a home as lines; `named` is true if you asked for one run."""
    refused = found.daemon.config_refused
    told = [f"an edit was refused, and changes nothing: {refused}"] if refused else []
    width = terminal_width()
    rest = f"and {format_count(found.more, 'more run', 'more runs')}:"
    more = append_command(rest, format_command("status", "--all"), width) if found.more else ()
    lines = [
        *(_given_lines(found.runs[0]) if named else []),
        *(line for one in _detailed_runs(found.runs) for line in format_run_details(one)),
        *format_shared_state(found),
    ]
    return [
        line
        for part in (
            (wrap_line(one, width) for one in (_process_line(found.daemon), *told)),
            _runs_table(found.runs, width) if found.runs else ["no runs"],
            more,
            (wrap_line(one, width) for one in lines),
            _approval_lines(found.runs, width),
            _interrupted_lines(found.runs, width),
        )
        for line in part
    ]


def _detailed_runs(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Return the runs to show in detail: a single run, else some of those that have not ended."""
    live = [one for one in runs if one.state not in ENDED]
    return list(runs) if len(runs) == 1 else live[:MAX_DETAILED]


def home_view(session: Session, run: str | None, *, all_: bool = False) -> HomeOverview:
    """Return the current state of the session's home, even if nothing was ever recorded there.

    Raises:
        UnknownRun: there is no such run.
        state.errors.StateError: the home or its log cannot be used.
    """
    require_directory(session.home)
    now_us = time.time() * 1e6
    try:
        with LogReader.open(session.home) as reader:
            reader.check_end()
            owner = find_owner_process(session.home, refused=reader.system_state().refused)
            return home_overview(reader, owner, now_us=now_us, run=run, all_=all_, hashed=session.json)
    except NoLog:
        if run is not None or not session.home.exists():
            raise
        return home_overview(None, find_owner_process(session.home), now_us=now_us)


def _given_lines(run: RunSummary) -> list[str]:
    """Return a line for each sequence that a run tried first, with its origin, and for its experiences."""
    told = [f"told {format_count(len(run.told), 'experience')} of others"] if run.told else []
    return told + [
        f"tried first what paid in {one['from']} ({one['problem']}, {format_speedup(one['speedup'])} by "
        f"{format_count(one['steps'], 'rewrite')})"
        for one in run.given
    ]


def _approval_lines(runs: Sequence[RunSummary], width: int | None) -> Iterator[str]:
    """Yield a line for each run that waits for a person's approval."""
    for run in runs:
        if run.needs_approval:
            said = f"{run.id} {run.reason}; let it go on with:"
            yield from append_command(said, format_command("approve", run.id), width)


def _interrupted_lines(runs: Sequence[RunSummary], width: int | None) -> Iterator[str]:
    """Yield how to continue runs that nobody advances."""
    waits = [run.id for run in runs if run.state == INTERRUPTED]
    if waits:
        all_ = f"start agentd for all {len(waits)}, or " if len(waits) > 1 else ""
        said = f"interrupted, as nobody owns this home: {all_}carry on with{' one' if all_ else ''}:"
        yield from append_command(said, format_command("resume", waits[0]), width)


def _process_line(process: OwnerProcess) -> str:
    queued = f", {format_count(process.queued, 'command')} queued" if process.queued else ""
    if not process.is_running:
        return f"{style('stopped', 'warn')} (nobody owns {process.home}){queued}"
    who = f"{process.kind} {process.pid} since {process.since}"
    waits = f"; {style('waiting', 'warn')}: {process.waits_for}" if process.waits_for else ""
    return f"{style('running', 'good')}: {who}, home {process.home}{queued}{waits}"


_HEADS = ("RUN", "STATE", "ROUND", "INITIAL", "BEST", "SPEEDUP", "%PEAK", "%MODEL", "SPENT")
_INITIAL = _HEADS.index("INITIAL")


def _runs_table(runs: Sequence[RunSummary], width: int | None) -> list[str]:
    """Return the runs as a table; it has a column for spending once there is any.

    If the table is too wide, it leaves out the initial latency; if that is not enough, each run gets
    several lines.
    """
    spent = any(run.spent_usd != 0 for run in runs)
    rows = [_HEADS, *map(_table_row, runs)]
    rows = rows if spent else [row[:-1] for row in rows]
    narrower = [(*row[:_INITIAL], *row[_INITIAL + 1 :]) for row in rows]
    for heads, *cells in (rows, narrower):
        lines = list(format_table(heads, cells, names=2))
        if width is None or max(len(unstyle(line)) for line in lines) <= width:
            lines[0] = style(lines[0], "head")
            break
    else:
        lines = [line for run in runs for line in _stack_run(run, width)]
    measured = [run.id for run in runs if run.predicted is False]
    told = f"but for {', '.join(measured)} " if measured else ""
    legend = f"latencies in ms, {told}predicted; shares of the roofline and of the model bound"
    return [
        *lines,
        *(style(line, "dim") for line in wrap_line(legend, width).splitlines()),
        *(wrap_line(line, width) for line in _level_lines(runs)),
    ]


def _stack_run(run: RunSummary, width: int | None) -> Iterator[str]:
    """Yield the lines of a run for a terminal that is too narrow for a table."""
    name, state, round_, initial, best, speedup, peak, tight, spent = _table_row(run)
    yield wrap_line(f"{style(name, 'head')}  {state}", width)
    said = [f"round {round_}"]
    if run.best_ms is not None:
        said += [f"{initial} to {best} ms", speedup, f"{peak} % of the peak", f"{tight} % of the bound"]
    said += [spent] if run.spent_usd else []
    yield wrap_line(f"  {', '.join(said)}", width)


def _level_lines(runs: Sequence[RunSummary]) -> list[str]:
    """Return, for each level, which best kernels were found correct at it, the most thorough level
    first.

    Runs below the highest level are named as examples, because most of a long table is at the highest
    level.
    """
    return [
        f"best found correct on {LEVELS[level]}: {_name_some_runs(names, all_=level is Level.WHOLE)}"
        for level in reversed(Level)
        if (names := [run.id for run in runs if run.best_level == level])
    ]


def _name_some_runs(names: list[str], *, all_: bool) -> str:
    """Return the names, or their number if there are many."""
    if len(names) <= MAX_NAMED:
        return ", ".join(names)
    number = format_count(len(names), "run")
    return number if all_ else f"{number}, such as {', '.join(names[:MAX_NAMED])}"


def _table_row(run: RunSummary) -> tuple[str, ...]:
    return (
        run.id,
        style(run.state, STATE_STYLES.get(run.state)),
        f"{run.round}/{run.rounds}",
        _format_number(run.initial_ms, ".4g"),
        _format_number(run.best_ms, ".4g"),
        format_speedup(run.speedup),
        _format_number(run.percent_of_peak, ".1f"),
        _format_number(run.percent_of_model_bound, ".1f"),
        format_usd(run.spent_usd),
    )


def _format_number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


LOOK_SECONDS = 1.0

ReadOverview = Callable[[], HomeOverview]
DrawOverview = Callable[..., list[str]]


def watch_status(session: Session, run: str | None, look: ReadOverview, draw: DrawOverview) -> None:
    """Show the state of a home whenever it changes; if `run` is given, stop when that run has ended."""
    show = _redraw_screen if sys.stdout.isatty() and not session.json else _print_changes
    show(session, run, look, draw)


def _has_ended(run: str | None, found: HomeOverview) -> bool:
    return run is not None and all(one.state in ("completed", "cancelled") for one in found.runs)


def _print_changes(session: Session, run: str | None, look: ReadOverview, draw: DrawOverview) -> None:
    """Write the status, or a line of JSON, whenever it has changed."""
    before: list[str] | None = None
    while True:
        found = look()
        lines = draw(found, named=run is not None)
        if lines != before:
            session.emit(as_json(found)) if session.json else print_line("\n".join([*lines, ""]))
            sys.stdout.flush()
        before = lines
        if _has_ended(run, found):
            return
        time.sleep(LOOK_SECONDS)


def _redraw_screen(session: Session, run: str | None, look: ReadOverview, draw: DrawOverview) -> None:
    """Redraw the status each time; the last one stays on the screen."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(no_color=should_colour() is False, highlight=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            found = look()
            lines = draw(found, named=run is not None)
            live.update(Text.from_ansi(make_printable("\n".join(lines))), refresh=True)
            if _has_ended(run, found):
                return
            time.sleep(LOOK_SECONDS)
