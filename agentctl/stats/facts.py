"""The facts of runs, read from the log: each charge and each attempt at a kernel, once.

A run includes what its ancestors had up to the cut. Each fact carries the sequence number of its event
in the log, so that runs with common ancestors can be added up without counting anything twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agent_core.effects import ReflectRequest
from agent_core.roles.mechanical import reflection_of
from state.errors import BlobMissing
from state.events import (
    CallCompleted,
    CallEnded,
    CallFailed,
    CallStarted,
    EffectEnded,
    ExecutionFailed,
    ExperienceRecorded,
    KernelProposed,
    PlanFailed,
    PlanProposed,
    ReflectionRecorded,
    ReflectionStarted,
    RoundCompleted,
    RunForked,
)
from state.model import PERSON, UNKNOWN_AUTHOR, EffectKey, Role, Tokens, Verdict
from state.records import RecordedEvent
from state.spend import NANO

ANSWERED = "answered"
LOST = "lost"


@dataclass(frozen=True, slots=True)
class Charge:
    """A cost: an attempt at an answer, or what an effect reported as its cost.

    `cost_nano_usd` is in 1e-9 USD, None if the price is unknown. `outcome` is `answered`, `lost` or the
    kind of failure, and `model` is the model that was asked; both are None if no model was. `usable`
    says whether the answer became what it was asked for, None if there is no answer or this is unknown.
    `tokens` is None if nobody counted them; `charged_tokens` then counts as spent.
    """

    seq: int
    role: str
    cost_nano_usd: int | None
    tokens: Tokens | None = None
    charged_tokens: int = 0
    model: str | None = None
    outcome: str | None = None
    usable: bool | None = None
    ms: float | None = None


@dataclass(frozen=True, slots=True)
class KernelFact:
    """One attempt at a kernel, in a round. A repair has the `chain` number of the attempt that it
    repairs.

    `proposed` is false if no kernel came of it. `verdict` is None until there is one, so for ever if the
    infrastructure failed. `speedup` is over its parent, `gain` over the run's initial kernel; None if
    there is no latency, or if it does not compare. `counts` is false for kernels that were judged
    differently than the run is now. `improved` is true if it was kept and is faster than its parent
    beyond noise.
    """

    seq: int
    chain: int
    round: int
    repair: int
    author: str
    technique: str | None
    proposed: bool
    verdict: str | None = None
    speedup: float | None = None
    gain: float | None = None
    kept: bool = False
    improved: bool = False
    counts: bool = True

    @property
    def is_valid(self) -> bool:
        """Whether it was found correct, and has not been refuted."""
        return self.verdict == Verdict.CORRECT


@dataclass(frozen=True, slots=True)
class RunFacts:
    """All facts of one run. `speedup` is that of its best kernel over its initial one, None without
    either.
    """

    run: str
    task: tuple[str, str, str]
    predicted: bool | None
    speedup: float | None
    charges: tuple[Charge, ...] = ()
    kernels: tuple[KernelFact, ...] = ()


def merge_facts(runs: Sequence[RunFacts]) -> tuple[tuple[Charge, ...], tuple[KernelFact, ...]]:
    """Return the charges and kernels of several runs, each once; for shared ones the first run's version
    counts.
    """
    charges = {one.seq: one for run in reversed(runs) for one in run.charges}
    kernels = {one.seq: one for run in reversed(runs) for one in run.kernels}
    return (
        tuple(charges[seq] for seq in sorted(charges)),
        tuple(kernels[seq] for seq in sorted(kernels)),
    )


def _kernel_facts(
    rows: Sequence[dict[str, Any]], pass_: FactsWalk, initial_ms: float | None
) -> Iterator[KernelFact]:
    """Yield a run's attempts at kernels; the initial kernel is not one.

    A copy of a refuted kernel counts as wrong too, although nobody judged it further.
    """
    wrong = {row["candidate"] for row in rows if row["reason"] == "refuted"}
    for row in rows:
        seq = pass_.made.get(row["candidate"])
        if seq is None:
            continue
        refuted = bool(wrong & {row["candidate"], row["duplicate_of"]})
        counts = seq > pass_.rebased
        correct = row["verdict"] == Verdict.CORRECT and not refuted
        timed = row["latency_ms"] if correct and counts else None
        kept = row["decision"] == "kept"
        yield KernelFact(
            seq=seq,
            chain=pass_.made.get(_unrepaired_candidate(row["candidate"]), seq),
            round=row["round"],
            repair=row["repair"],
            author=row["author"] or row["model"] or row["planner"] or UNKNOWN_AUTHOR,
            technique=row["technique"],
            proposed=row["source"] is not None,
            verdict=Verdict.INCORRECT.value if refuted else row["verdict"],
            speedup=row["speedup"] if correct else None,
            gain=initial_ms / timed if initial_ms and timed else None,
            kept=kept,
            improved=kept and row["author"] != PERSON and row["candidate"] in pass_.gained,
            counts=counts,
        )


def _unrepaired_candidate(candidate: str) -> str:
    """Return the attempt that a candidate repairs, or the candidate itself."""
    return EffectKey.parse(f"{candidate}.{Role.EXECUTOR}")._replace(repair=0).candidate_id


@dataclass(slots=True)
class _EffectInFlight:
    """An effect in flight: its request, and the places of its answers among the charges."""

    request: str | None = None
    answers: list[tuple[int, int]] = field(default_factory=list)


class FactsWalk:
    """One pass over a run's events, its ancestors' first, that collects its facts."""

    types = (
        "RunForked", "RoundCompleted", "CallStarted", "CallCompleted", "CallFailed", "CallLost",
        "PlanProposed", "PlanFailed", "KernelProposed", "ExecutionFailed",
        "ExperienceRecorded", "ReflectionStarted", "ReflectionRecorded", "PredictionBatch",
        "EvaluationCompleted", "EvaluationFailed",
    )  # fmt: skip

    def __init__(self, blob: Callable[[str], bytes]) -> None:
        self._blob = blob
        self._open: dict[str, _EffectInFlight] = {}
        self.charges: list[Charge] = []
        self.made: dict[str, int] = {}
        self.gained: set[str] = set()
        self.rebased = 0

    def add_event(self, item: RecordedEvent) -> None:
        """Process the run's next event."""
        match item.event:
            case RunForked(rebase=rebase):
                self._open = {}
                self.rebased = self.rebased if rebase is None else item.seq
            case RoundCompleted(attempts=attempts):
                self.gained |= {one.candidate for one in attempts if one.gained}
            case ReflectionStarted(key=key, request=request):
                self._effect_in_flight(key).request = request
            case CallStarted(key=key, call=call):
                self._note_question(key, call)
            case CallEnded() as event:
                self._add_call(item.seq, event)
            case EffectEnded() as event:
                self._end_effect(item.seq, event)

    def build_facts(self, row: dict[str, Any], attempts: Sequence[dict[str, Any]]) -> RunFacts:
        """Return the facts of the run in `row` of the read models, with its attempts."""
        first, best = row["initial_ms"], row["best_ms"]
        return RunFacts(
            run=str(row["run"]),
            task=(row["problem"], row["size"], row["target"]),
            predicted=None if row["predicted"] is None else bool(row["predicted"]),
            speedup=first / best if first and best else None,
            charges=tuple(self.charges),
            kernels=tuple(_kernel_facts(attempts, self, first)),
        )

    def _effect_in_flight(self, key: str) -> _EffectInFlight:
        return self._open.setdefault(key, _EffectInFlight())

    def _note_question(self, key: str, call: int) -> None:
        """Mark earlier answers as unusable: a further question means that they had a fault."""
        for number, place in self._effect_in_flight(key).answers:
            if number < call:
                self._set_usable(place, usable=False)

    def _set_usable(self, place: int, *, usable: bool | None) -> None:
        self.charges[place] = replace(self.charges[place], usable=usable)

    def _add_call(self, seq: int, event: CallEnded) -> None:
        if isinstance(event, CallCompleted) and event.reused_from is not None:
            return  # the parent paid for it, and its figures include it
        outcome, ms = LOST, None
        if isinstance(event, CallCompleted):
            outcome, ms = ANSWERED, event.ms
            self._effect_in_flight(event.key).answers.append((event.call, len(self.charges)))
        elif isinstance(event, CallFailed):
            outcome, ms = event.kind, event.ms
        self.charges.append(
            Charge(
                seq=seq,
                role=event.role,
                cost_nano_usd=None if event.cost_usd is None else round(event.cost_usd * NANO),
                tokens=event.tokens,
                charged_tokens=event.charged_tokens,
                model=event.model,
                outcome=outcome,
                ms=ms,
            )
        )

    def _end_effect(self, seq: int, event: EffectEnded) -> None:
        effect = self._open.pop(event.key, _EffectInFlight())
        if effect.answers:
            call, place = effect.answers[-1]
            if self.charges[place].usable is None:
                self._set_usable(place, usable=self._is_answer_used(event, effect, call))
        if isinstance(event, (KernelProposed, ExecutionFailed)):
            candidate = EffectKey.parse(event.key).candidate_id
            self.made[candidate] = seq
            self.gained.discard(candidate)
        self._add_cost(seq, event)

    def _is_answer_used(self, event: EffectEnded, effect: _EffectInFlight, call: int) -> bool | None:
        """Return whether an effect's last answer became its outcome.

        Summaries and reflections can end without an answer too: with nothing, or with the mechanical
        note. That can be told only if there was a second question; a first answer without one was used.
        """
        match event:
            case PlanProposed() | KernelProposed():
                return True
            case PlanFailed() | ExecutionFailed():
                return False
            case ExperienceRecorded(experience=experience):
                return call == 0 or experience is not None
            case ReflectionRecorded(reflection=reflection):
                return call == 0 or self._differs_from_mechanical(reflection, effect.request)
        return None

    def _differs_from_mechanical(self, reflection: object, request: str | None) -> bool | None:
        """Return whether a reflection differs from the mechanical one; None if its request is no longer
        in the log.
        """
        if request is None:
            return None
        try:
            asked = ReflectRequest.model_validate_json(self._blob(request))
        except BlobMissing:
            return None
        return reflection != reflection_of(asked)

    def _add_cost(self, seq: int, event: EffectEnded) -> None:
        usage = event.usage
        if usage.cost_usd == 0.0 and usage.input_tokens == 0 == usage.output_tokens:
            return
        cost = None if usage.cost_usd is None else round(usage.cost_usd * NANO)
        tokens = Tokens(input=usage.input_tokens, output=usage.output_tokens)
        self.charges.append(Charge(seq, EffectKey.parse(event.key).role.value, cost, tokens))
