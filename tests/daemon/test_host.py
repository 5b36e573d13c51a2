"""Hosting a home: workers that had nothing to do for a while are closed, and made anew when asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from daemon import host
from daemon.stop import Stop
from daemon.workers import Workers
from state.log import EventLog
from tests.daemon import fakes


class Closing(fakes.FakeEvaluator):
    """A judge that answers when told to, and remembers whether it was closed."""

    def __init__(self, answer: asyncio.Event) -> None:
        super().__init__()
        self.closed = 0
        self.asked, self.answer = asyncio.Event(), answer

    async def evaluate(self, request, blobs, /):
        self.asked.set()
        await self.answer.wait()
        return await super().evaluate(request, blobs)

    async def aclose(self) -> None:
        self.closed += 1


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(0.005)


async def test_idle_workers_are_closed_and_those_at_work_are_not(home, monkeypatch):
    monkeypatch.setattr(host, "REST_SECONDS", 0.04)
    made: list[Closing] = []
    answer, stop = asyncio.Event(), Stop()

    def make(_: str) -> Closing:
        made.append(Closing(answer))
        return made[-1]

    workers = Workers(create_evaluator=make, create_proposer=fakes.proposers.create)
    first = fakes.submit(home)
    with EventLog.open(home) as log:
        work = host.work_on(log, fakes.daemon_config(), stop=stop, workers=workers)
        hosting = asyncio.create_task(work)
        await until(lambda: any(one.asked.is_set() for one in made))
        asked = next(one for one in made if one.asked.is_set())
        await asyncio.sleep(0.2)
        assert asked.closed == 0
        answer.set()
        await until(lambda: fakes.has_ended(log, first) and all(one.closed for one in made))
        before = len(made)
        second = fakes.submit(home, fakes.CONFIG.model_copy(update={"seed": 7}))
        await until(lambda: fakes.has_ended(log, second))
        stop.request()
        await hosting
    assert len(made) > before
    assert {one.closed for one in made} == {1}
