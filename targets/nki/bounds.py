"""Computes the tight lower bound of a problem's latency on Trainium from the simulator's tables."""

from __future__ import annotations

from nki_sim import targets
from nki_sim.timing.bounds import MinimalWork, tight_bound
from seeds.spec import ProblemWork


def tight_bound_ms(work: ProblemWork, target: str) -> float:
    """Return the bound, in milliseconds."""
    least = MinimalWork(
        read_bytes=work.read_bytes,
        write_bytes=work.write_bytes,
        matmul_flops=work.matmul_flops,
        matmul_dtype=work.matmul_dtype,
        activation_elements=work.activation_elements,
        elementwise_elements=work.elementwise_elements,
        # Output that no engine computes may be a copy.
        copied_bytes=max(0, work.write_bytes - 4 * work.elementwise_elements),
    )
    return tight_bound(least, targets.load(target))
