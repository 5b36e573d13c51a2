"""Translates references into kernels: for runs that begin from one, and for `agentctl translate`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from agent_core.process_pool import ProcessPool
from seeds.spec import ProblemSpec
from state.model import PredictedLatency, canonical_json
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

_PREDICTIONS: TypeAdapter[tuple[PredictedLatency, ...]] = TypeAdapter(tuple[PredictedLatency, ...])

PredictSources = Callable[[Sequence[str]], Awaitable[Sequence[PredictedLatency]]]
"""Predicts kernels for the problem, size and target that are translated."""


@dataclass(frozen=True, slots=True)
class TranslatedKernel:
    """The translation that is predicted to be fastest, and the predicted latencies of all, in ms."""

    kernel: str
    latencies_ms: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class _Layout:
    """A kernel in one layout, and what was predicted for it."""

    kernel: str
    name: str
    told: PredictedLatency


def _fastest(layouts: Sequence[_Layout]) -> _Layout:
    """The layout that is predicted to be fastest, the first of several."""
    predicted = [layout for layout in layouts if layout.told.latency_ms is not None]
    if not predicted:
        reason = next((item.told.error.message for item in layouts if item.told.error), "it has no latency")
        raise UntranslatableError(f"no layout fits on the device: {reason}")
    return min(predicted, key=lambda layout: layout.told.latency_ms or 0.0)


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
    ) -> TranslatedKernel:
        """Return the translation of a problem's reference that is predicted to be fastest.

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
        best: _Layout | None = None
        spent = 0
        while spent <= _MOST_INSTRUCTIONS:
            answer = await self._ask({**asked, "near": None if best is None else best.name})
            known = {layout.kernel for layout in found}
            fresh = [kernel for kernel in answer if kernel[0] not in known][:_MOST_LAYOUTS]
            about = canonical_json((asked, toolchain, kernels := [kernel for kernel, _ in fresh])).decode()
            answers = await _recall_predictions(about, lambda: predict(kernels))
            found += [_Layout(*pair, told) for pair, told in zip(fresh, answers, strict=True)]
            before, best = best, _fastest(found)
            if best is before:
                break
            spent = _count_instructions(found, best)
        assert best is not None  # `_fastest` gives one or raises
        return TranslatedKernel(best.kernel, tuple(layout.told.latency_ms for layout in found))

    async def _ask(self, asked: dict[str, str | None]) -> list[tuple[str, str]]:
        """Kernels and the names of their layouts."""
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
        return [(kernel, layout) for kernel, layout in answer["kernels"]]

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
    translator = import_part(load_target(asked["target"]).parts.translator or "")
    spec = ProblemSpec.model_validate_json(asked["spec"])
    try:
        formula = Path(asked["formula"]).read_bytes()
        kernels = translator.write_variants(spec, asked["size"], formula, asked["near"])
    except UntranslatableError as error:
        return json.dumps({"error": str(error)})
    return json.dumps({"kernels": kernels})
