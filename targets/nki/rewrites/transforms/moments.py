"""Moments: a mean and a variance from one pass of `bn_stats`, instead of two sums over the same rows.

VectorE takes count, mean and variance of up to 512 elements in the time of one sum, and puts those of several
parts together. The second sum, of squares, is then known before anything is subtracted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.elementwise import (
    Apply,
    Expression,
    Leaf,
    element_expression,
    expand_expression,
    find_sole_writer,
    find_unused_after,
)
from targets.nki.rewrites.kernel_ir import Access, Kernel, Node, Statement
from targets.nki.rewrites.reductions import reduces_rows
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform, sites_by_result
from targets.nki.rewrites.values import LibrarySymbol

_TUPLE = 6
"""Numbers that `bn_stats` gives for each part: count, mean and variance of even and of odd elements."""
_SHORTEST_PART = 16
_CLOSE = 1e-6


@dataclass(frozen=True, eq=False)
class MomentSums:
    """`total` adds up the elements of `data`; `squares` adds up the squares of what is left of their mean."""

    total: Statement
    squares: Statement
    data: Access
    result: Access
    """Where the sum of squares goes."""

    @property
    def count(self) -> int:
        """Elements of a row."""
        return self.data.view.box[1].size


class TakeMoments(Transform[Statement]):
    """Takes a row's sum and its sum of squared deviations from its moments."""

    id: ClassVar[str] = "moments"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = (
        "a sum is the mean times the number of elements, a sum of squared deviations is the variance times "
        "it, and bn_aggr puts parts together with their counts"
    )

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, Statement]:
        del target
        return sites_by_result(
            item for item in kernel.operations() if _sums_squares(kernel, item) is not None
        )

    def list_choices(self, kernel: Kernel, target: Target, place: Statement) -> tuple[Choice, ...]:
        _part_size(_find_sums(kernel, place), target)
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: Statement, choice: Choice) -> str:
        del choice
        sums = _find_sums(kernel, place)
        gone = {*find_unused_after(kernel, place, frozenset({sums.data.tensor.id})), *_spared(kernel, place)}
        moments = kernel.fresh_name("moments")
        made = _take_moments(kernel, sums, moments, part=_part_size(sums, target))

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            if node is sums.total:
                first, *rest = [*made, _scale_moment(kernel, sums, sums.total, moment=f"{moments}[:, 0:1]")]
                return [syntax.with_leading_lines(first, syntax.leading_lines(sums.total.node)), *rest]
            if node is place:
                line = _scale_moment(kernel, sums, place, moment=f"{moments}[:, 1:2]")
                return [syntax.with_leading_lines(line, syntax.leading_lines(place.node))]
            return [] if node in gone else None

        return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _take_moments(kernel: Kernel, sums: MomentSums, moments: str, *, part: int) -> list[cst.BaseStatement]:
    """Mean and variance of each row, side by side in the tile `moments`."""
    nl, nisa, rows = kernel.nl, kernel.nisa, sums.data.view.box[0].size
    statistics, count = kernel.fresh_name("statistics"), sums.count // part
    data = sums.total.texts["data"]
    lines = [
        f"{statistics} = {nl}.ndarray(({rows}, {count * _TUPLE}), dtype={nl}.float32, buffer={nl}.sbuf)",
        f"{moments} = {nl}.ndarray(({rows}, 2), dtype={nl}.float32, buffer={nl}.sbuf)",
    ]
    found: list[cst.BaseStatement] = [syntax.parse_statement(line) for line in lines]
    if count == 1:
        found.append(syntax.parse_statement(f"{nisa}.bn_stats(dst={statistics}, data={data})"))
    else:
        at = kernel.fresh_name("i_part")
        taken = f"{statistics}[:, {at} * {_TUPLE} : ({at} + 1) * {_TUPLE}]"
        source = f"{data}[:, {at} * {part} : ({at} + 1) * {part}]"
        line = syntax.parse_statement(f"{nisa}.bn_stats(dst={taken}, data={source})")
        found.append(syntax.make_loop(at, f"{nl}.affine_range({count})", [line]))
    found.append(syntax.parse_statement(f"{nisa}.bn_aggr(dst={moments}, data={statistics})"))
    return found


def _spared(kernel: Kernel, squares: Statement) -> list[Statement]:
    """The declaration of the tile that the squares went to on the way to their sum."""
    made = squares.find_access("dst")
    is_tile = made is not None and squares.op == "activation_reduce"
    return [kernel.declarations[made.tensor.id]] if made is not None and is_tile else []


def _scale_moment(kernel: Kernel, sums: MomentSums, item: Statement, *, moment: str) -> cst.BaseStatement:
    """A sum as a moment times the number of elements, written where the sum went."""
    target = item.texts["reduce_res" if item is sums.squares and item.op == "activation_reduce" else "dst"]
    words = {
        "dst": target, "data": moment, "op0": f"{kernel.nl}.multiply", "operand0": f"{float(sums.count)}",
    }  # fmt: skip
    return syntax.make_call(f"{kernel.nisa}.tensor_scalar", words)


def _part_size(sums: MomentSums, target: Target) -> int:
    """Elements of which one instruction takes the moments: equal parts, as long as the target allows."""
    most = target.bn_stats_max
    part = max(size for size in range(1, min(most, sums.count) + 1) if sums.count % size == 0)
    if part < min(_SHORTEST_PART, sums.count):
        raise RewriteRefused(f"the {sums.count} elements of a row fall into no equal parts of at most {most}")
    return part


def _sums_squares(kernel: Kernel, item: Statement) -> tuple[Expression, Access] | None:
    """What is squared and added up along rows, and where the sum goes; None if it is something else."""
    if item.op == "activation_reduce":
        data, result = item.find_access("data"), item.find_access("reduce_res")
        is_square = _symbol(item, "op") == "square" and _symbol(item, "reduce_op") == "add"
        plain = item.texts.keys() <= {"dst", "op", "data", "reduce_op", "reduce_res", "bias"}
        if data is None or result is None or not is_square or not plain:
            return None
        squared: Expression = Leaf(data.view, item.texts["data"])
        if "bias" in item.texts:
            bias = item.find_access("bias")
            if bias is None:
                return None
            squared = Apply("add", (squared, Leaf(bias.view, item.texts["bias"])))
        return squared, result
    if not reduces_rows(item) or _symbol(item, "op") != "add":
        return None
    data, result = item.find_access("data"), item.find_access("dst")
    writer = find_sole_writer(kernel, data.tensor) if data is not None and data.view.is_whole else None
    made = element_expression(writer) if writer is not None else None
    match made:
        case Apply("square", (inner,)) | Apply("multiply", (Leaf() as inner, Leaf())) if result is not None:
            same = made.function == "square" or made.operands[0] == made.operands[1]
            return (inner, result) if same else None
    return None


def _find_sums(kernel: Kernel, squares: Statement) -> MomentSums:
    """The sum of which the squares' sum takes the mean away.

    Raises:
        RewriteRefused: there is none, or it cannot be taken from moments.
    """
    found = _sums_squares(kernel, squares)
    if found is None:
        raise RewriteRefused(f"{squares.op} does not add up squares along rows")
    leaf, mean = _split_deviation(_deviation(kernel, found[0], squares))
    column, factor = _as_multiple(expand_expression(kernel, mean, squares))
    total = find_sole_writer(kernel, column.view.tensor)
    if total is None or not reduces_rows(total) or _symbol(total, "op") != "add" or "negate" in total.texts:
        raise RewriteRefused(f"what is taken away from {leaf.view.tensor.name} is not the mean of its rows")
    data = total.find_access("data")
    assert data is not None
    sums = MomentSums(total, squares, data, found[1])
    _check_sums(kernel, sums, leaf)
    if abs(factor * sums.count + 1.0) > _CLOSE:
        raise RewriteRefused(f"{abs(factor)} times the sum is not the mean of {sums.count} elements")
    return sums


def _deviation(kernel: Kernel, squared: Expression, at: Statement) -> Expression:
    """What is squared, in terms of the tile whose rows it deviates from."""
    if not isinstance(squared, Leaf):
        return squared
    writer = find_sole_writer(kernel, squared.view.tensor) if squared.view.is_whole else None
    made = element_expression(writer) if writer is not None else None
    if writer is None or made is None or writer.path != at.path or writer.order > at.order:
        raise RewriteRefused(f"how {squared.view.tensor.name} is made is not known")
    return made


def _split_deviation(expression: Expression) -> tuple[Leaf, Expression]:
    """The x and the y of an expression that is x + y or x - y, where x is a tile and y a column."""
    match expression:
        case Apply("subtract", (Leaf() as data, column)):
            return data, Apply("multiply", (column, -1.0))
        case Apply("add", (Leaf() as data, Leaf() as column)):
            return (data, column) if data.view.box[1].size > 1 else (column, data)
    raise RewriteRefused("what is squared is no tile with something taken away")


def _as_multiple(expression: Expression) -> tuple[Leaf, float]:
    """The tile and the number of an expression that is a tile times a number."""
    factor = 1.0
    while not isinstance(expression, Leaf):
        match expression:
            case Apply("multiply", (inner, float() as number)) | Apply(
                "multiply", (float() as number, inner)
            ):
                expression, factor = inner, factor * number
            case Apply("divide", (inner, float() as number)):
                expression, factor = inner, factor / number
            case _:
                raise RewriteRefused("what is taken away is not a sum times a number")
    return expression, factor


def _check_sums(kernel: Kernel, sums: MomentSums, leaf: Leaf) -> None:
    """Refuse unless both sums go over the same whole rows, which do not change in between."""
    data, total, squares = sums.data, sums.total, sums.squares
    name = data.tensor.name
    if data.view != leaf.view or not (data.view.is_whole and data.view.plain) or len(data.view.box) != 2:
        raise RewriteRefused(f"the sums are not over all of the same rows of {name}")
    if total.path != squares.path or total.guards != squares.guards or total.order > squares.order:
        raise RewriteRefused("the sums are not in the same block")
    if kernel.may_change(data.tensor, total, squares) or data.tensor.id in kernel.escaping_ids:
        raise RewriteRefused(f"{name} may change between the sums")
    if {data.tensor.dtype, sums.result.tensor.dtype} != {"float32"}:
        raise RewriteRefused(f"{name} or {sums.result.tensor.name} is not float32")
    if squares.op == "activation_reduce":
        made = squares.find_access("dst")
        assert made is not None
        users = [item for item in kernel.users_of(made.tensor) if item is not squares]
        if users or made.tensor.id in kernel.escaping_ids or made.tensor.id not in kernel.declarations:
            raise RewriteRefused(f"the squares in {made.tensor.name} are used, and not only their sum")


def _symbol(item: Statement, role: str) -> str | None:
    value = item.arguments.get(role)
    return value.leaf if isinstance(value, LibrarySymbol) else None
