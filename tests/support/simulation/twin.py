"""The undisturbed twin of a world: what its runs come to when nothing goes wrong and no time passes.

There is no daemon here, no log and no disk: a loop over `decide` and the fold that performs one effect after
the other, in order. How a run ends must not depend on more.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from agent_core.decide import decide
from agent_core.effects import Record
from agent_core.prompting import builtin_prompts
from daemon.command_models import Approve, Resume, run_id
from daemon.commands import create_run, steer_run
from daemon.evaluation_retries import EvaluationRetryPolicy
from daemon.run_queue import RunQueue
from daemon.runner import EffectRunner
from state.errors import BlobMissing
from state.events import EffectProgressed, EvaluationCompleted, Event
from state.fold import RunState, apply_event
from state.model import Level, RunStatus, digest_of
from state.records import NewEvent, RecordedEvent
from tests.support.simulation.clock import Clock, VirtualLoop
from tests.support.simulation.machine import cache_pure_functions, listening, looking_ahead
from tests.support.simulation.people import id_of
from tests.support.simulation.scenario import Scenario, submission
from tests.support.simulation.workers import Outside

RUN = "twin"


class Memory:
    """What the runner needs of a log, for one run, in a dictionary. Nothing in it is ever cut off."""

    home = Path("/nonexistent")

    def __init__(self) -> None:
        self.now: RunState | None = None
        self._blobs: dict[str, bytes] = {}
        self._judged: dict[str, dict[tuple[bool, Level], RecordedEvent]] = {}

    def run_state(self, run: str) -> RunState:
        assert self.now is not None
        return self.now

    def get_blob(self, digest: str) -> bytes:
        if digest not in self._blobs:
            raise BlobMissing(digest)
        return self._blobs[digest]

    def effect_parts(self, run: str, key: str) -> list[EffectProgressed]:
        return []

    def known_evaluations(self, cache_key: str) -> list[RecordedEvent]:
        return [*self._judged.get(cache_key, {}).values()]

    async def append(self, events: Sequence[NewEvent], *, blobs: Sequence[bytes] = ()) -> None:
        self.take([new.event for new in events if new.stream == RUN], blobs)

    def take(self, events: Sequence[Event], blobs: Sequence[bytes] = ()) -> None:
        self._blobs |= {digest_of(data): data for data in blobs}
        for event in events:
            self.now = apply_event(self.now, event)
            if isinstance(event, EvaluationCompleted) and event.cached_from is None:
                said = event.evaluation
                known = self._judged.setdefault(event.cache_key, {})
                known.setdefault(
                    (said.is_correct, said.level), RecordedEvent(0, RUN, 0, 0, event, None, "", None)
                )


def last_states(world: Scenario) -> dict[str, RunState]:
    """Return the last state of each run that a world submits, by the run's id."""
    submits = [deed for deed in world.deeds if deed.what == "submit"]
    clock = Clock()
    loop = VirtualLoop(clock)
    try:
        with clock.patch_time(), listening([]), cache_pure_functions(), looking_ahead():
            return {
                run_id(id_of(place), world.runs[deed.whom].problem): loop.run_until_complete(
                    _run_to_end(world, deed.whom)
                )
                for place, deed in enumerate(submits, 1)
            }
    finally:
        loop.close()


async def _run_to_end(world: Scenario, number: int) -> RunState:
    workers, memory = Outside(world.seed, priced=world.has_prices).workers(), Memory()
    asked = submission(world, number)
    created = create_run(asked, workers).model_copy(update={"prompts": builtin_prompts().version})
    memory.take([created], [*asked.files.values(), (asked.kernel or "").encode()])
    runner = EffectRunner(
        memory, workers, retry=EvaluationRetryPolicy(deadline_seconds=world.daemon.evaluation_seconds)
    )
    while not (state := memory.run_state(RUN)).has_ended:
        if state.status is RunStatus.PAUSED:
            let_go = Approve(run=RUN) if state.needs_approval else Resume(run=RUN)
            memory.take(steer_run(RUN, state, let_go).events)
            continue
        await _step(memory, runner, state)
    return memory.run_state(RUN)


async def _step(memory: Memory, runner: EffectRunner, state: RunState) -> None:
    """Record what is decided, or else perform what is asked for."""
    decisions = decide(state)
    records = [item for item in decisions if isinstance(item, Record)]
    for record in records:
        memory.take(record.events)
    lane = RunQueue()
    lane.fill(state, () if records else decisions, most=len(decisions))
    for ready in chain.from_iterable(lane.ready.values()):
        memory.take([ready.start_event(RUN).event], ready.blobs)
        await runner.perform(RUN, ready.key, ready.request)
