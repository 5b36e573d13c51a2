"""A whole run in memory: `decide` and the fold against scripted proposers and a synthetic judge.

The world plays the process: it starts the effects that `decide` asks for and delivers their outcomes, one
action at a time, in the order that a seed chooses. It can crash (what was in flight is delivered again as
logged, under a higher delivery) and offer outcomes twice. Nothing waits, so a run takes milliseconds.
"""

from __future__ import annotations

import ast
import math
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from agent_core.decide import decide
from agent_core.effects import STARTED, Effect, Record, SimplifyRequest, TranslateRequest, request_type
from agent_core.roles import Proposer, RoleError
from agent_core.roles.scripted import CONSTANT, ScriptedProposer
from state.events import (
    EvaluationCompleted,
    EvaluationFailed,
    Event,
    ExecutionFailed,
    ExperienceRecorded,
    KernelProposed,
    PlanFailed,
    PlanProposed,
    PredictionBatch,
    ReflectionRecorded,
    RunCreated,
    RunForked,
    idempotency_key,
)
from state.fold import IllegalEvent, RunState, apply_event, state_hash
from state.model import (
    JUDGES,
    PERSON_SLOT,
    Benchmark,
    Digest,
    EffectKey,
    ErrorInfo,
    Evaluation,
    EvaluationRequest,
    LatencyBounds,
    Level,
    PredictedLatency,
    ProblemRef,
    Rebase,
    Role,
    RunConfig,
    SearchConfig,
    StartName,
    Verdict,
    digest_of,
)

E = TypeVar("E", bound=Event)
T = TypeVar("T")

KERNEL = "TILE_M = 16\nTILE_N = 64\nBUFFERS = 1\n"
"""A kernel of constants: all that the default judge looks at."""

OPTIMUM = {"TILE_M": 128, "TILE_N": 512, "BUFFERS": 4}
LIMIT = 1024


class LostHost(Exception):
    """Raised by a judge: the infrastructure failed, the kernel was not judged."""


Judge = Callable[[str], Evaluation]
"""Judges a kernel by its source alone; may raise `LostHost`."""

Catch = Callable[[str, Level], bool]
"""Says whether comparing as much as the level has shows that a kernel is wrong; may raise `LostHost`."""


def catch_nothing(source: str, level: Level) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Faults:
    """Odds, per action, of a crash and of a second delivery of an outcome."""

    crash: float = 0.0
    repeat: float = 0.0


def small(**search: Any) -> RunConfig:
    """Return the configuration of a small run with the scripted proposer; `search` overrides its numbers."""
    numbers = {"beam": 3, "plans": 2, "implementations": 2, "rounds": 3, "plateau_rounds": 9} | search
    return RunConfig(problem="toy", planner=("scripted",), search=SearchConfig(**numbers))


def correct_evaluation(
    source: str,
    latency_ms: float,
    *,
    noise: float | None = None,
    draws_ms: tuple[float, ...] = (),
    **changes: Any,
) -> Evaluation:
    """Return the verdict on a correct kernel; measured with relative `noise`, predicted without it."""
    half = latency_ms * (noise or 0.0)
    benchmark = Benchmark(
        latency_ms=latency_ms,
        lo_ms=latency_ms - half,
        hi_ms=latency_ms + half,
        predicted=noise is None,
        samples=1 if noise is None else 5,
        draws_ms=draws_ms,
    )
    return Evaluation(
        verdict=Verdict.CORRECT,
        stage="benchmark",
        code=digest_of(source.encode()),
        benchmark=benchmark,
        bottleneck="memory",
        target="trn2",
        toolchain="world 1",
    ).model_copy(update=changes)


def refused_evaluation(source: str, verdict: Verdict, message: str) -> Evaluation:
    """Return the verdict on a kernel that may not compete."""
    return Evaluation(
        verdict=verdict,
        stage=verdict.value,
        code=digest_of(source.encode()),
        error=ErrorInfo(code=f"world_{verdict.value}", message=message),
        target="trn2",
        toolchain="world 1",
    )


def judge_constants(source: str) -> Evaluation:
    """Judge by the kernel's constants: the nearer to their optimum, the faster; above a limit, refused."""
    try:
        code = ast.dump(ast.parse(source))
    except SyntaxError as error:
        return refused_evaluation(source, Verdict.COMPILE_ERROR, error.msg)
    constants = {name: int(value) for name, value in CONSTANT.findall(source)}
    if any(value > LIMIT for value in constants.values()):
        return refused_evaluation(source, Verdict.LINT_ERROR, f"a constant is above {LIMIT}")
    steps = [abs(math.log2(value / OPTIMUM[name])) for name, value in constants.items()]
    return correct_evaluation(source, 1.0 + 0.4 * sum(steps), code=digest_of(code.encode()))


class World:
    """One run, driven by hand. `order` seeds the order of actions; None is first come, first served.

    `files` are those of the problem, for proposers that read it. `starts` are the kernels that the run begins
    from, `translation` what its reference becomes; None: it has no translation. `simplify` makes a simpler
    kernel of the winner, or None; a test with it has `find_simplifier` name somebody.
    """

    def __init__(
        self,
        config: RunConfig | None = None,
        *,
        kernel: str | None = KERNEL,
        starts: tuple[StartName, ...] = ("kernel",),
        translation: str | None = None,
        simplify: Callable[[str], str | None] = lambda _: None,
        judge: Judge = judge_constants,
        catch: Catch = catch_nothing,
        proposer: Proposer | None = None,
        bounds: LatencyBounds | None = None,
        files: Mapping[str, bytes] = MappingProxyType({}),
        order: int | None = None,
        faults: Faults = Faults(),
    ) -> None:
        self.judge = judge
        self.translation = translation
        self.simplify = simplify
        self.catch = catch
        self.proposer: Proposer = proposer or ScriptedProposer()
        self.faults = faults
        self.blobs: dict[Digest, bytes] = {}
        self.events: list[Event] = []
        self.crashes = 0
        self._rng = random.Random(order) if order is not None else None
        self._luck = random.Random(f"luck {order}")
        self._in_flight: list[EffectKey] = []
        self._keys: set[str] = set()
        self._state: RunState | None = None
        digests = {path: self.put(data.decode()) for path, data in files.items()}
        problem = ProblemRef(name="toy", digest=digest_of(b"toy"), files=digests)
        self.append(
            RunCreated(
                config=config or small(),
                problem=problem,
                kernel=None if kernel is None else self.put(kernel),
                starts=starts,
                bounds=bounds or LatencyBounds(plain_ms=0.01, tight_ms=0.02),
                toolchain="world 1",
                code_version="0",
            )
        )

    # --- looking -----------------------------------------------------------------------------------

    @property
    def state(self) -> RunState:
        assert self._state is not None
        return self._state

    @property
    def fingerprint(self) -> tuple[str, str]:
        """What twins share: the semantic state and everything that was decided, in order."""
        return state_hash(self.state), self.state.decision_digest

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of one type so far."""
        return [event for event in self.events if isinstance(event, kind)]

    def source(self, digest: Digest) -> str:
        return self.blobs[digest].decode()

    # --- acting ------------------------------------------------------------------------------------

    def put(self, text: str) -> Digest:
        self.blobs[digest_of(text.encode())] = text.encode()
        return digest_of(text.encode())

    def append(self, *events: Event) -> None:
        """Append as a log would: in one transaction, refusing what cannot follow."""
        state = self._state
        for event in events:
            state = apply_event(state, event)
        keys = [key for event in events if (key := idempotency_key(event)) is not None]
        assert self._keys.isdisjoint(keys), "a log would refuse the second event of a key"
        self._keys.update(keys)
        self._state = state
        self.events.extend(events)

    def propose(self, source: str, note: str = "a person's") -> EffectKey:
        """Let a person propose a kernel: in this round while it is open for more, else in the next."""
        round_ = self.state.round if self.state.is_joinable else self.state.round + 1
        prefix = f"r{round_}.b{PERSON_SLOT}."
        number = sum(key.startswith(prefix) and key.endswith(Role.EXECUTOR) for key in self.state.outcomes)
        key = EffectKey(round_, PERSON_SLOT, number, 0, 0, Role.EXECUTOR)
        self.append(KernelProposed(key=str(key), source=self.put(source), note=note, author="person"))
        return key

    def step(self) -> bool:
        """Do one action; return False when there is nothing to do."""
        decisions = decide(self.state)
        effects = [one for one in decisions if isinstance(one, Effect)]
        for effect in effects:
            assert str(effect.key) not in self.state.open
            assert str(effect.key) not in self.state.outcomes
        if decisions and isinstance(decisions[0], Record):
            assert len(decisions) == 1, "a record stands alone"
            self.append(*decisions[0].events)
            return True
        if not effects and not self._in_flight:
            return False
        if self._luck.random() < self.faults.crash:
            self.crash()
        self._act(effects)
        return True

    def finish(self, *, until: Callable[[RunState], bool] = lambda state: state.has_ended) -> World:
        """Go on until `until` holds or nothing is left to do; return self."""
        while not until(self.state) and self.step():
            pass
        return self

    def crash(self) -> None:
        """Lose all that is in flight; what the log has open is delivered again, as logged."""
        self.crashes += 1
        self._in_flight.clear()
        for text, opened in sorted(self.state.open.items()):
            key = EffectKey.parse(text)
            delivery = opened.delivery + 1
            self.append(STARTED[key.role](key=text, request=opened.request, delivery=delivery))
            self._in_flight.append(key)

    def fork(self, at: int, *, rebase: Rebase | None = None, judge: Judge | None = None) -> World:
        """Return a run that continues this one from its event number `at`; this one is left as it is."""
        child = copy(self)
        child.events = self.events[:at]
        child.blobs = dict(self.blobs)
        child.judge = judge or self.judge
        child._in_flight, child._keys, child._state = [], set(), fold(child.events)
        child.append(RunForked(parent="parent", parent_seq=at, parent_hash=digest_of(b""), rebase=rebase))
        return child

    def _act(self, effects: list[Effect]) -> None:
        """Start an effect or deliver an outcome: any of them may be next."""
        chosen = self._rng.randrange(len(effects) + len(self._in_flight)) if self._rng else 0
        if chosen < len(effects):
            self._start(effects[chosen])
        else:
            self._deliver(self._in_flight.pop(chosen - len(effects)))

    def _start(self, effect: Effect) -> None:
        request = self.put(effect.request.model_dump_json())
        self.blobs.update({digest_of(blob): blob for blob in effect.blobs})
        self.append(STARTED[effect.key.role](key=str(effect.key), request=request))
        self._in_flight.append(effect.key)

    def _deliver(self, key: EffectKey) -> None:
        logged = self.blobs[self.state.open[str(key)].request]
        outcome = self._answer(key, request_type(key).model_validate_json(logged))
        self.append(outcome)
        if self._luck.random() < self.faults.repeat:
            self._offer_again(outcome)

    def _offer_again(self, outcome: Event) -> None:
        try:
            apply_event(self.state, outcome)
        except IllegalEvent:
            return
        raise AssertionError("a second outcome was accepted")

    # --- answering ---------------------------------------------------------------------------------

    def _answer(self, key: EffectKey, request: Any) -> Event:
        if key.role in JUDGES:
            return self._judge_kernel(key, request)
        try:
            return _ANSWERS[key.role](self, str(key), request)
        except RoleError as error:
            return _FAILURES[key.role](key=str(key), error=error.info, usage=error.usage)

    def _judge_kernel(self, key: EffectKey, request: EvaluationRequest) -> Event:
        source = self.source(request.source)
        try:
            verdict = self.judge(source)
            if verdict.is_correct and self.catch(source, request.level):
                found = refused_evaluation(source, Verdict.INCORRECT, f"wrong at {request.level}")
                verdict = found.model_copy(update={"code": verdict.code})
        except LostHost as lost:
            return EvaluationFailed(
                key=str(key), error=ErrorInfo(code="host_lost", message=str(lost)), tries=3
            )
        verdict = verdict.model_copy(update={"level": request.level})
        return EvaluationCompleted(key=str(key), evaluation=verdict, cache_key=verdict.code)

    def _looked_ahead(self, key: str, request: Any) -> Event:
        async def predict(sources: Sequence[str], dims: object = None) -> list[PredictedLatency]:
            return [self._predict_latency(source) for source in sources]

        answer = at_once(self.proposer.look_ahead(request, self._read, predict))  # type: ignore[attr-defined]
        self.blobs.update(answer.sources)
        return PredictionBatch(
            key=key,
            variants=self.put(answer.variants.model_dump_json()),
            count=len(answer.variants.found),
            predicted=answer.predicted,
            failed=answer.failed,
            instructions=answer.instructions,
        )

    def _predict_latency(self, source: str) -> PredictedLatency:
        said = self.judge(source)
        if said.benchmark is None:
            return PredictedLatency(instructions=1, code=said.code, error=said.error)
        return PredictedLatency(latency_ms=said.benchmark.latency_ms, instructions=1, code=said.code)

    def _make_plan(self, key: str, request: Any) -> Event:
        return PlanProposed(key=key, plan=at_once(self.proposer.plan(request, self._read)).plan)

    def _implement_plan(self, key: str, request: Any) -> Event:
        if isinstance(request, TranslateRequest):
            if self.translation is None:
                raise RoleError(ErrorInfo(code="untranslatable", message="np.sort has no translation"))
            return KernelProposed(key=key, source=self.put(self.translation), author="translation")
        if isinstance(request, SimplifyRequest):
            simpler = self.simplify(self.source(request.best.source))
            if simpler is None:
                raise RoleError(ErrorInfo(code="nothing_simpler", message="each rewrite brings something"))
            return KernelProposed(key=key, source=self.put(simpler), note="simplified: fewer lines")
        answer = at_once(self.proposer.implement(request, self._read))
        return KernelProposed(key=key, source=self.put(answer.source), note=answer.note)

    def _summarize_attempt(self, key: str, request: Any) -> Event:
        answer = at_once(self.proposer.summarize(request, self._read))
        return ExperienceRecorded(key=key, experience=answer.experience)

    def _reflect_on_attempt(self, key: str, request: Any) -> Event:
        answer = at_once(self.proposer.reflect(request, self._read))
        return ReflectionRecorded(key=key, reflection=answer.reflection)

    def _read(self, digest: Digest) -> bytes:
        return self.blobs[digest]


_ANSWERS: dict[Role, Callable[[World, str, Any], Event]] = {
    Role.PREDICTOR: World._looked_ahead,
    Role.PLANNER: World._make_plan,
    Role.EXECUTOR: World._implement_plan,
    Role.SUMMARIZER: World._summarize_attempt,
    Role.REFLECTOR: World._reflect_on_attempt,
}

_FAILURES: dict[Role, Callable[..., Event]] = {
    Role.PREDICTOR: PredictionBatch,
    Role.PLANNER: PlanFailed,
    Role.EXECUTOR: ExecutionFailed,
}


def at_once(answer: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, without an event loop."""
    try:
        answer.send(None)
    except StopIteration as done:
        return done.value
    answer.close()
    raise AssertionError("a proposer of a World must answer at once")


def fold(events: Iterable[Event]) -> RunState:
    """Return the state after `events`, from nothing."""
    state: RunState | None = None
    for event in events:
        state = apply_event(state, event)
    assert state is not None
    return state
