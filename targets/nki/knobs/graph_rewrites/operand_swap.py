"""Graph rewrite: swaps the operands of a matrix product, so that it is computed transposed.

If the product's result, or an elementwise function of it, is transposed next, the transpose is saved:
everything in between works on the transposed product. Elsewhere the product is transposed back, if that pays:
the stationary operand is loaded into the tensor engine's array, and if it is narrower than the array, part of
the array idles while the moving operand passes through.
"""

from __future__ import annotations

from nki_sim import targets
from targets.nki.knobs.graph import Call, Graph
from targets.nki.knobs.graph_rewrites.base import (
    GraphRewrite,
    GraphRewriteRefused,
    edit_graph,
    fresh_name,
    make_call,
    producer_calls,
)
from targets.nki.knobs.operators import OPERATORS


def _apply(graph: Graph) -> Graph:
    found, reasons = graph, []
    for item in graph.calls:
        rewrite = {"NKITranspose": _absorb_transpose, "NKIMatmul": _swap_operands}.get(item.operator)
        if rewrite is not None and item.result in found.value:
            try:
                found = rewrite(found, producer_calls(found)[item.result])
            except GraphRewriteRefused as reason:
                reasons.append(f"{item.result}: {reason}")
    if found is graph:
        raise GraphRewriteRefused("; ".join(reasons) or "there is no product")
    return found


def _absorb_transpose(graph: Graph, transpose: Call) -> Graph:
    """The graph in which a transpose's result is computed directly."""
    flips = _TransposedValues(graph)
    source = dict(transpose.operands)["data"]
    if producer_calls(graph).get(source, transpose).operator == "NKITranspose":
        raise GraphRewriteRefused(f"{source} is an input, or transposed already")
    flips.transpose_value(source, transpose.result)
    made = edit_graph(graph, flips.calls.values())
    left = [name for name in flips.names if name in made.value]
    if left:
        raise GraphRewriteRefused(f"{left[0]} is read untransposed too")
    return made


class _TransposedValues:
    """Values that are computed transposed: the names of the new ones, and their calls by name."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._made = producer_calls(graph)
        self.names: dict[str, str] = {}
        self.calls: dict[str, Call] = {}

    def transpose_value(self, name: str, wanted: str = "") -> str:
        """Return the name of a value's transpose, after adding a call for it.

        Raises:
            GraphRewriteRefused: it is not computed from products elementwise.
        """
        if name in self.names:
            return self.names[name]
        given = self._made.get(name)
        if given is None:
            raise GraphRewriteRefused(f"{name} is an input")
        operands = dict(given.operands)
        if given.operator == "NKITranspose":
            return operands["data"]
        if given.operator == "NKIMatmul":
            _check_types(self._graph, given)
            operands = {"stationary": operands["moving"], "moving": operands["stationary"]}
        else:
            self._check_elementwise(given)
            operands = {slot: self.transpose_value(operand) for slot, operand in operands.items()}
        result = wanted or fresh_name(self._graph, f"{name}_T", self.calls)
        self.names[name] = result
        self.calls[result] = Call(given.operator, tuple(operands.items()), given.settings, result)
        return result

    def _check_elementwise(self, given: Call) -> None:
        entry = OPERATORS[given.operator]
        letters = {entry.operands[slot] for slot, _ in given.operands}
        columns = any(len(self._graph.value[name].core_dims) == 1 for _, name in given.operands)
        if entry.reduces is not None or columns or letters != {entry.result}:
            raise GraphRewriteRefused(f"{given.result} is not computed element by element")


def _swap_operands(graph: Graph, product: Call) -> Graph:
    """The graph in which a product is computed transposed, and transposed back."""
    _check_types(graph, product)
    operands = dict(product.operands)
    (rows, columns), limits = graph.core_shape(product.result), targets.load(graph.target)

    def cycles(stationary: int, moving: int) -> int:
        return -(-stationary // limits.matmul_stationary_max) * max(moving, limits.tensor_min_cycles)

    if cycles(columns, rows) >= cycles(rows, columns):
        raise GraphRewriteRefused("its stationary operand fills the array as well as the moving one would")
    turned = fresh_name(graph, f"{product.result}_T")
    swap = {"stationary": operands["moving"], "moving": operands["stationary"]}
    back = make_call("NKITranspose", product.result, {"data": turned})
    return edit_graph(graph, (make_call("NKIMatmul", turned, swap), back))


def _check_types(graph: Graph, product: Call) -> None:
    """A product has the type of its moving operand."""
    if len({graph.value[name].dtype for _, name in product.operands}) > 1:
        raise GraphRewriteRefused("its operands are of two types")


REWRITE = GraphRewrite(
    name="operand_swap",
    keeps="(A B)^T = B^T A^T, and what is done element by element may be done on the transposed elements",
    apply=_apply,
)
