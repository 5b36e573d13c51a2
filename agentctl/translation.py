"""Translates a reference into a problem with a kernel: runs it in a jail, writes, predicts and judges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentctl.kernel_predictions import open_predictor
from daemon.config import Config
from daemon.translation import JudgedTranslation, KernelTranslator, Translation, choose_by_verdict
from seeds.from_reference import OutputShape, ReferenceFile, make_problem
from targets.base import import_part
from targets.registry import load_target

if TYPE_CHECKING:
    from seeds import Problem
    from state.model import Evaluation, PredictedLatency

SIZE = "full"


@dataclass(frozen=True, slots=True)
class TranslatedProblem:
    """A problem made of a reference; its kernel is the best of the translations of its formula, as judged."""

    problem: Problem
    judged: JudgedTranslation
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
    """Return the problem of a reference, with the fastest translation that the judge proves, or accepts.

    If it refuses the likely ones, the fastest is the kernel all the same, with its verdict.

    Raises:
        UntranslatableError: there is no translation; the message names what is in the way.
        NotAnswered: it took longer than `daemon.evaluation_seconds`.
        remote.RemoteError: the reference fails, or nothing can be predicted or judged here.
    """
    from agentctl.verbs.try_ import await_within_deadline

    config = config.model_copy(update={"run": config.run.model_copy(update={"size": SIZE})})
    work = _translate_reference(home, config, file)
    make, translation, formula = await await_within_deadline(
        work, config.daemon, doing="translating", wanted="translation"
    )
    judged = await judge_translation(home, config, make(), translation)
    problem = make(kernel=judged.kernel.kernel)
    return TranslatedProblem(problem, judged, translation.latencies_ms, formula)


async def judge_translation(
    home: Path, config: Config, problem: Problem, translation: Translation
) -> JudgedTranslation:
    """Return the candidate that the judge likes best; each is judged within `daemon.evaluation_seconds`.

    Raises:
        NotAnswered: it took longer.
        remote.RemoteError: no verdict could be reached.
    """
    from agentctl.verbs.try_ import evaluate_kernel

    async def judge(kernel: str) -> Evaluation:
        return (await evaluate_kernel(home, config, problem, kernel.encode())).evaluation

    return await choose_by_verdict(translation, judge)


async def _translate_reference(
    home: Path, config: Config, file: ReferenceFile
) -> tuple[Callable[..., Problem], Translation, bytes]:
    """What makes the problem with a kernel, its translations and its formula."""
    translator = load_translator(config.run.target)
    draft = make_problem(file, [OutputShape((1,), "float32")])
    _report(f"running the reference of {file.name}")
    kernels = KernelTranslator(home)
    found = await kernels.references.find_output_shapes(draft, SIZE)
    shapes = [OutputShape(shape, _output_type(dtype, file)) for shape, dtype in found]
    problem = make_problem(file, shapes)
    translated = await translate_problem(home, config, problem)
    formula = (await kernels.load_formula(problem, SIZE)).read_bytes()
    work = translator.estimate_work(problem.spec, SIZE, formula)
    return partial(make_problem, file, shapes, work=work), translated, formula


async def translate_problem(home: Path, config: Config, problem: Problem) -> Translation:
    """Return the translations of a problem's reference, at the run's size, that are predicted to be fast.

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
