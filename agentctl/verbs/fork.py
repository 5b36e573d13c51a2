"""`agentctl fork`, and what it shares with `agentctl resume RUN@SEQ`: a run that continues another."""

from __future__ import annotations

from typing import Any, NamedTuple

import click

from agentctl.answers import send, wait_for_answer
from agentctl.app import Session, common
from agentctl.choices import assignments
from agentctl.runs import event_number, known_run
from agentctl.seek import event_at
from agentctl.verbs.steer import naming, queued
from agentctl.words import count, typed
from daemon import exits
from daemon.amend import amended, changes
from daemon.names import unknown
from daemon.verbs import Fork, run_id
from state.reader import LogReader

SAME = "nothing changes, the run has these settings already"

set_option = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting to change, e.g. search.beam=6."
)


def parse_place(place: str) -> tuple[str, int | None]:
    """Read `RUN@SEQ`, or `RUN` for a run's last event.

    Raises:
        click.UsageError: it is neither.
    """
    run, mark, number = place.rpartition("@")
    if not mark:
        return place, None
    run_seq = event_number(number)
    if not (run and run_seq):
        raise click.UsageError(f"{place}: expected RUN@SEQ, with a number of 1 or more")
    return run, run_seq


class Forking(NamedTuple):
    """The command that forks a run, the problem of the run that it makes, and what that has another value of.

    `changed` holds a setting's two values by its key; `same` says that settings were given that change none.
    """

    command: Fork
    problem: str
    changed: dict[str, tuple[Any, Any]]
    same: bool


def fork_of(session: Session, place: str, settings: tuple[str, ...], *, rewind: bool) -> Forking:
    """Return what forks the run at `place`.

    Everything in it that can be known to be wrong is refused here, before it is sent.

    Raises:
        UnknownRun, UnknownEvent: there is no such place.
        daemon.config.ConfigError: settings are unknown or wrong.
        seeds.SeedsError: the problem is unknown, or its files have faults.
    """
    run, run_seq = parse_place(place)
    changed = assignments(settings)
    with LogReader.open(session.home) as reader:
        row = known_run(reader, run)
        if run_seq is not None:
            event_at(reader, run, run_seq)
        state = reader.state(run, run_seq)
    before = state.pending_config or state.config
    differs = changes(before, amended(before, changed, look_up=unknown))
    problem, files = str(row["problem"]), None
    for key in ("run.problem", "problem"):
        if key in changed:
            problem, files = _files_of(changed.pop(key))
    command = Fork.model_construct(
        verb="fork", run=run, seq=run_seq, settings=changed, files=files, rewind=rewind
    )
    return Forking(command, problem, differs, bool(settings) and not differs and files is None)


def _files_of(name: str) -> tuple[str, dict[str, bytes]]:
    import seeds

    problem = seeds.load(name)
    return problem.name, dict(problem.files)


@click.command(epilog=exits.epilog())
@click.argument("place", metavar="RUN[@SEQ]")
@set_option
@common
def fork(session: Session, place: str, settings: tuple[str, ...]) -> None:
    """Continue a run from its event SEQ (its last if left out) as a run of its own, with changed settings.

    Nothing is copied and the run itself goes on undisturbed. Changed settings count from the next round on;
    where the problem, size, target or evaluator changes, the kernels of the beam are judged anew first.
    """
    wanted = fork_of(session, place, settings, rewind=False)
    if wanted.same:
        click.echo(f"{SAME}: the fork goes on as its parent would", err=True)
    sent = send(session.home, wanted.command)
    child = run_id(sent.id, wanted.problem)
    with naming(child):
        answer = wait_for_answer(session.home, sent)
    if answer is None:
        queued(session, sent, "fork", run=child)
        return
    result: dict[str, Any] = answer.result if isinstance(answer.result, dict) else {}
    text = [f"forked: {child} from {result['parent']}@{result['seq']}"]
    if result["abandoned"]:
        text.append(f"{count(result['abandoned'], 'effect')} in flight there abandoned")
    if result["rejudged"]:
        text.append("its kernels are judged anew first")
    text += [f"{key} {old} -> {new}" for key, (old, new) in wanted.changed.items()]
    hint = f"follow it with: {typed('resume', *session.home_words, child)}"
    session.emit({"command": sent.id, "state": "done", **result}, ", ".join(text) + f"\n{hint}")
