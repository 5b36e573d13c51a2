"""The supervisor: admission within limits and fair, recovery as logged, pause, cancel, and graceful stops."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from daemon.command_models import Cancel, Pause, Resume, run_id
from daemon.commands import CommandHandler
from daemon.runner import EffectRunner
from daemon.stop_signal import StopSignal
from daemon.supervisor import EffectLimits, Supervisor
from state.errors import BlobMissing, StorageFull
from state.events import EffectEnded, EffectStarted, Event, KernelProposed, RunCancelled, RunPaused
from state.log import EventLog
from state.model import JUDGES, EffectKey, Role, RunStatus
from state.records import NewEvent
from tests.support import fakes
from tests.support.sweeps import parametrize_sweep


class Gate:
    """Performs effects through a runner, those of closed roles only once they are let through."""

    def __init__(self, event_log: EventLog, *, closed: tuple[Role, ...] = ()) -> None:
        self._runner = EffectRunner(event_log, fakes.fake_workers())
        self._closed = closed
        self.opened = asyncio.Event()
        self.arrived = asyncio.Event()
        self.performed: list[tuple[str, str]] = []
        self.dropped: list[str] = []
        self.requests: dict[str, set[str]] = {}
        self.flying: Counter[bool] = Counter()
        self.most: Counter[bool] = Counter()

    async def perform(self, run, key, request):
        kind = key.role in JUDGES
        self.performed.append((run, str(key)))
        self.requests.setdefault(str(key), set()).add(request)
        self.flying[kind] += 1
        self.most[kind] = max(self.most[kind], self.flying[kind])
        try:
            await asyncio.sleep(0)
            if key.role in self._closed:
                self.arrived.set()
                await self.opened.wait()
            await self._runner.perform(run, key, request)
        except asyncio.CancelledError:
            self.dropped.append(run)
            raise
        finally:
            self.flying[kind] -= 1


@pytest.fixture
def event_log(home):
    with EventLog.open(home) as log:
        yield log


def supervisor_of(event_log, gate, *, at_a_time=1, proposals=None, grace_seconds=30.0, focus=None, runs=16):
    limits = EffectLimits(evaluations=at_a_time, proposals=proposals or at_a_time, runs=runs)
    return Supervisor(event_log, gate, limits=limits, grace_seconds=grace_seconds, focus=focus)


def commands_of(event_log, supervisor=None) -> CommandHandler:
    touched = (lambda command, run: supervisor.touch(run)) if supervisor else (lambda *_: None)
    return CommandHandler(event_log, fakes.fake_workers(), touched=touched)


async def send(commands: CommandHandler, id_: str, command) -> None:
    await commands.handle(id_, command.model_dump_json().encode())


async def submit(event_log: EventLog, id_: str, config=fakes.CONFIG) -> str:
    await send(commands_of(event_log), id_, fakes.create_submission(config))
    return run_id(id_, config.problem)


@asynccontextmanager
async def running(supervisor: Supervisor):
    stop = StopSignal()
    task = asyncio.create_task(supervisor.run(stop))
    try:
        yield stop, task
    finally:
        stop.request()
        await asyncio.wait([task], timeout=30)
        assert task.done()


async def wait_until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the log has no event to wait for
            await asyncio.sleep(0.002)


def events(event_log, run, kind) -> list:
    return [item.event for item in event_log.read(stream=run, limit=10_000) if isinstance(item.event, kind)]


@parametrize_sweep(("evaluations", "proposals"), [(1, 1), (1, 3), (3, 1), (4, 4)], quick=[(3, 1)])
async def test_each_kind_stays_within_its_limit_and_uses_it(event_log, evaluations, proposals):
    config = fakes.CONFIG.model_copy(update={"search": fakes.CONFIG.search.model_copy(update={"plans": 6})})
    runs = [await submit(event_log, id_, config) for id_ in "ab"]
    gate = Gate(event_log)
    async with running(supervisor_of(event_log, gate, at_a_time=evaluations, proposals=proposals)):
        await wait_until(lambda: all(fakes.has_ended(event_log, run) for run in runs))
    assert gate.most[True] <= evaluations
    assert gate.most[False] == proposals


async def test_runs_take_turns(event_log):
    runs = [await submit(event_log, id_) for id_ in "abc"]
    gate = Gate(event_log)
    async with running(supervisor_of(event_log, gate)):
        await wait_until(lambda: all(fakes.has_ended(event_log, run) for run in runs))
    first = [run for run, _ in gate.performed[:12]]
    assert all(Counter(first)[run] >= 2 for run in runs)


async def test_what_runs_decide_and_start_is_stored_together(event_log, monkeypatch):
    """Appends that wait at the same time share a commit: one run does not wait for the disk after another."""
    runs = [await submit(event_log, id_) for id_ in "abc"]
    append, waiting, most = event_log.append, Counter(), Counter()

    async def watched(events, **options):
        kind = next(
            (kind for kind in (EffectStarted, EffectEnded) if isinstance(events[0].event, kind)), None
        )
        waiting[kind] += 1
        most[kind] = max(most[kind], waiting[kind])
        try:
            return await append(events, **options)
        finally:
            waiting[kind] -= 1

    monkeypatch.setattr(event_log, "append", watched)
    async with running(supervisor_of(event_log, Gate(event_log), at_a_time=3)):
        await wait_until(lambda: all(fakes.has_ended(event_log, run) for run in runs))
    assert most[EffectStarted] == 3
    assert most[None] > 1  # what is decided: verdicts arrive one by one


async def test_a_log_that_fails_under_one_run_ends_the_others_appends_too(event_log, monkeypatch):
    """What was being appended beside it has ended when the supervisor gives up: nothing is left behind."""
    runs = [await submit(event_log, id_) for id_ in "ab"]
    append, under_way = event_log.append, Counter()

    async def failing(events, **options):
        under_way["now"] += 1
        try:
            await asyncio.sleep(0)
            if events[0].stream == runs[0]:
                raise StorageFull("no space")
            await asyncio.sleep(0.01)
            return await append(events, **options)
        finally:
            under_way["now"] -= 1

    monkeypatch.setattr(event_log, "append", failing)
    with pytest.raises(StorageFull):
        await supervisor_of(event_log, Gate(event_log), at_a_time=2).run(StopSignal())
    assert under_way["now"] == 0


async def test_a_run_with_many_effects_does_not_starve_another(event_log):
    """The big run has 48 places a round, the small one has one: it is done long before the big one."""
    big = fakes.CONFIG.search.model_copy(update={"plans": 24, "beam": 2, "rounds": 1})
    large = await submit(event_log, "a", fakes.CONFIG.model_copy(update={"search": big}))
    small = fakes.CONFIG.search.model_copy(update={"plans": 1, "beam": 1, "explorers": 0, "rounds": 1})
    little = await submit(event_log, "b", fakes.CONFIG.model_copy(update={"search": small}))
    gate = Gate(event_log)
    async with running(supervisor_of(event_log, gate)):
        await wait_until(lambda: fakes.has_ended(event_log, little))
        done = Counter(run for run, _ in gate.performed)
        await wait_until(lambda: fakes.has_ended(event_log, large))
    assert done[large] <= 6 * done[little]
    assert Counter(run for run, _ in gate.performed)[large] > 10 * done[little]


async def test_so_many_runs_are_under_way_and_the_others_wait_their_turn(event_log):
    runs = [await submit(event_log, id_) for id_ in "abcd"]
    gate = Gate(event_log)
    async with running(supervisor_of(event_log, gate, at_a_time=4, runs=2)):
        await wait_until(lambda: all(fakes.has_ended(event_log, run) for run in runs))
    first, last = {}, {}
    for place, (run, _) in enumerate(gate.performed):
        first.setdefault(run, place)
        last[run] = place
    places = range(len(gate.performed))
    assert max(sum(first[run] <= place <= last[run] for run in runs) for place in places) == 2
    assert sorted(runs, key=first.__getitem__) == runs


async def test_a_paused_run_gives_its_place_to_one_that_waits(event_log):
    run, other = await submit(event_log, "a"), await submit(event_log, "b")
    gate = Gate(event_log, closed=(Role.PLANNER,))
    supervisor = supervisor_of(event_log, gate, runs=1)
    commands = commands_of(event_log, supervisor)
    async with running(supervisor):
        await wait_until(gate.arrived.is_set)
        await send(commands, "p", Pause(run=run))
        assert event_log.run_seq(other) == 1
        gate.opened.set()
        await wait_until(lambda: fakes.has_ended(event_log, other))
        await send(commands, "r", Resume(run=run))
        await wait_until(lambda: fakes.has_ended(event_log, run))


async def test_a_run_that_waits_for_a_place_can_be_cancelled(event_log):
    run, other, third = [await submit(event_log, id_) for id_ in "abc"]
    gate = Gate(event_log, closed=(Role.PLANNER,))
    supervisor = supervisor_of(event_log, gate, runs=1)
    async with running(supervisor):
        await wait_until(gate.arrived.is_set)
        await send(commands_of(event_log, supervisor), "cancel", Cancel(run=other))
        gate.opened.set()
        await wait_until(lambda: fakes.has_ended(event_log, third))
    assert fakes.has_ended(event_log, run)
    assert event_log.run_seq(other) == 2


async def test_a_run_proposes_no_further_ahead_than_is_judged_soon(event_log):
    search = fakes.CONFIG.search.model_copy(update={"plans": 24, "beam": 1, "explorers": 0, "rounds": 1})
    run = await submit(event_log, "a", fakes.CONFIG.model_copy(update={"search": search}))
    gate = Gate(event_log, closed=(Role.EVALUATOR,))
    gate.opened.set()
    supervisor = supervisor_of(event_log, gate, proposals=4)
    async with running(supervisor):
        await wait_until(lambda: event_log.run_state(run).in_round)
        gate.opened.clear()

        def unjudged() -> int:
            return sum(isinstance(one, KernelProposed) for one in event_log.run_state(run).outcomes.values())

        await wait_until(lambda: unjudged() >= 5 and gate.flying[False] == 0)
        await asyncio.sleep(0.05)
        assert unjudged() <= 12
        assert gate.flying[False] == 0
        gate.opened.set()
        await wait_until(lambda: fakes.has_ended(event_log, run))


async def test_every_effect_has_one_start_and_one_outcome(event_log):
    run = await submit(event_log, "a")
    async with running(supervisor_of(event_log, Gate(event_log), at_a_time=3)):
        await wait_until(lambda: fakes.has_ended(event_log, run))
    started = Counter(event.key for event in events(event_log, run, EffectStarted))
    ended = Counter(event.key for event in events(event_log, run, EffectEnded))
    assert started == ended
    assert set(started.values()) == {1}


async def test_what_was_in_flight_is_delivered_again_as_logged(event_log):
    run = await submit(event_log, "a")
    stuck = Gate(event_log, closed=(Role.EXECUTOR,))
    async with running(supervisor_of(event_log, stuck, at_a_time=2, grace_seconds=0)):
        await wait_until(stuck.arrived.is_set)
    lost = event_log.run_state(run).open
    assert lost
    gate = Gate(event_log)
    async with running(supervisor_of(event_log, gate, at_a_time=2)):
        await wait_until(lambda: fakes.has_ended(event_log, run))
    for key, effect in lost.items():
        assert gate.requests[key] == {effect.request} == stuck.requests[key]
        deliveries = [e.delivery for e in events(event_log, run, EffectStarted) if e.key == key]
        assert deliveries == [1, 2]


async def test_an_upgrade_completes_what_is_in_flight_as_logged(event_log, monkeypatch):
    """The new version would ask for other draws; what was asked before it came is not asked anew."""
    run = await submit(event_log, "a")
    stuck = Gate(event_log, closed=(Role.PLANNER,))
    async with running(supervisor_of(event_log, stuck, at_a_time=1, grace_seconds=0)):
        await wait_until(stuck.arrived.is_set)
    ((key, effect),) = event_log.run_state(run).open.items()
    monkeypatch.setattr("agent_core.requests.draw_seed", lambda seed, key: 12345)
    gate = Gate(event_log)
    async with running(supervisor_of(event_log, gate)):
        await wait_until(lambda: fakes.has_ended(event_log, run))
    assert gate.requests[key] == {effect.request}
    others = [e.request for e in events(event_log, run, EffectStarted) if e.key == "r1.b0.p1.k0.f0.planner"]
    assert b'"draw":12345' in event_log.get_blob(others[0])
    assert b'"draw":12345' not in event_log.get_blob(effect.request)


async def test_a_pause_lets_what_is_in_flight_end_and_starts_nothing(event_log):
    run = await submit(event_log, "a")
    gate = Gate(event_log, closed=(Role.PLANNER,))
    supervisor = supervisor_of(event_log, gate)
    commands = commands_of(event_log, supervisor)
    async with running(supervisor):
        await wait_until(gate.arrived.is_set)
        await send(commands, "p", Pause(run=run))
        gate.opened.set()
        await wait_until(lambda: not event_log.run_state(run).open)
        await asyncio.sleep(0.05)
        paused = len(gate.performed)
        assert event_log.run_state(run).status is RunStatus.PAUSED
        assert not event_log.run_state(run).open
        await send(commands, "r", Resume(run=run))
        await wait_until(lambda: fakes.has_ended(event_log, run))
        assert len(gate.performed) > paused
    started = [item.run_seq for item in event_log.read(stream=run) if isinstance(item.event, EffectStarted)]
    pause, resume = (
        next(item.run_seq for item in event_log.read(stream=run) if item.type == name)
        for name in ("RunPaused", "RunResumed")
    )
    assert not [seq for seq in started if pause < seq < resume]


async def test_a_run_paused_in_flight_and_restarted_waits_for_its_resume(event_log):
    run = await submit(event_log, "a")
    stuck = Gate(event_log, closed=(Role.PLANNER,))
    async with running(supervisor_of(event_log, stuck, grace_seconds=0)):
        await wait_until(stuck.arrived.is_set)
        await send(commands_of(event_log), "p", Pause(run=run))
    gate = Gate(event_log)
    supervisor = supervisor_of(event_log, gate)
    async with running(supervisor):
        await asyncio.sleep(0.05)
        assert gate.performed == []
        await send(commands_of(event_log, supervisor), "r", Resume(run=run))
        await wait_until(lambda: fakes.has_ended(event_log, run))


async def test_a_cancel_drops_what_is_in_flight(event_log):
    run, other = await submit(event_log, "a"), await submit(event_log, "b")
    gate = Gate(event_log, closed=(Role.PLANNER,))
    supervisor = supervisor_of(event_log, gate, at_a_time=2)
    async with running(supervisor):
        await wait_until(
            lambda: {name for name, key in gate.performed if key.endswith("planner")} == {run, other}
        )
        await send(commands_of(event_log, supervisor), "c", Cancel(run=run))
        await wait_until(lambda: gate.dropped == [run])
        gate.opened.set()
        await wait_until(lambda: fakes.has_ended(event_log, other))
    assert event_log.run_state(run).status is RunStatus.CANCELLED
    assert event_log.run_state(run).open == {}
    *_, last = event_log.read(stream=run)
    assert last.type == "RunCancelled"


async def test_a_stop_waits_for_what_is_in_flight(event_log):
    run = await submit(event_log, "a")
    gate = Gate(event_log, closed=(Role.PLANNER,))
    async with running(supervisor_of(event_log, gate, at_a_time=2)) as (stop, task):
        await wait_until(gate.arrived.is_set)
        stop.request()
        await asyncio.sleep(0.02)
        assert not task.done()
        before = len(gate.performed)
        gate.opened.set()
        await task
    assert event_log.run_state(run).open == {}
    assert len(gate.performed) == before


@pytest.mark.parametrize("grace_seconds", [0, 0.02])
async def test_a_stop_past_its_grace_leaves_effects_open(event_log, grace_seconds):
    run = await submit(event_log, "a")
    gate = Gate(event_log, closed=(Role.PLANNER,))
    async with running(supervisor_of(event_log, gate, grace_seconds=grace_seconds)) as (stop, task):
        await wait_until(gate.arrived.is_set)
        stop.request()
        await task
    assert list(event_log.run_state(run).open)
    assert gate.flying.total() == 0


async def test_a_second_request_stops_at_once(event_log):
    run = await submit(event_log, "a")
    gate = Gate(event_log, closed=(Role.PLANNER,))
    async with running(supervisor_of(event_log, gate, grace_seconds=3600)) as (stop, task):
        await wait_until(gate.arrived.is_set)
        stop.request()
        stop.request()
        async with asyncio.timeout(30):
            await task
    assert list(event_log.run_state(run).open)


async def test_a_run_that_nothing_is_decided_for_is_reported_and_not_spun_on(event_log, monkeypatch):
    run = await submit(event_log, "a")
    calls = []

    def nothing(state):
        calls.append(state)
        return []

    monkeypatch.setattr("daemon.supervisor.decide", nothing)
    with capture_logs() as lines:
        async with running(supervisor_of(event_log, Gate(event_log))):
            await wait_until(lambda: lines)
            await asyncio.sleep(0.05)
    assert len(calls) == 1
    assert [(line["event"], line["run"]) for line in lines] == [("run_stalled", run)]


async def test_the_log_tells_of_rounds_and_of_the_end(event_log):
    run = await submit(event_log, "a")
    with capture_logs() as lines:
        async with running(supervisor_of(event_log, Gate(event_log))):
            await wait_until(lambda: fakes.has_ended(event_log, run))
    told = [(line["event"], line["log_level"], line["run"], line.get("round")) for line in lines]
    assert told == [
        ("round_completed", "info", run, 1),
        ("round_completed", "info", run, 2),
        ("run_completed", "info", run, None),
    ]
    state = event_log.run_state(run)
    assert lines[-1]["reason"] == state.stop.value == "rounds"
    assert lines[-1]["best_ms"] == state.best.latency_ms


async def test_only_runs_in_focus_advance(event_log):
    run, other = await submit(event_log, "a"), await submit(event_log, "b")
    focus = {run}
    gate = Gate(event_log)
    supervisor = supervisor_of(event_log, gate, focus=focus)
    async with running(supervisor):
        await wait_until(lambda: fakes.has_ended(event_log, run))
        assert event_log.run_seq(other) == 1
        focus.add(other)
        supervisor.touch(other)
        await wait_until(lambda: fakes.has_ended(event_log, other))


async def test_a_failing_log_ends_the_supervisor(event_log):
    await submit(event_log, "a")

    class Full:
        async def perform(self, run, key, request):
            raise StorageFull("no space")

    with pytest.raises(StorageFull):
        await supervisor_of(event_log, Full()).run(StopSignal())


async def test_a_decision_on_a_state_that_moved_is_made_anew(event_log, monkeypatch):
    """Another append gets in between look and append, again and again; nothing is lost or doubled."""
    run = await submit(event_log, "a")
    run_seq = event_log.run_seq
    looks = Counter()

    def behind(stream):
        looks[stream] += 1
        return run_seq(stream) - (looks[stream] % 3 == 0)

    monkeypatch.setattr(event_log, "run_seq", behind)
    async with running(supervisor_of(event_log, Gate(event_log), at_a_time=2)):
        await wait_until(lambda: fakes.has_ended(event_log, run))
    ended = Counter(event.key for event in events(event_log, run, EffectEnded))
    assert set(ended.values()) == {1}


@pytest.mark.parametrize("at_a_time", [1, 2, 5])
async def test_the_result_does_not_depend_on_how_many_work_at_a_time(event_log, at_a_time):
    """Twins in one log: all but the first take the first one's verdicts."""
    runs = [await submit(event_log, id_) for id_ in "ab"]
    async with running(supervisor_of(event_log, Gate(event_log), at_a_time=at_a_time)):
        await wait_until(lambda: all(fakes.has_ended(event_log, run) for run in runs))
    states = [event_log.run_state(run) for run in runs]
    assert states[0].decision_digest == states[1].decision_digest
    assert states[0].best == states[1].best


class Lost:
    """Performs nothing: what the request names was lost, after somebody else had their turn."""

    def __init__(self, event_log: EventLog, first: Event) -> None:
        self._log = event_log
        self._first = first

    async def perform(self, run: str, key: EffectKey, request: str) -> None:
        await self._log.append([NewEvent(run, self._first)])
        raise BlobMissing(request)


@pytest.mark.parametrize(
    ("first", "status"),
    [
        (RunPaused(reason="a", needs_approval=("before_round 1",)), RunStatus.PAUSED),
        (RunCancelled(reason="a"), RunStatus.CANCELLED),
    ],
)
async def test_a_lost_request_takes_no_approval_away_and_no_end(event_log, first, status):
    run = await submit(event_log, "a")
    lost = Lost(event_log, first)
    async with running(supervisor_of(event_log, lost)):
        await wait_until(lambda: event_log.run_state(run).status is status)
        await asyncio.sleep(0.1)
    state = event_log.run_state(run)
    assert state.status is status
    assert state.needs_approval == getattr(first, "needs_approval", ())
