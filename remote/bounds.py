"""The two lower bounds on a problem's latency: NKIBench's plain roofline and the simulator's tight bound."""

from __future__ import annotations

from remote.errors import InfrastructureError
from seeds import Problem, SeedsError, Work
from seeds.roofline import roofline_ms
from state.model import Bounds


def bounds(problem: Problem, size: str, target: str) -> Bounds:
    """Return both bounds of `problem` at `size` on `target`, in milliseconds.

    Raises:
        InfrastructureError: the problem has no such size, or the target is not known.
    """
    try:
        work = problem.spec.work_at(size)
        return Bounds(plain_ms=roofline_ms(work, target), tight_ms=tight_ms(work, target))
    except SeedsError as error:
        raise InfrastructureError(error.code, str(error), retryable=False) from error


def tight_ms(work: Work, target: str) -> float:
    """Return the tight bound, in milliseconds.

    Raises:
        InfrastructureError: the target is not known.
    """
    from nki_sim import targets
    from nki_sim.errors import TargetError
    from nki_sim.timing.bounds import MinimalWork, tight_bound

    least = MinimalWork(
        read_bytes=work.read_bytes,
        write_bytes=work.write_bytes,
        matmul_flops=work.matmul_flops,
        matmul_dtype=work.matmul_dtype,
        activation_elements=work.activation_elements,
        elementwise_elements=work.elementwise_elements,
        # What no engine makes may be a copy.
        copied_bytes=max(0, work.write_bytes - 4 * work.elementwise_elements),
    )
    try:
        return tight_bound(least, targets.load(target))
    except TargetError as error:
        raise InfrastructureError(error.code, str(error), retryable=False) from error
