"""The steering verbs: each puts one command into the inbox and waits for its answer in the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from agentctl.app import Session, common_options
from agentctl.command_answers import (
    ProposalResult,
    SentCommand,
    refuse_illegal_command,
    send_command,
    wait_for_answer,
    wait_for_proposal_result,
)
from agentctl.dry_run import dry_run_option, print_estimate
from agentctl.event_lines import format_event_line
from agentctl.formatting import format_command
from agentctl.run_flags import (
    effective_from_flags,
    load_submission,
    parse_assignments,
    read_kernel_source,
    run_options,
)
from agentctl.run_lookup import complete_run_id
from agentctl.views.owner_process import find_owner_process
from daemon import exits
from daemon.command_models import Approve, Cancel, Pause, Propose, Set, SteeringCommand, Submit, run_id
from daemon.errors import NotAnswered

reason_option = click.option("--reason", default="asked for", show_default=True, help="Kept in the log.")


@click.command(epilog=exits.epilog())
@run_options
@dry_run_option
@common_options
def submit(session: Session, kernel: Path | None, *, dry_run: bool, **flags: Any) -> None:
    """Queue a run for the owner of the home, and return."""
    wanted = effective_from_flags(session, flags)
    if dry_run:
        print_estimate(session, wanted, kernel)
    else:
        command = load_submission(
            session.home, wanted, kernel, allow_unknown_prices=flags["allow_unknown_prices"]
        )
        _send_and_report(session, command, "submitted")


@click.command(epilog=exits.epilog())
@click.argument("run")
@reason_option
@common_options
def pause(session: Session, run: str, reason: str) -> None:
    """Pause a run: work in flight is finished, nothing new starts."""
    _send_and_report(session, Pause(run=complete_run_id(session.home, run), reason=reason), "paused")


@click.command(epilog=exits.epilog())
@click.argument("run")
@reason_option
@common_options
def cancel(session: Session, run: str, reason: str) -> None:
    """End a run for good, and drop its work in flight."""
    _send_and_report(session, Cancel(run=complete_run_id(session.home, run), reason=reason), "cancelled")


@click.command(epilog=exits.epilog())
@click.argument("run")
@click.option("--reason", default="approved", show_default=True, help="Kept in the log.")
@common_options
def approve(session: Session, run: str, reason: str) -> None:
    """Let a run continue that waits for approval at a point that `run.approval` names."""
    _send_and_report(session, Approve(run=complete_run_id(session.home, run), reason=reason), "approved")


@click.command("set", epilog=exits.epilog())
@click.argument("run")
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE...")
@common_options
def set_settings(session: Session, run: str, settings: tuple[str, ...]) -> None:
    """Change settings of a run, e.g. `search.rounds=8`; they count from its next round on.

    They are checked together, and all are taken or none. What kernels are judged by (problem, size, target,
    evaluator) stays; `agentctl fork` can change it.
    """
    run = complete_run_id(session.home, run)
    command = Set(run=run, settings=parse_assignments(settings))
    refuse_illegal_command(session.home, command)
    sent = send_command(session.home, command)
    answer = wait_for_answer(session.home, sent)
    if answer is None:
        report_queued(session, sent, "set")
        return
    result: dict[str, Any] = answer.result if isinstance(answer.result, dict) else {}
    changed = [f"{key} {old} -> {new}" for key, (old, new) in result["changed"].items()]
    text = ", ".join(changed) + f" from round {result['from_round']} on" if changed else "nothing changes"
    session.emit({"command": sent.id, "state": "done", **result}, f"{run}: {text}")


@click.command(epilog=exits.epilog())
@click.argument("run")
@click.argument("kernel", type=click.Path(path_type=Path))
@click.option("--note", default="", help="What the kernel changes, for people.")
@click.option("--wait", is_flag=True, help="Wait for the verdict; status 1 if it is not correct.")
@common_options
def propose(session: Session, run: str, kernel: Path, note: str, wait: bool) -> int:
    """Add your KERNEL to a run, which judges it like any other."""
    source = read_kernel_source(kernel)
    if not source:
        raise click.UsageError(f"{kernel} is empty")
    run = complete_run_id(session.home, run)
    command = Propose(run=run, source=source, note=note)
    refuse_illegal_command(session.home, command)
    sent = send_command(session.home, command)
    answer = wait_for_answer(session.home, sent)
    if answer is None:
        report_queued(session, sent, "propose")
        return exits.OK
    result: dict[str, Any] = answer.result if isinstance(answer.result, dict) else {}
    said = f"proposed: {run} as {result['candidate']} in round {result['round']}"
    if not wait:
        hint = format_command("tail", *session.home_words, "-f", "--after", str(sent.after), "--run", run)
        session.emit({"command": sent.id, "state": "done", **result}, f"{said}\nsee its fate with: {hint}")
        return exits.OK
    fate = wait_for_proposal_result(session.home, run, result["candidate"], sent.after)
    session.emit(
        {"command": sent.id, "state": "done", **result, **_result_json(fate)},
        "\n".join([said, *_result_lines(fate)]),
    )
    return exits.OK if fate.is_correct else exits.FAILURE


def _result_json(fate: ProposalResult) -> dict[str, Any]:
    """Return a proposed kernel's verdict and decision as JSON; None for one that did not come."""
    found = {"verdict": fate.verdict, "decision": fate.decision}
    return {name: item and item.event.model_dump(mode="json") for name, item in found.items()}


def _result_lines(fate: ProposalResult) -> list[str]:
    lines = [format_event_line(item) for item in (fate.verdict, fate.decision) if item]
    if fate.decision:
        return lines
    if fate.verdict:
        return [*lines, "the run decides whether to keep it when the round closes"]
    return ["undecided: the run has ended or is paused, or nobody owns this home any more"]


def _send_and_report(session: Session, command: Submit | SteeringCommand, done: str) -> None:
    """Send `command` and print its answer, or that it is queued."""
    if not isinstance(command, Submit):
        refuse_illegal_command(session.home, command)
    sent = send_command(session.home, command)
    made = run_id(sent.id, command.config.problem) if isinstance(command, Submit) else None
    with name_new_run(made):
        answer = wait_for_answer(session.home, sent)
    if answer is None:
        report_queued(session, sent, command.verb, **({"run": made} if made else {}))
        return
    result = answer.result if isinstance(answer.result, dict) else {}
    text = f"{done}: {result.get('run')}"
    if isinstance(command, Submit) and (owner := find_owner_process(session.home)).kind == "agentctl":
        text += f"\nprocess {owner.pid} drives it: a foreground agentctl, which stays until it has ended"
    session.emit({"command": sent.id, "state": "done", **result}, text)


@contextmanager
def name_new_run(run: str | None) -> Iterator[None]:
    """If the answer does not come in time, name the run that the command will create."""
    try:
        yield
    except NotAnswered as error:
        if run is not None:
            error.hint = f"its run will be {run}"
        raise


def report_queued(session: Session, sent: SentCommand, verb: str, **known: str) -> None:
    """Print that a command waits for an owner of the home."""
    text = f"queued: {verb}; nobody owns this home now; agentd, or the next agentctl run, takes it up"
    if "run" in known:
        run = known["run"]
        go = format_command("resume", *session.home_words, run)
        text = f"queued: {verb} as {run}; nobody owns this home now: agentd takes it up, or: {go}"
    session.emit({"command": sent.id, "state": "queued", **known}, text)
