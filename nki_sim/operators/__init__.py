"""The operator table: one entry per `nki.isa` instruction that the simulator supports.

An entry gives the engines (the first is the default), the arguments in the order of the documented
signature, the rules and the cost. The front end builds `nisa.*` from it, the IR validates against it, and
`semantics` holds the arithmetic under the same name. To add an operator, add an entry to a group here and
its arithmetic there. What is documented but absent here is refused by name.
"""

from __future__ import annotations

from nki_sim.operators import control, elementwise, matrix, move
from nki_sim.operators.model import COMMON_RULES, Argument, Operator

__all__ = ["COMMON_RULES", "OPERATORS", "UNSUPPORTED", "Argument", "Operator"]

OPERATORS: dict[str, Operator] = {
    operator.name: operator for group in (move, matrix, elementwise, control) for operator in group.ENTRIES
}

# Documented for trn1 and trn2, not supported yet; the front end refuses them by name.
UNSUPPORTED = frozenset({
    "activate2", "affine_select", "bn_aggr", "bn_stats", "core_barrier", "dma_compute", "dropout",
    "exponential", "iota", "local_gather", "max8", "nc_find_index8", "nc_match_replace8",
    "nc_matmul_mx", "nc_n_gather", "nc_stream_shuffle", "nonzero_with_count", "quantize_mx", "rand2",
    "rand_get_state", "rand_set_state", "range_select", "register_alloc", "rng", "scalar_load",
    "scalar_store", "select_reduce", "sendrecv", "sequence_bounds", "set_rng_seed",
    "tensor_copy_predicated", "tensor_partition_reduce", "tensor_scalar_cumulative", "topk",
})  # fmt: skip
