"""The operator table: one entry per `nki.isa` instruction that the simulator supports.

An entry gives the engines (the first is the default), the arguments in the order of the documented
signature, the rules and the cost. The front end builds `nisa.*` from it, the IR validates against it, and
`semantics` holds the arithmetic under the same name. To add an operator, add an entry to a group here and
its arithmetic there. What is documented but absent here is refused by name.
"""

from __future__ import annotations

from nki_sim.operators import control, elementwise, matrix, move, search, select
from nki_sim.operators.model import COMMON_RULES, Argument, Operator

__all__ = ["COMMON_RULES", "OPERATORS", "UNSUPPORTED", "Argument", "Operator"]

OPERATORS: dict[str, Operator] = {
    operator.name: operator
    for group in (move, matrix, elementwise, select, search, control)
    for operator in group.ENTRIES
}

# Documented for trn1 and trn2, not supported yet; the front end refuses them by name.
UNSUPPORTED = frozenset({
    "activate2", "bn_aggr", "bn_stats", "core_barrier", "dma_compute", "dropout", "exponential",
    "nc_matmul_mx", "quantize_mx", "rand2", "rand_get_state", "rand_set_state", "register_alloc", "rng",
    "scalar_load", "scalar_store", "sendrecv", "set_rng_seed", "tensor_partition_reduce",
    "tensor_scalar_cumulative",
})  # fmt: skip
