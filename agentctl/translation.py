"""Translates a reference into a problem with a kernel: runs it in a jail, writes kernels, predicts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentctl.kernel_predictions import open_predictor
from daemon.config import Config
from daemon.translation import KernelTranslator, TranslatedKernel
from seeds.from_reference import OutputShape, ReferenceFile, make_problem
from targets.base import import_part
from targets.registry import load_target

if TYPE_CHECKING:
    from seeds import Problem
    from state.model import PredictedLatency

SIZE = "full"


@dataclass(frozen=True, slots=True)
class TranslatedProblem:
    """A problem made of a reference; its kernel is the best of the translations of its formula."""

    problem: Problem
    latencies_ms: tuple[float | None, ...]
    formula: bytes


def load_translator(target: str) -> Any:
    """Return the module that translates for a target.

    Raises:
        click.UsageError: the target has none.
    """
    part = load_target(target).parts.translator
    if part is None:
        raise click.UsageError(f"target {target} has no translator; --target names another")
    return import_part(part)


async def translate_reference(home: Path, config: Config, file: ReferenceFile) -> TranslatedProblem:
    """Return the problem of a reference, with the translation that is predicted to be fastest.

    Raises:
        UntranslatableError: there is no translation; the message names what is in the way.
        NotAnswered: it took longer than `daemon.evaluation_seconds`.
        remote.RemoteError: the reference fails, or nothing can be predicted here.
    """
    from agentctl.verbs.try_ import await_within_deadline

    work = _translate_reference(home, config, file)
    return await await_within_deadline(work, config.daemon, doing="translating", wanted="translation")


async def _translate_reference(home: Path, config: Config, file: ReferenceFile) -> TranslatedProblem:
    translator = load_translator(config.run.target)
    config = config.model_copy(update={"run": config.run.model_copy(update={"size": SIZE})})
    draft = make_problem(file, [OutputShape((1,), "float32")])
    _report(f"running the reference of {file.name}")
    kernels = KernelTranslator(home)
    found = await kernels.references.find_output_shapes(draft, SIZE)
    shapes = [OutputShape(shape, _output_type(dtype, file)) for shape, dtype in found]
    problem = make_problem(file, shapes)
    translated = await translate_problem(home, config, problem)
    formula = (await kernels.load_formula(problem, SIZE)).read_bytes()
    work = translator.estimate_work(problem.spec, SIZE, formula)
    problem = make_problem(file, shapes, work=work, kernel=translated.kernel)
    return TranslatedProblem(problem, translated.latencies_ms, formula)


async def translate_problem(home: Path, config: Config, problem: Problem) -> TranslatedKernel:
    """Return the translation of a problem's reference, at the run's size, that is predicted to be fastest.

    Raises:
        UntranslatableError: there is no translation; the message names what is in the way.
        remote.RemoteError: the reference fails, or nothing can be predicted here.
    """
    load_translator(config.run.target)
    async with open_predictor(home, config, problem) as ask:

        async def predict(kernels: Sequence[str]) -> Sequence[PredictedLatency]:
            _report(f"predicting {len(kernels)} layouts")
            return await ask(kernels)

        translator = KernelTranslator(home, has_pool=True)  # a thread would outlast a deadline
        try:
            return await translator.translate(problem, config.run.size, config.run.target, predict=predict)
        finally:
            await translator.aclose()


def _report(text: str) -> None:
    click.echo(text, err=True)


def _output_type(dtype: str, file: ReferenceFile) -> str:
    """Kernels return float32, or what the file says, where the reference computes in a wider type."""
    return dtype if dtype in {"bfloat16", "float16", "int32"} else file.output_dtype
