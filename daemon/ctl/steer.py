"""The steering verbs: each drops one command into the inbox and waits for its answer in the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from daemon.ctl import exits
from daemon.ctl.answers import send, wait_for_answer
from daemon.ctl.app import Session, common
from daemon.ctl.choices import configured, read_source, run_options, submission
from daemon.verbs import Cancel, Command, Pause, Propose, run_id

reason_option = click.option("--reason", default="asked for", show_default=True, help="Kept in the log.")


@click.command(epilog=exits.epilog())
@run_options
@common
def submit(session: Session, kernel: Path | None, **flags: Any) -> None:
    """Hand a run to whoever owns the home, and return."""
    config = configured(session, flags)
    _steer(session, submission(session, config, kernel), "submitted")


@click.command(epilog=exits.epilog())
@click.argument("run")
@reason_option
@common
def pause(session: Session, run: str, reason: str) -> None:
    """Start nothing new in a run; what is in flight is finished."""
    _steer(session, Pause(run=run, reason=reason), "paused")


@click.command(epilog=exits.epilog())
@click.argument("run")
@reason_option
@common
def cancel(session: Session, run: str, reason: str) -> None:
    """End a run for good; what is in flight is dropped."""
    _steer(session, Cancel(run=run, reason=reason), "cancelled")


@click.command(epilog=exits.epilog())
@click.argument("run")
@click.argument("kernel", type=click.Path(path_type=Path))
@click.option("--note", default="", help="What the kernel changes, for people.")
@common
def propose(session: Session, run: str, kernel: Path, note: str) -> None:
    """Enter your KERNEL into a run, to be judged like any other."""
    source = read_source(kernel)
    if not source:
        raise click.UsageError(f"{kernel} is empty")
    _steer(session, Propose(run=run, source=source, note=note), "proposed")


def _steer(session: Session, command: Command, done: str) -> None:
    """Send `command` and show its answer, or that it is queued."""
    sent = send(session.home, command)
    answer = wait_for_answer(session.home, sent)
    if answer is None:
        queued = {"command": sent.id, "state": "queued"}
        if command.verb == "submit":
            queued["run"] = run_id(sent.id, command.config.problem)
        session.emit(queued, f"queued: {command.verb}; nobody owns this home now (agentd takes it up)")
        return
    result = answer.result if isinstance(answer.result, dict) else {}
    extra = f" as {result['candidate']} in round {result['round']}" if "candidate" in result else ""
    session.emit({"command": sent.id, "state": "done", **result}, f"{done}: {result.get('run')}{extra}")
