"""The operator table: one entry per `nki.isa` instruction that the simulator supports.

An entry gives the engines (the first is the default), the arguments in the order of the documented signature,
the rules and the cost. The front end builds `nisa.*` from it, programs are validated against it, and
`semantics` holds the arithmetic under the same name. To add an operator, add an entry to a group here and its
arithmetic there.
"""

from __future__ import annotations

from nki_sim.operators import control, elementwise, matrix, move, random, search, select, statistics, sync
from nki_sim.operators.model import COMMON_RULES, Argument, Operator

__all__ = ["COMMON_RULES", "OPERATORS", "V4_INSTRUCTIONS", "Argument", "Operator"]

OPERATORS: dict[str, Operator] = {
    operator.name: operator
    for group in (move, matrix, elementwise, statistics, random, select, search, control, sync)
    for operator in group.ENTRIES
}

# Of NeuronCore-v4 and later; the older namespace ends before it.
V4_INSTRUCTIONS = frozenset({
    "activate2", "exponential", "nc_matmul_mx", "quantize_mx", "rand2",
})  # fmt: skip
