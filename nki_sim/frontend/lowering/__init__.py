"""Lowers the `nl.*` functions that compute: each declares a result tile and emits instructions of the table.

Both namespaces use it. The functions take `Tensor` views and numbers and return the view of a new tile. They
do not know the kernels' masks: a front end that has masks passes `where=`, the boxes of the tile that remain.
`FUNCTIONS` maps documented names to functions. Parameters and default result types follow the pages of
`nki.language`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nki_sim.frontend.lowering.composite import FUNCTIONS as COMPOSITE
from nki_sim.frontend.lowering.elementwise import FUNCTIONS as ELEMENTWISE
from nki_sim.frontend.lowering.emit import Box, MaskBoxes
from nki_sim.frontend.lowering.matrix import FUNCTIONS as MATRIX
from nki_sim.frontend.lowering.move import FUNCTIONS as MOVE
from nki_sim.frontend.lowering.random_numbers import FUNCTIONS as NOISE
from nki_sim.frontend.lowering.reductions import FUNCTIONS as REDUCTIONS

__all__ = ["FUNCTIONS", "Box", "MaskBoxes"]

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **ELEMENTWISE, **REDUCTIONS, **COMPOSITE, **MATRIX, **MOVE, **NOISE,
}  # fmt: skip
