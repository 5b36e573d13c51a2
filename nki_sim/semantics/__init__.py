"""What each instruction computes, on NumPy views: one function per operator, with the same name.

A function takes the operands by role and the parameters. On-chip views are [partitions, free...]. It computes
in float32 and stores into the output roles.
"""

from __future__ import annotations

from nki_sim.semantics import (
    control,
    elementwise,
    gather,
    matrix,
    move,
    mx,
    random,
    search,
    select,
    statistics,
    sync,
)
from nki_sim.semantics.common import Semantics, Touched

__all__ = ["SEMANTICS", "TOUCHED", "Semantics", "Touched"]

SEMANTICS: dict[str, Semantics] = {
    name: function
    for group in (move, matrix, mx, elementwise, statistics, random, select, search, gather, control, sync)
    for name, function in group.SEMANTICS.items()
}

TOUCHED: dict[str, Touched] = {
    name: function for group in (select, search, gather) for name, function in group.TOUCHED.items()
}
