"""The problem's relations, for kernels that run on a device: what must hold between a kernel's own outputs.

The relations, and the draws of what they change, are those of `remote.judge.relations`; here a kernel runs on
the changed inputs. Draws depend on the home's secret, so that no kernel can know them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from remote.evaluation_context import EvaluationContext
from remote.judge.job import JudgeOutcome
from state.model import ErrorInfo, Verdict
from targets.c.compiler import BuiltKernel
from targets.c.runner import KernelFault, KernelRunner

_HINT = "outputs are to be computed for any inputs, not only for those of the problem's seeds"


class _FaultyRunError(Exception):
    """A kernel failed on changed inputs."""

    def __init__(self, fault: KernelFault) -> None:
        super().__init__(fault.error.message)
        self.fault = fault


async def find_broken_relation(
    runner: KernelRunner, run: EvaluationContext, built: BuiltKernel, *, secret: str
) -> JudgeOutcome | None:
    """Return the verdict on a kernel that breaks a relation, or fails on changed inputs; None if all hold.

    Raises:
        InfrastructureError: the jail failed.
    """
    loop = asyncio.get_running_loop()

    def compute(inputs: Sequence[Any], boxes: Mapping[int, Any]) -> Sequence[Any]:
        """Run the kernel, from the thread in which relations are checked; outputs are always whole."""
        del boxes
        running = asyncio.run_coroutine_threadsafe(runner.compute_on(built, run, inputs), loop)
        try:
            outputs = running.result()
        finally:
            running.cancel()
        if isinstance(outputs, KernelFault):
            raise _FaultyRunError(outputs)
        return _shape_outputs(run, outputs)

    try:
        found = await asyncio.to_thread(_check_relations, run, compute, f"{built.digest} {secret}".encode())
    except _FaultyRunError as error:
        return error.fault.outcome("relations")
    if found is None:
        return None
    info = ErrorInfo(code="relation_broken", message=found, hint=_HINT)
    return JudgeOutcome(verdict=Verdict.INCORRECT, stage="relations", error=info)


def _check_relations(run: EvaluationContext, compute: Any, key: bytes) -> str | None:
    from remote.judge import relations
    from remote.judge.suite import draw_set

    spec, size = run.problem.spec, run.request.size
    inputs = draw_set(spec, size, str(spec.seeds[0]))
    return relations.find_broken_relation(spec, size, inputs, compute, tolerance=spec.rel_l2, key=key)


def _shape_outputs(run: EvaluationContext, outputs: Sequence[bytes]) -> list[Any]:
    import numpy as np

    from seeds.inputs import dtype_of

    spec, dims = run.problem.spec, run.problem.spec.dims(run.request.size)
    return [
        np.frombuffer(data, dtype_of(item.dtype)).reshape(item.resolve_shape(dims))
        for data, item in zip(outputs, spec.outputs, strict=True)
    ]
