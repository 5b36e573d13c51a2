"""A machine that kills children, or lacks space, memory or file handles, ends no run.

The table has each child and file of an effect, and each fault. A fault strikes as often as the effect is
tried: the run is paused with its reason. Then the machine is well again, somebody resumes the run, and it has
its verdict. A fault that strikes once is not noticed. A full run strikes with each fault in one of the two
ways, in turns. Both:

    SWEEP=all pytest --all tests/daemon/test_machine_faults.py
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import seeds
from agent_core.process_pool import ProcessPool
from agent_core.roles import PlanAnswer
from agent_core.roles.worker_pool import ask_worker
from daemon.calls.errors import EffectDeferred
from daemon.command_models import run_id
from daemon.commands import CommandHandler
from daemon.evaluation_retries import EvaluationRetryPolicy
from daemon.runner import EffectRunner
from daemon.workers import Workers
from remote import pool, references, sandbox, secret
from remote.jail_init import OUT_OF_MEMORY_STATUS, STARVED_STATUS
from remote.processes import kill_group, start_process
from remote.registry import create_evaluator
from state.events import EvaluationCompleted, PlanFailed, PlanProposed, RunResumed
from state.log import EventLog
from state.model import RunConfig, RunStatus
from state.records import NewEvent
from tests.daemon.test_runner import PLAN, admit, in_first_round, next_effects, workers_with
from tests.support import fakes
from tests.support.mortal_jobs import end_or_answer
from tests.support.sweeps import is_exhaustive, parametrize_sweep

TRIES = EvaluationRetryPolicy(tries=3, machine_tries=3, first_pause=0.0)
CONFIG = RunConfig(problem="silu", size="reduced")


@dataclass
class Machine:
    """A machine with one fault, which strikes once, or until the machine is `well`."""

    lasts: bool
    well: bool = False
    struck: int = 0

    def strike(self) -> bool:
        if self.well or (self.struck and not self.lasts):
            return False
        self.struck += 1
        return True


def make_dying_child(end: str, options: dict[str, Any]) -> tuple[str, ...]:
    """Return a command in place of a jailed program, which ends once its jail is built."""
    code = f"import os, signal; os.write({options['pass_fds'][0]}, b'+'); {end}"
    return (sys.executable, "-S", "-c", code)


async def start_faulty(machine: Machine, child: str, fault: str, *command: str, **options: Any) -> Any:
    if not any(child in part for part in command) or not machine.strike():
        return await start_process(*command, **options)
    if fault in _ERRORS:
        raise OSError(_ERRORS[fault], os.strerror(_ERRORS[fault]))
    if fault in _ENDS and "pass_fds" in options:
        return await start_process(*make_dying_child(_ENDS[fault], options), **options)
    process = await start_process(*command, **options)
    kill_group(process.pid)
    return process


_ERRORS = {"no handles": errno.EMFILE, "no processes": errno.EAGAIN, "no memory to start": errno.ENOMEM}
_ENDS = {
    "killed at work": "os.kill(os.getpid(), signal.SIGKILL)",
    "out of memory": f"os._exit({OUT_OF_MEMORY_STATUS})",
    "no space": f"os._exit({STARVED_STATUS})",
}
FAULTS = ("killed", *_ERRORS, *_ENDS)
"""A worker answers that it is starved, or is killed; it is only killed here."""

CHILDREN = {
    "reference": (sandbox, "remote.reference_main"),
    "tracer": (sandbox, "nki_sim"),
    "worker": (pool, "remote.worker"),
}


def strike_children(monkeypatch: pytest.MonkeyPatch, machine: Machine, child: str, fault: str) -> None:
    module, name = CHILDREN[child]
    monkeypatch.setattr(module, "start_process", partial(start_faulty, machine, name, fault))


def fail_with(machine: Machine, number: int, work: Callable[..., Any], *values: Any, **named: Any) -> Any:
    if machine.strike():
        raise OSError(number, os.strerror(number))
    return work(*values, **named)


FILES = {
    "reference": (references, "seal_file"),
    "reference's folder": (references.tempfile, "TemporaryDirectory"),
    "secret": (secret, "_create_secret"),
}


def strike_files(monkeypatch: pytest.MonkeyPatch, machine: Machine, file: str, number: int) -> None:
    module, name = FILES[file]
    monkeypatch.setattr(module, name, partial(fail_with, machine, number, getattr(module, name)))


@pytest.fixture
def event_log(home):
    with EventLog.open(home) as log:
        yield log


async def submit_silu(event_log: EventLog) -> str:
    command = fakes.create_submission(CONFIG, seeds.load_problem("silu").kernel)
    handler = CommandHandler(event_log, fakes.fake_workers(), touched=lambda *_: None)
    await handler.handle("first", command.model_dump_json().encode())
    return run_id("first", "silu")


async def judge_first(event_log: EventLog, machine: Machine) -> None:
    """Judge a run's first kernel on a machine that is well only after a person has resumed the run."""
    run = await submit_silu(event_log)
    workers = Workers(
        create_evaluator=partial(create_evaluator, home=event_log.home, slots=1),
        create_proposer=lambda _: None,
    )
    runner = EffectRunner(event_log, workers, retry=TRIES)
    (initial,) = await next_effects(event_log, run)
    request = await admit(event_log, run, initial)
    try:
        if machine.lasts:
            with pytest.raises(EffectDeferred):
                await runner.perform(run, initial.key, request)
            state = event_log.run_state(run)
            assert state.status is RunStatus.PAUSED
            assert f"was not judged in {TRIES.tries} tries: " in state.status_reason
            machine.well = True
            await event_log.append([NewEvent(run, RunResumed(reason="the machine is well again"))])
        await runner.perform(run, initial.key, request)
        outcome = event_log.run_state(run).outcomes[str(initial.key)]
        assert isinstance(outcome, EvaluationCompleted)
        assert outcome.evaluation.is_correct
        assert machine.struck
    finally:
        await workers.aclose()


def strike_in_turns(faults: Iterable[tuple[str, Any]]) -> list[tuple[str, Any, bool]]:
    """Return each fault with whether it lasts: it does and it does not, or one of them in turns."""
    return [
        (*fault, lasts)
        for number, fault in enumerate(faults)
        for lasts in (True, False)
        if is_exhaustive() or lasts == (number % 2 == 0)
    ]


SENSELESS = {("tracer", "out of memory")}
"""A tracer that is out of memory is so because of its kernel, which is a verdict."""
CHILD_CASES = strike_in_turns(
    (child, fault) for child in CHILDREN for fault in FAULTS if (child, fault) not in SENSELESS
)
FILE_CASES = strike_in_turns(
    (file, number) for number in (errno.ENOSPC, errno.EIO, errno.EMFILE) for file in FILES
)


@parametrize_sweep(
    ("child", "fault", "lasts"),
    CHILD_CASES,
    quick=[
        ("reference", "killed at work", True),
        ("worker", "killed", False),
        ("tracer", "killed at work", False),
    ],
)
async def test_a_fault_of_a_child_ends_no_run(event_log, monkeypatch, child, fault, lasts) -> None:
    machine = Machine(lasts)
    strike_children(monkeypatch, machine, child, fault)
    await judge_first(event_log, machine)


@parametrize_sweep(
    ("file", "number", "lasts"),
    FILE_CASES,
    quick=[("reference", errno.ENOSPC, True), ("secret", errno.EIO, False)],
)
async def test_a_fault_of_a_file_ends_no_run(event_log, monkeypatch, file, number, lasts) -> None:
    machine = Machine(lasts)
    strike_files(monkeypatch, machine, file, number)
    await judge_first(event_log, machine)


class PoolPlanner:
    """Plans with the help of a pool."""

    name = "pooled"
    repairs = False

    def __init__(self, flag: Path, fault: Callable[[], None]) -> None:
        self.flag = flag
        self.fault = fault
        self.pool = ProcessPool(end_or_answer, workers=1)
        self.asked = 0

    async def plan(self, request, read) -> PlanAnswer:
        self.asked += 1
        self.fault()
        await ask_worker(self.pool, str(self.flag), "the pool")
        return PlanAnswer(PLAN)

    async def aclose(self) -> None:
        await self.pool.aclose()


@pytest.mark.parametrize("fault", ["killed", "no handles"])
async def test_a_fault_of_a_pool_is_waited_for_and_then_pauses_a_run_that_has_no_other_hope(
    event_log, tmp_path, fault
) -> None:
    flag, machine = tmp_path / "flag", Machine(fault == "no handles", well=fault != "no handles")
    run, effects = await in_first_round(event_log)
    planner = PoolPlanner(flag, partial(fail_with, machine, errno.EMFILE, lambda: None))
    runner = EffectRunner(event_log, workers_with(planner), retry=TRIES)
    if fault == "killed":
        flag.touch()
    try:
        for last, effect in enumerate(effects, start=1 - len(effects)):
            request = await admit(event_log, run, effect)
            if last < 0 and fault == "killed":  # there is other hope: this plan is lost
                await runner.perform(run, effect.key, request)
                assert isinstance(event_log.run_state(run).outcomes[str(effect.key)], PlanFailed)
                continue
            with pytest.raises(EffectDeferred):
                await runner.perform(run, effect.key, request)
            break
        state = event_log.run_state(run)
        assert state.status is RunStatus.PAUSED
        assert f"was not answered in {TRIES.tries} tries: " in state.status_reason
        flag.unlink(missing_ok=True)
        machine.well = True
        await event_log.append([NewEvent(run, RunResumed(reason="the machine is well again"))])
        await runner.perform(run, effect.key, request)
        assert isinstance(event_log.run_state(run).outcomes[str(effect.key)], PlanProposed)
    finally:
        await planner.aclose()
