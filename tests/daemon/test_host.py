"""Hosting a home: workers that are idle, or made under settings that changed, are closed and made anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from daemon import home_owner
from daemon.config import FILE_NAME, DaemonConfig
from daemon.stop_signal import StopSignal
from daemon.workers import Workers
from state.log import EventLog
from tests.support import fakes


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


async def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(0.005)


async def test_idle_workers_are_closed_and_those_at_work_are_not(home, monkeypatch):
    monkeypatch.setattr(home_owner, "IDLE_SECONDS", 0.04)
    made: list[Closing] = []
    answer, stop = asyncio.Event(), StopSignal()

    def make(_: str) -> Closing:
        made.append(Closing(answer))
        return made[-1]

    workers = Workers(create_evaluator=make, create_proposer=fakes.proposers.create_proposer)
    first = fakes.submit_run(home)
    with EventLog.open(home) as log:
        work = home_owner.serve_runs(log, fakes.daemon_config(), stop=stop, workers=workers)
        hosting = asyncio.create_task(work)
        await wait_until(lambda: any(one.asked.is_set() for one in made))
        asked = next(one for one in made if one.asked.is_set())
        await asyncio.sleep(0.2)
        assert asked.closed == 0
        answer.set()
        await wait_until(lambda: fakes.has_ended(log, first) and all(one.closed for one in made))
        before = len(made)
        second = fakes.submit_run(home, fakes.CONFIG.model_copy(update={"seed": 7}))
        await wait_until(lambda: fakes.has_ended(log, second))
        stop.request()
        await hosting
    assert len(made) > before
    assert {one.closed for one in made} == {1}


class Made:
    """Keeps the judges that were made, each with the settings that it was made under."""

    def __init__(self, answer: asyncio.Event) -> None:
        self.judges: list[tuple[DaemonConfig, Closing]] = []
        self._answer = answer

    def under(self, config: DaemonConfig):
        def make(_: str) -> Closing:
            self.judges.append((config, Closing(self._answer)))
            return self.judges[-1][1]

        return make


async def test_judges_are_replaced_when_the_settings_they_were_made_under_change():
    answer = asyncio.Event()
    made = Made(answer)
    before, after = fakes.daemon_config(), DaemonConfig(evaluations=7, allow_weak_jail=True)
    workers = Workers(
        create_evaluator=made.under(before), create_proposer=fakes.proposers.create_proposer, under=made.under
    )
    with workers.hold_evaluator(fakes.CONFIG) as first:
        workers.apply_config(after)
        with workers.hold_evaluator(fakes.CONFIG) as second:
            assert second is not first
        await workers.close_replaced()
        assert (first.closed, second.closed) == (0, 0)
    await workers.close_replaced()
    assert (first.closed, second.closed) == (1, 0)
    assert workers.get_evaluator(fakes.CONFIG) is second
    await workers.aclose()
    assert (first.closed, second.closed) == (1, 1)
    assert [config for config, _ in made.judges] == [before, after]


async def test_an_edit_of_the_process_s_settings_reaches_judges_and_log(home, monkeypatch):
    monkeypatch.setattr(home_owner, "IDLE_SECONDS", 0.04)
    answer, stop, changed = asyncio.Event(), StopSignal(), []
    made = Made(answer)
    workers = Workers(
        create_evaluator=made.under(fakes.daemon_config()),
        create_proposer=fakes.proposers.create_proposer,
        under=made.under,
    )
    run = fakes.submit_run(home)
    with EventLog.open(home) as log:
        work = home_owner.serve_runs(
            log, fakes.daemon_config(), stop=stop, workers=workers, changed=lambda *said: changed.extend(said)
        )
        hosting = asyncio.create_task(work)
        await wait_until(lambda: any(judge.asked.is_set() for _, judge in made.judges))
        old = [judge for _, judge in made.judges]
        (home / FILE_NAME).write_text('[daemon]\nevaluations = 3\nlog_level = "debug"\n')
        async with asyncio.timeout(30):
            await wait_until(lambda: bool(changed))
        answer.set()
        await wait_until(lambda: fakes.has_ended(log, run) and all(one.closed for one in old))
        stop.request()
        await hosting
    assert [(one.evaluations, one.log_level) for one in changed] == [(3, "debug")]
    assert {config.evaluations for config, judge in made.judges if judge not in old} == {3}
    assert {judge.closed for _, judge in made.judges} == {1}
