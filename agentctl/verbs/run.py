"""`agentctl run` and `agentctl resume`: start a run, or take one up, and see it to its end."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, Protocol

import click

from agentctl.answers import Sent, queued_runs, send
from agentctl.app import Session, common
from agentctl.choices import configured, effective, run_options, submission
from agentctl.foresee import dry_run_option, foresee
from agentctl.run_summary import as_json, as_text, write_best
from agentctl.runs import known_run, last_run
from agentctl.screen import Screen, screen_for
from agentctl.tracker import Tracker
from agentctl.verbs.fork import SAME, fork_of, set_option
from agentctl.views import as_json as as_view
from agentctl.views.run import run_view
from agentctl.words import standing, typed
from daemon import exits
from daemon.config import DaemonConfig
from daemon.errors import CommandRefused
from daemon.verbs import Resume, run_id
from state.errors import NoLog, ReadModelsStale
from state.fold import RunState
from state.model import RunStatus
from state.output import check_output
from state.reader import LogReader

output_option = click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Where to write the best kernel."
)


@click.command(epilog=exits.epilog())
@run_options
@output_option
@dry_run_option
@common
def run(session: Session, kernel: Path | None, output: Path | None, *, dry_run: bool, **flags: Any) -> int:
    """Optimise a kernel, showing progress; Ctrl-C stops it, and `resume` carries on."""
    check_output_now(session, output)
    wanted = effective(session, flags)
    if dry_run:
        return foresee(session, wanted, kernel)
    command = submission(wanted, kernel)
    sent = send(session.home, command)
    return see_through(session, run_id(sent.id, command.config.problem), sent, wanted.config.daemon, output)


@click.command(epilog=exits.epilog())
@click.argument("run", required=False, metavar="[RUN[@SEQ]]")
@click.option("--last", is_flag=True, help="The newest run that has not ended.")
@set_option
@output_option
@common
def resume(
    session: Session, run: str | None, last: bool, settings: tuple[str, ...], output: Path | None
) -> int:
    """Carry on with a run that was interrupted or paused.

    RUN@SEQ goes back to an event of it: the run is paused, and a fork carries on from there in its place.
    Nothing is deleted. With --set, the fork does so with other settings.
    """
    check_output_now(session, output)
    if (run is None) == (not last):
        raise click.UsageError("name a RUN, or give --last")
    if run is not None and "@" in run:
        wanted = fork_of(session, run, settings, rewind=True)
        if wanted.same:
            click.echo(SAME, err=True)
        config = configured(session, {}).daemon
        sent = send(session.home, wanted.command)
        return see_through(session, run_id(sent.id, wanted.problem), sent, config, output)
    if settings:
        raise click.UsageError("--set goes with RUN@SEQ; for a run as it is there is `agentctl set`")
    waiting = _queued(session.home, run)
    if waiting is not None:
        return see_through(session, *waiting, configured(session, {}).daemon, output)
    row = _row(session.home, run)
    config = configured(session, {}).daemon
    if row["status"] == RunStatus.CANCELLED:
        raise CommandRefused(f"run {row['run']} is cancelled", code="illegal_state")
    if row["ended"]:
        onward = typed("fork", row["run"], "--set", "search.rounds=N")
        click.echo(f"{row['run']} had ended: nothing is left to do; to go on from it: {onward}", err=True)
        return see_through(session, row["run"], None, config, output)
    return see_through(session, row["run"], send(session.home, Resume(run=row["run"])), config, output)


class Beside(Protocol):
    """What is done beside following a run, for a verb that starts one."""

    def screen(self, screen: Screen, run: str) -> Screen:
        """Return where the run's progress is shown, and noticed."""

    def done(self, tracker: Tracker) -> tuple[dict[str, Any], str]:
        """Return what the report has besides, as JSON and in words, however following ended."""


def check_output_now(session: Session, output: Path | None) -> None:
    """Say now, not after days, that the best kernel cannot be written there."""
    if output is not None:
        check_output(session.home, output, replace=True)


def _queued(home: Path, run: str | None) -> tuple[str, Sent] | None:
    """Return the newest run whose first command waits for an owner of the home, or `run` if it is one."""
    return next((found for found in queued_runs(home) if run in (None, found[0])), None)


def _row(home: Path, run: str | None) -> dict[str, Any]:
    """Return the row of `run`, or of the last one; an older log is brought up to date first."""
    try:
        return _listed(home, run)
    except ReadModelsStale:
        from state.rewrite import migrate

        migrate(home)
        return _listed(home, run)


def _listed(home: Path, run: str | None) -> dict[str, Any]:
    with LogReader.open(home) as reader:
        reader.check_end()  # a run that ended here would never meet the check that its owner makes
        return known_run(reader, run or last_run(reader))


def see_through(
    session: Session,
    run: str,
    sent: Sent | None,
    config: DaemonConfig,
    output: Path | None,
    *,
    beside: Beside | None = None,
) -> int:
    """Follow `run` to its end (`sent` None: it has ended) and report; return the exit status."""
    from agentctl.follow import pursue, replay
    from daemon.logs import configure
    from daemon.proof import prove_for_a_while

    configure("warning", people=True)
    tracker = Tracker(run)
    hosted = False
    with screen_for(sys.stderr if session.json else sys.stdout) as screen:
        if sent is None:
            replay(session.home, tracker)
            asyncio.run(prove_for_a_while(session.home))
        else:
            shown = screen if beside is None else beside.screen(screen, run)
            hosted = asyncio.run(pursue(session.home, tracker, sent, shown, config))
    return _finish(session, tracker, output, beside, hosted=hosted)


def _finish(
    session: Session, tracker: Tracker, output: Path | None, beside: Beside | None, *, hosted: bool
) -> int:
    more, text = beside.done(tracker) if beside is not None else ({}, "")
    if tracker.state is None or not tracker.ended:
        known = as_view(run_view(tracker.run, tracker.state)) if tracker.state else {"id": tracker.run}
        how, verb = ("interrupted", "carry on") if hosted else ("detached", "follow")
        session.emit({**known, **more, "state": how})
        so_far = f": {standing(tracker.state)}" if tracker.state else ""
        click.echo(f"\nrun {tracker.run} {how}{so_far}", err=True)
        click.echo(f"{verb} with: {typed('resume', *session.home_words, tracker.run)}", err=True)
        if text:
            click.echo(text, err=True)
        if hosted:
            _tell_left(session, tracker.run)
        return exits.INTERRUPTED
    with LogReader.open(session.home) as reader:
        kernel_file = write_best(reader, session.home, tracker.run, tracker.state, output)
    told, fruitless = as_text(tracker, kernel_file), tracker.questions.fruitless()
    failure = {} if fruitless is None else {"failure": fruitless}
    session.emit({**as_json(tracker, kernel_file), **failure, **more}, f"{told}\n{text}" if text else told)
    if fruitless is not None:
        click.echo(f"{tracker.run}: {fruitless}", err=True)
    if hosted:
        _tell_left(session, tracker.run)
    return exits.OK if _found(tracker.state, asked_in_vain=fruitless is not None) else exits.FAILURE


def _found(state: RunState, *, asked_in_vain: bool) -> bool:
    """Whether a run came to something: where its questions came to nothing, only a gain is that."""
    if state.status is not RunStatus.COMPLETED or state.best is None or state.initial is None:
        return False
    return not asked_in_vain or state.best.id != state.initial.id


def _tell_left(session: Session, run: str) -> None:
    """Name the runs besides `run` that nobody drives any more when this process, their host, leaves."""
    try:
        with LogReader.open(session.home) as reader:
            rows = reader.listed()
    except NoLog:  # interrupted before there was one
        return
    others = [str(row["run"]) for row in rows if row["run"] != run and row["status"] == RunStatus.RUNNING]
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        go = typed("resume", *session.home_words, others[0]) + (", or start agentd" if more else "")
        left = f"interrupted, as this process leaves: {others[0]}{more}"
        click.echo(f"{left}; carry on with: {go}", err=True)
