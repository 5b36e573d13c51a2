"""Graph rewrite: elementwise work on a matrix product reads it from PSUM while draining it.

This saves a copy to SBUF for each product, or transpose, that engines other than the tensor engine read. The
product is then summed over its whole dimension in PSUM, as nothing else adds up its parts.
"""

from __future__ import annotations

from nki_sim import targets
from targets.nki.knobs.graph import Call, Graph
from targets.nki.knobs.graph_rewrites.base import (
    GraphRewrite,
    GraphRewriteRefused,
    read_in_psum,
    reader_calls,
)
from targets.nki.knobs.operators import OPERATORS

_ON_ENGINES = frozenset({"vector", "scalar"})


def _apply(graph: Graph) -> Graph:
    found: set[str] = {item.name for item in graph.values if item.memory == "psum"}
    before, reasons = len(found), []
    for call in graph.calls:
        if OPERATORS[call.operator].memory == "psum" and call.result not in found:
            try:
                _check_readers(graph, call, found)
            except GraphRewriteRefused as reason:
                reasons.append(f"{call.result}: {reason}")
            else:
                found.add(call.result)
    if len(found) == before:
        raise GraphRewriteRefused("; ".join(reasons) or "nothing is computed in PSUM")
    return read_in_psum(graph, found)


def _check_readers(graph: Graph, call: Call, in_psum: set[str]) -> None:
    """Check that all readers of a value can read it from PSUM."""
    if call.result == graph.output:
        raise GraphRewriteRefused("it is the output, and DMA does not read PSUM")
    read_by = [item for _, item in reader_calls(graph, call.result)]
    for item in read_by:
        if OPERATORS[item.operator].engine not in _ON_ENGINES:
            raise GraphRewriteRefused(f"{item.result} needs it in SBUF")
        others = [name for _, name in item.operands if name != call.result]
        if len(item.operands) > len(others) + 1 or in_psum & set(others):
            raise GraphRewriteRefused(f"{item.result} would read two operands in PSUM")
    in_rounds = graph.value[call.result].dims[-1] in graph.rounds
    if _is_reread(graph, read_by) and not in_rounds and not _fits_in_psum(graph, call.result):
        raise GraphRewriteRefused("its rows are read in two passes, and are too long for PSUM to hold")


def _is_reread(graph: Graph, read_by: list[Call]) -> bool:
    """Whether some of these calls wait for the sum that others of them make."""
    waiting = {item.result for item in read_by if OPERATORS[item.operator].reduces is not None}
    for call in graph.calls:
        if any(name in waiting for _, name in call.operands):
            if call in read_by:
                return True
            waiting.add(call.result)
    return False


def _fits_in_psum(graph: Graph, value: str) -> bool:
    """Whether rows take at most half of PSUM: products go on meanwhile."""
    target = targets.load(graph.target)
    return graph.shape(value)[-1] * 4 <= target.psum_banks * target.psum_bank_bytes // 2


REWRITE = GraphRewrite(
    name="epilogue",
    keeps="an operator reads the same numbers in PSUM as in a copy, before they are rounded to their type",
    apply=_apply,
)
