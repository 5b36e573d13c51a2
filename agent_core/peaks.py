"""Peak rates of the engines that work element by element, from the target tables."""

from __future__ import annotations

from nki_sim import targets

ELEMENTWISE = ("vector", "scalar", "gpsimd")


def lane_peaks(target: str) -> dict[str, float]:
    """Return how many lane cycles each of these engines has in a second: a lane takes an element a cycle.

    Nothing is known of a target that has no table.
    """
    if target not in targets.names():
        return {}
    table = targets.load(target)
    return {engine: table.partitions * table.clock_ghz(engine) * 1e9 for engine in ELEMENTWISE}
