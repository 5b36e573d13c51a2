"""The tensor engine's array: products on tiles that do not overlap run at the same time.

A product without a tile takes the whole array [D: `nc_matmul`, tiling mode]. The engine starts products in
order; a product whose tile is still busy blocks those behind it [I].
"""

from __future__ import annotations

from collections.abc import Collection

from nki_sim.operators.costs import ARRAY_PARTS


class PeArray:
    """Until when each part of one core's array is busy, and with which instruction."""

    def __init__(self) -> None:
        self._free_ns = [0.0] * ARRAY_PARTS
        self._last = [-1] * ARRAY_PARTS

    def free_time(self, parts: Collection[int]) -> tuple[float, int]:
        """When these parts (all if none are named) are free, and what kept them busy last."""
        part = max(parts or range(ARRAY_PARTS), key=lambda part: self._free_ns[part])
        return self._free_ns[part], self._last[part]

    def hold_parts(self, parts: Collection[int], number: int, end_ns: float) -> float:
        """Keep parts busy until `end_ns`; return when any part of the array is free."""
        for part in parts or range(ARRAY_PARTS):
            self._free_ns[part], self._last[part] = end_ns, number
        return min(self._free_ns)
