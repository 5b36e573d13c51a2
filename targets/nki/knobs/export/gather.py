"""Reads the kernels of a run from its log: where each came from, what the judge said, in slot order."""

from __future__ import annotations

from dataclasses import dataclass, field

from state.events import (
    EvaluationCompleted,
    EvaluationFailed,
    Event,
    KernelProposed,
    PlanProposed,
    ProfileRecorded,
    RoundCompleted,
    RoundStarted,
    RunCreated,
    effect_key,
)
from state.model import (
    INITIAL_KEY,
    JUDGES,
    EffectKey,
    ErrorInfo,
    Evaluation,
    Plan,
    Role,
)
from state.reader import LogReader

_TYPES = tuple(
    kind.__name__
    for kind in (
        RunCreated,
        RoundStarted,
        RoundCompleted,
        PlanProposed,
        KernelProposed,
        EvaluationCompleted,
        EvaluationFailed,
        ProfileRecorded,
    )
)


@dataclass(slots=True)
class JudgedKernel:
    """A kernel of a run. `refuted` is the verdict of a later comparison that found it wrong.

    The log names no author for the initial kernel.
    """

    key: EffectKey
    source: str
    author: str | None = None
    note: str = ""
    plan: Plan | None = None
    parent: str | None = None
    evaluation: Evaluation | None = None
    refuted: Evaluation | None = None
    error: ErrorInfo | None = None
    counters: dict[str, float] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.key.candidate_id

    @property
    def verdict(self) -> Evaluation | None:
        """The judge's final evaluation."""
        return self.refuted or self.evaluation

    @property
    def min_ms(self) -> float | None:
        """Its latency, if it is correct and has one."""
        judged = self.verdict
        right = judged is not None and judged.is_correct and judged.benchmark is not None
        return judged.benchmark.latency_ms if right and judged and judged.benchmark else None


@dataclass(slots=True)
class GatheredRun:
    """A run's kernels, the initial one first, and the rounds that were started.

    `bests` are the ids of the run's best kernels after each completed round, by number.
    """

    created: RunCreated
    kernels: list[JudgedKernel]
    rounds: int
    bests: dict[int, str]


def gather_run(reader: LogReader, run: str) -> GatheredRun:
    """Read a run and its ancestors.

    Raises:
        StreamUnknown: there is no such run.
    """
    found, bests = _GatherWalk(), dict[int, str]()
    for item in reader.iterate_events(run, _TYPES):
        found.add_event(item.event)
        if isinstance(item.event, RoundCompleted) and item.stream == run:
            best = reader.run_state(run, item.run_seq).best
            bests |= {item.event.round: best.id} if best is not None else {}
    assert found.created is not None
    kernels = [found.kernels[key] for key in sorted(found.kernels)]
    return GatheredRun(found.created, kernels, found.rounds, bests)


class _GatherWalk:
    def __init__(self) -> None:
        self.created: RunCreated | None = None
        self.kernels: dict[EffectKey, JudgedKernel] = {}
        self.rounds = 0
        self._plans: dict[EffectKey, Plan] = {}
        self._parents: dict[tuple[int, int], str] = {}

    def add_event(self, event: Event) -> None:
        match event:
            case RunCreated():
                self.created = event
                if event.kernel is not None:
                    first = _kernel_key(INITIAL_KEY)
                    self.kernels[first] = JudgedKernel(first, event.kernel)
            case RoundStarted():
                self.rounds = max(self.rounds, event.round)
                self._parents |= {(event.round, slot.slot): slot.parent for slot in event.slots}
            case PlanProposed():
                self._plans[effect_key(event)] = event.plan
            case KernelProposed():
                self._add_kernel(effect_key(event), event)
            case EvaluationCompleted():
                self._add_evaluation(effect_key(event), event.evaluation)
            case EvaluationFailed() if (
                kernel := self.kernels.get(_kernel_key(effect_key(event)))
            ) is not None:
                kernel.error = event.error
            case ProfileRecorded():
                kernel = self.kernels.get(_kernel_key(EffectKey.parse(event.key)))
                if kernel is not None:
                    kernel.counters = dict(event.counters)

    def _add_kernel(self, key: EffectKey, event: KernelProposed) -> None:
        planned = key._replace(implementation=0, repair=0, role=Role.PLANNER)
        self.kernels[_kernel_key(key)] = JudgedKernel(
            _kernel_key(key),
            event.source,
            event.author,
            event.note,
            self._plans.get(planned),
            self._parents.get((key.round, key.slot)),
        )

    def _add_evaluation(self, key: EffectKey, evaluation: Evaluation) -> None:
        kernel = self.kernels.get(_kernel_key(key))
        if kernel is None or key.role not in JUDGES:
            return
        if not evaluation.is_correct and kernel.evaluation is not None:
            kernel.refuted = evaluation
        elif kernel.evaluation is None or evaluation.level.covers(kernel.evaluation.level):
            kernel.evaluation = evaluation


def _kernel_key(key: EffectKey) -> EffectKey:
    return key.for_role(Role.EXECUTOR)
