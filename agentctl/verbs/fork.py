"""`agentctl fork`, and what it shares with `agentctl resume RUN@SEQ`: starts a run that continues another."""

from __future__ import annotations

from typing import Any, NamedTuple

import click

from agentctl.app import Session, common_options
from agentctl.command_answers import send_command, wait_for_answer
from agentctl.event_lookup import find_event
from agentctl.formatting import format_command, format_count
from agentctl.run_flags import parse_assignments
from agentctl.run_lookup import find_run, parse_event_number
from agentctl.verbs.steer import name_new_run, report_queued
from daemon import exits
from daemon.command_models import Fork, run_id
from daemon.name_checks import find_unknown_names
from daemon.run_settings import apply_settings, diff_configs
from state.reader import LogReader

NOTHING_CHANGES = "nothing changes, the run has these settings already"

set_option = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting to change, e.g. search.beam=6."
)


def parse_place(place: str) -> tuple[str, int | None]:
    """Parse `RUN@SEQ`, or `RUN` for a run's last event.

    Raises:
        click.UsageError: it is neither.
    """
    run, mark, number = place.rpartition("@")
    if not mark:
        return place, None
    run_seq = parse_event_number(number)
    if not (run and run_seq):
        raise click.UsageError(f"{place}: expected RUN@SEQ, with a number of 1 or more")
    return run, run_seq


class ForkRequest(NamedTuple):
    """The command that forks a run, the new run's problem, and the settings that change.

    `changed` maps a setting's key to its two values. `same` is true if settings were given but change
    nothing, `ended` if the run has ended at that place.
    """

    command: Fork
    problem: str
    changed: dict[str, tuple[Any, Any]]
    same: bool
    ended: bool


def build_fork(session: Session, place: str, settings: tuple[str, ...], *, rewind: bool) -> ForkRequest:
    """Return the request to fork the run at `place`.

    Every fault that can be found here is reported before the command is sent.

    Raises:
        UnknownRun, UnknownEvent: there is no such place.
        daemon.config.ConfigError: settings are unknown or wrong.
        seeds.SeedsError: the problem is unknown, or its files have faults.
    """
    run, run_seq = parse_place(place)
    changed = parse_assignments(settings)
    with LogReader.open(session.home) as reader:
        row = find_run(reader, run)
        run = str(row["run"])
        if run_seq is not None:
            find_event(reader, run, run_seq)
        state = reader.run_state(run, run_seq)
    before = state.pending_config or state.config
    differs = diff_configs(before, apply_settings(before, changed, look_up=find_unknown_names))
    problem, files = str(row["problem"]), None
    for key in ("run.problem", "problem"):
        if key in changed:
            problem, files = _load_problem_files(changed.pop(key))
    command = Fork.model_construct(
        verb="fork", run=run, seq=run_seq, settings=changed, files=files, rewind=rewind
    )
    return ForkRequest(
        command, problem, differs, bool(settings) and not differs and files is None, state.has_ended
    )


def _load_problem_files(name: str) -> tuple[str, dict[str, bytes]]:
    import seeds

    problem = seeds.load_problem(name)
    return problem.name, dict(problem.files)


@click.command(epilog=exits.epilog())
@click.argument("place", metavar="RUN[@SEQ]")
@set_option
@common_options
def fork(session: Session, place: str, settings: tuple[str, ...]) -> None:
    """Continue a run from its event SEQ (its last if left out) as a run of its own, with changed settings.

    Nothing is copied and the run itself goes on undisturbed. Changed settings count from the next round on;
    where the problem, size, target or evaluator changes, the kernels of the beam are judged anew first.
    """
    wanted = build_fork(session, place, settings, rewind=False)
    if wanted.same:
        click.echo(f"{NOTHING_CHANGES}: the fork goes on as its parent would", err=True)
    if wanted.ended and not settings:
        click.echo(
            "the run has ended there, so a fork with the same settings ends at once; "
            "give it more to do, such as --set search.rounds=N, or fork RUN@SEQ from an earlier event",
            err=True,
        )
    sent = send_command(session.home, wanted.command)
    child = run_id(sent.id, wanted.problem)
    with name_new_run(child):
        answer = wait_for_answer(session.home, sent)
    if answer is None:
        report_queued(session, sent, "fork", run=child)
        return
    result: dict[str, Any] = answer.result if isinstance(answer.result, dict) else {}
    text = [f"forked: {child} from {result['parent']}@{result['seq']}"]
    if result["abandoned"]:
        text.append(f"{format_count(result['abandoned'], 'effect')} in flight there abandoned")
    if result["rejudged"]:
        text.append("its kernels are judged anew first")
    text += [f"{key} {old} -> {new}" for key, (old, new) in wanted.changed.items()]
    hint = f"follow it with: {format_command('resume', *session.home_words, child)}"
    session.emit({"command": sent.id, "state": "done", **result}, ", ".join(text) + f"\n{hint}")
