"""Appends that follow from a look at runs: made again where a run moved on in between."""

from __future__ import annotations

import asyncio

import pytest

from daemon.optimistic_append import append_if_current
from state.events import ConfigRefused, Event, RunCancelled, RunPaused
from state.fold import RunState
from state.log import EventLog
from state.model import SYSTEM_STREAM, ErrorInfo
from state.records import NewEvent
from tests.support import fakes


@pytest.fixture
def run(home) -> str:
    run = fakes.submit_run(home)
    fakes.take_commands(home)
    return run


def pause(state: RunState) -> Event:
    return RunPaused(reason="b", needs_approval=state.needs_approval)


@pytest.mark.parametrize(
    ("first", "stored"),
    [
        (RunCancelled(reason="a"), []),
        (RunPaused(reason="a", needs_approval=("completion 3",)), [("b", ("completion 3",))]),
    ],
)
async def test_a_run_that_moves_on_meanwhile_is_looked_at_again(home, run, first, stored):
    looks = []

    def say(state: RunState) -> Event:
        looks.append(state)
        if len(looks) == 1:
            log.append_now([NewEvent(run, first)])
        return pause(state)

    with EventLog.open(home) as log:
        found = await append_if_current(log, [run], say)
        assert [(item.event.reason, item.event.needs_approval) for item in found] == stored


async def test_what_goes_with_it_is_stored_once_in_the_same_transaction(home, run):
    note = NewEvent(SYSTEM_STREAM, ConfigRefused(error=ErrorInfo(code="x", message="y")))
    with EventLog.open(home) as log:
        both, alone = await asyncio.gather(
            append_if_current(log, [run], pause, with_=[note]),
            append_if_current(log, [], pause, with_=[note]),
        )
        assert [item.type for item in both] == ["ConfigRefused", "RunPaused"]
        assert [item.type for item in alone] == ["ConfigRefused"]
        assert await append_if_current(log, [run], lambda _: None) == ()
