"""Forks: turns a fork command into the first events of a run that continues another.

A fork consists of the parent's state at the cut and the changed settings. If it judges kernels
differently (another problem, size, target, evaluator or toolchain), its first event says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import remote
import seeds
from agent_core.proposers import ProposerError
from daemon.command_models import Fork
from daemon.errors import CommandRefused
from daemon.name_checks import find_unknown_names
from daemon.run_settings import apply_settings, diff_configs, expand_run_keys
from daemon.workers import Workers
from seeds.problem import Problem
from state.events import ConfigChanged, Event, RunForked
from state.fold import RunState
from state.log import EventLog
from state.model import Digest, Rebase, RunConfig


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """Where a run is continued from: the run, the event, and the state after that event."""

    run: str
    run_seq: int
    state: RunState


def build_fork_events(
    command: Fork, cut: ForkPoint, log: EventLog, workers: Workers, *, prompts: Digest
) -> tuple[Event, ...]:
    """Return the first events of a fork; `prompts` is the prompt version for new runs.

    Raises:
        CommandRefused: the problem, size, target, evaluator or a planner is unknown or does not fit.
        daemon.config.ConfigError: a setting is unknown or wrong.
    """
    before = cut.state.pending_config or cut.state.config
    try:
        config = apply_settings(before, _fork_settings(command), look_up=_find_unknown_names)
        for name in config.planner:
            workers.require_proposer(name)
        rebase = _find_rebase(command, cut, config, log=log, workers=workers)
    except (seeds.SeedsError, remote.RemoteError, ProposerError) as error:
        raise CommandRefused(str(error), code=error.code) from error
    forked = RunForked(
        parent=cut.run,
        parent_seq=cut.run_seq,
        parent_hash=log.event_hash(cut.run, cut.run_seq),
        rebase=rebase,
        pinned=tuple(expand_run_keys(command.settings)),
    )
    other = None if cut.state.next_prompts in (None, prompts) else prompts
    if other or (rebase is None and diff_configs(before, config)):
        return forked, ConfigChanged(config=config.model_dump(mode="json"), prompts=other)
    return (forked,)


def _fork_settings(command: Fork) -> dict[str, object]:
    """Return the settings that change; a new problem gets its name from its files.

    Raises:
        CommandRefused: the problem changes, but its files did not come with the command.
    """
    if command.files is not None:
        return {**command.settings, "run.problem": seeds.build_problem(command.files).name}
    if command.settings.keys() & {"run.problem", "problem"}:
        raise CommandRefused("fork: to change the problem, send its files", code="bad_command")
    return dict(command.settings)


def _find_unknown_names(key: str, value: object) -> list[str]:
    """Return the unknown names; a problem's name may be unknown here because its files come with the
    command.
    """
    return [] if key == "run.problem" else find_unknown_names(key, value)


def _find_rebase(
    command: Fork, cut: ForkPoint, config: RunConfig, *, log: EventLog, workers: Workers
) -> Rebase | None:
    """Return how the fork judges kernels, or None if it judges them as its parent did."""
    state = cut.state
    problem = _fork_problem(command, state, log)
    toolchain = workers.get_toolchain(config)
    now = (problem.digest, config.size, config.target, config.evaluator, toolchain)
    then = (
        state.problem.digest, state.config.size, state.config.target, state.config.evaluator, state.toolchain,
    )  # fmt: skip
    if now == then:
        return None
    return Rebase(
        config=config.model_copy(update={"problem": problem.name}),
        problem=problem.make_ref(),
        bounds=remote.compute_bounds(problem, config.size, config.target),
        toolchain=toolchain,
    )


def _fork_problem(command: Fork, state: RunState, log: EventLog) -> Problem:
    if command.files is not None:
        return seeds.build_problem(command.files)
    return seeds.build_problem({path: log.get_blob(digest) for path, digest in state.problem.files.items()})
