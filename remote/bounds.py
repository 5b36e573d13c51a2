"""Computes two lower bounds on a problem's latency: the plain roofline and the target's model bound."""

from __future__ import annotations

from remote.errors import InfrastructureError
from seeds import Problem, SeedsError
from state.model import LatencyBounds


def compute_bounds(problem: Problem, size: str, target: str) -> LatencyBounds:
    """Return both bounds of `problem` at `size` on `target`, in milliseconds.

    Raises:
        InfrastructureError: the problem has no such size, or the target is not known.
    """
    from targets.base import UnknownTargetError  # not at the top: jails that run references have no targets
    from targets.registry import load_target

    try:
        work, device = problem.spec.minimal_work(size), load_target(target)
    except (SeedsError, UnknownTargetError) as error:
        raise InfrastructureError(error.code, str(error), retryable=False) from error
    return LatencyBounds(plain_ms=device.peaks.roofline_ms(work), tight_ms=device.tight_bound_ms(work))
