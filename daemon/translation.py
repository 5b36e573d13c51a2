"""Translates references into kernels: for runs that begin from one, and for `agentctl translate`.

Predictions rank the layouts, and the judge has the last word: if it does not prove the fastest one, it sees
the next that is computed in another way."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from agent_core.process_pool import ProcessPool
from seeds.spec import ProblemSpec
from state.model import Evaluation, PredictedLatency, canonical_json
from state.step_keeper import STEP_KEEPER
from targets.base import UntranslatableError, import_part
from targets.registry import load_target

if TYPE_CHECKING:
    from remote.references import ReferenceStore
    from seeds import Problem

TRANSLATOR = "translation"
"""The author of translated kernels."""

_MOST_LAYOUTS = 32
"""How many layouts are predicted at a time; those that are likely to be fast come first."""
_MOST_INSTRUCTIONS = 50_000
"""Instructions in the predicted kernels that count up to which layouts near the fastest one are tried."""
_MUCH_SLOWER = 1.5
"""How many times as long as the fastest a layout takes from which on it does not count."""
_MOST_JUDGED = 4
"""Layouts that are judged until one is proven."""
_MOST_TESTED = 2
"""Layouts that are correct but not proven, after which none is judged: likely no layout can be proven."""
_LONGEST_FAULT = 200
"""Characters of what an error says: it may hold whole expressions."""
_WORTH_A_PROOF = 1.25
"""How many times as long as a kernel that was tested a proven one may take."""

_PREDICTIONS: TypeAdapter[tuple[PredictedLatency, ...]] = TypeAdapter(tuple[PredictedLatency, ...])

PredictSources = Callable[[Sequence[str]], Awaitable[Sequence[PredictedLatency]]]
"""Predicts kernels for the problem, size and target that are translated."""
JudgeSource = Callable[[str], Awaitable[Evaluation]]
"""Judges a kernel for that problem, size and target."""


@dataclass(frozen=True, slots=True)
class TranslatedKernel:
    """A translation and its predicted latency in ms."""

    kernel: str
    latency_ms: float


@dataclass(frozen=True, slots=True)
class Translation:
    """The translations that are worth judging, the fastest first, and all predicted latencies in ms.

    `left_out` has the faults of this program that kept it from writing some layouts.
    """

    candidates: tuple[TranslatedKernel, ...]
    latencies_ms: tuple[float | None, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JudgedTranslation:
    """The translation that was chosen, its verdict, and why faster ones were not, fastest first.

    `left_out` is the translation's.
    """

    kernel: TranslatedKernel
    evaluation: Evaluation
    passed_over: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


async def choose_by_verdict(translation: Translation, judge: JudgeSource) -> JudgedTranslation:
    """Return the fastest candidate that is proven, else that is correct, else of all, with its verdict."""
    found: list[tuple[TranslatedKernel, Evaluation]] = []
    for candidate in translation.candidates[:_MOST_JUDGED]:
        tested = [kernel for kernel, verdict in found if verdict.is_correct]
        if tested and candidate.latency_ms > _WORTH_A_PROOF * tested[0].latency_ms:
            break
        evaluation = await judge(candidate.kernel)
        found.append((candidate, evaluation))
        if _is_proven(evaluation) or len(tested) + evaluation.is_correct == _MOST_TESTED:
            break
    chosen = max(found, key=lambda item: (_is_proven(item[1]), item[1].is_correct))  # the first of several
    faster = found[: found.index(chosen)]
    passed_over = tuple(_explain_verdict(verdict) for _, verdict in faster)
    return JudgedTranslation(*chosen, passed_over=passed_over, left_out=translation.left_out)


def _is_proven(evaluation: Evaluation) -> bool:
    """Whether a kernel is correct, and nothing of its formula is open."""
    is_open = evaluation.identity is not None and evaluation.identity.verdict != "proven"
    return evaluation.is_correct and not is_open


def _explain_verdict(evaluation: Evaluation) -> str:
    if evaluation.error is not None and not evaluation.is_correct:
        return evaluation.error.message
    return "it was tested, and not proven" if evaluation.is_correct else "its results differ"


@dataclass(frozen=True, slots=True)
class _Layout:
    """A kernel in one layout, what was predicted for it, and what of the layout decides about roundings."""

    kernel: str
    name: str
    arithmetic: str
    told: PredictedLatency


def _fastest(layouts: Sequence[_Layout]) -> _Layout:
    """The layout that is predicted to be fastest, the first of several."""
    predicted = [layout for layout in layouts if layout.told.latency_ms is not None]
    if not predicted:
        reason = next((item.told.error.message for item in layouts if item.told.error), "it has no latency")
        raise UntranslatableError(f"no layout fits on the device: {reason}")
    return min(predicted, key=lambda layout: layout.told.latency_ms or 0.0)


def _select_candidates(layouts: Sequence[_Layout], best: _Layout) -> tuple[TranslatedKernel, ...]:
    """The fastest layout, and for each other way to compute the same the fastest, if it is not much slower.

    Layouts that differ in the order of instructions alone have the same verdict.
    """
    most = _MUCH_SLOWER * (best.told.latency_ms or 0.0)
    found: dict[str, TranslatedKernel] = {}
    for layout in sorted(layouts, key=lambda one: one.told.latency_ms or 0.0):
        if layout.told.latency_ms is not None and layout.told.latency_ms <= most:
            found.setdefault(layout.arithmetic, TranslatedKernel(layout.kernel, layout.told.latency_ms))
    return tuple(found.values())


def _count_instructions(layouts: Sequence[_Layout], best: _Layout) -> int:
    """How many instructions the layouts have that are not much slower than the fastest one."""
    most = _MUCH_SLOWER * (best.told.latency_ms or 0.0)
    return sum(item.told.instructions or 0 for item in layouts if (item.told.latency_ms or 0.0) <= most)


class KernelTranslator:
    """Writes kernels from the references of problems, in a process of its own if there is a pool."""

    def __init__(self, home: Path, *, has_pool: bool = False) -> None:
        self._home = home
        self._pool = ProcessPool(write_kernels, workers=1) if has_pool else None

    @property
    def references(self) -> ReferenceStore:
        """Where formulas of references are kept."""
        from remote.references import ReferenceStore

        return ReferenceStore(self._home, strength=None)

    def warm_up(self) -> None:
        """Have the process start before there is work for it."""
        if self._pool is not None:
            self._pool.warm_up()

    async def load_formula(self, problem: Problem, size: str) -> Path:
        """Return the file with a reference's formula, or with the reason why it has none.

        Raises:
            InfrastructureError: the reference fails, or cannot be run.
        """
        files = await self.references.load_files(problem, size, expression=True)
        assert files.expression is not None
        return files.expression

    async def translate(
        self, problem: Problem, size: str, target: str, *, predict: PredictSources, toolchain: str = ""
    ) -> Translation:
        """Return the translations of a problem's reference that are predicted to be fast.

        What an earlier delivery of an effect found out already is not asked again; `toolchain` names what
        predicts.

        Raises:
            UntranslatableError: there is no translation; the message names what is in the way.
            InfrastructureError: the reference fails, or cannot be run.
        """
        formula = await self.load_formula(problem, size)
        asked = {
            "target": target, "spec": problem.spec.model_dump_json(), "size": size, "formula": str(formula),
        }  # fmt: skip
        found: list[_Layout] = []
        left_out: dict[str, None] = {}
        best: _Layout | None = None
        spent = 0
        while spent <= _MOST_INSTRUCTIONS:
            answer, faults = await self._ask({**asked, "near": None if best is None else best.name})
            left_out |= dict.fromkeys(faults)
            known = {layout.kernel for layout in found}
            fresh = [kernel for kernel in answer if kernel[0] not in known][:_MOST_LAYOUTS]
            about = canonical_json((asked, toolchain, kernels := [kernel for kernel, *_ in fresh])).decode()
            answers = await _recall_predictions(about, lambda: predict(kernels))
            found += [_Layout(*layout, told) for layout, told in zip(fresh, answers, strict=True)]
            before, best = best, _fastest(found)
            if best is before:
                break
            spent = _count_instructions(found, best)
        assert best is not None  # `_fastest` gives one or raises
        latencies = tuple(layout.told.latency_ms for layout in found)
        return Translation(_select_candidates(found, best), latencies, tuple(left_out))

    async def _ask(self, asked: dict[str, str | None]) -> tuple[list[tuple[str, str, str]], list[str]]:
        """Kernels, the names of their layouts, what of these decides about roundings; then faults."""
        request = json.dumps(asked)
        if self._pool is None:
            answer = json.loads(await asyncio.to_thread(write_kernels, request))
        elif (keeper := STEP_KEEPER.get()) is None:
            answer = json.loads(await self._pool.run(request))
        else:
            run = partial(self._pool.run, request)
            answer = json.loads(await keeper.recall(request, run, prepare=self._pool.prepare))
        if "error" in answer:
            raise UntranslatableError(answer["error"])
        kernels = [(kernel, layout, arithmetic) for kernel, layout, arithmetic in answer["kernels"]]
        return kernels, answer.get("left_out", [])  # earlier versions kept none

    async def aclose(self) -> None:
        """End the process."""
        if self._pool is not None:
            await self._pool.aclose()


async def _recall_predictions(
    about: str, predict: Callable[[], Awaitable[Sequence[PredictedLatency]]]
) -> Sequence[PredictedLatency]:
    keeper = STEP_KEEPER.get()
    if keeper is None:
        return await predict()

    async def ask() -> str:
        return _PREDICTIONS.dump_json(tuple(await predict())).decode()

    return _PREDICTIONS.validate_json(await keeper.recall(about, ask))


def write_kernels(request: str) -> str:
    """Answer a request of `KernelTranslator`; both are JSON."""
    if not request:
        return ""  # this module is loaded; the translator is a target's
    asked = json.loads(request)
    left_out: dict[str, None] = {}
    translator = import_part(load_target(asked["target"]).parts.translator or "")
    spec = ProblemSpec.model_validate_json(asked["spec"])
    try:
        formula = Path(asked["formula"]).read_bytes()
        kernels = translator.write_variants(
            spec,
            asked["size"],
            formula,
            asked["near"],
            leave_out=lambda _, error: left_out.setdefault(_describe_fault(error)),
        )
    except UntranslatableError as error:
        return json.dumps({"error": str(error)})
    named = [(source, name, translator.name_arithmetic(name)) for source, name in kernels]
    return json.dumps({"kernels": named, "left_out": [*left_out]})


def _describe_fault(error: Exception) -> str:
    """An error of this program in a line, with the place where it was raised."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{said[:_LONGEST_FAULT]} ({Path(place.filename).name}, line {place.lineno})"
