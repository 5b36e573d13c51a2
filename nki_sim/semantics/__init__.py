"""What each instruction computes, on NumPy views: one function per operator of the table, same name.

A function takes the operands by role and the parameters; on-chip views are [partitions, free...]. It
computes in float32 and stores into the output roles.
"""

from __future__ import annotations

from nki_sim.semantics import control, elementwise, gather, matrix, move, search, select
from nki_sim.semantics.common import Semantics

__all__ = ["SEMANTICS", "Semantics"]

SEMANTICS: dict[str, Semantics] = {
    name: function
    for group in (move, matrix, elementwise, select, search, gather, control)
    for name, function in group.SEMANTICS.items()
}
