"""Where each row's factor goes: from a tile through transposes and copies into products, and out of these.

A tile whose rows are each multiplied by a factor is often turned and then the stationary operand of products,
as the weights of an attention are. Row i of each product's result then has the factor of row i, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

from targets.nki.rewrites.arithmetic import names_in
from targets.nki.rewrites.constant_arrays import makes_identity
from targets.nki.rewrites.elementwise import (
    Apply,
    Expression,
    Leaf,
    element_expression,
    has_plain_arguments,
    memset_value,
)
from targets.nki.rewrites.instructions import HINTS
from targets.nki.rewrites.kernel_ir import Access, Kernel, Loop, Statement
from targets.nki.rewrites.transform import RewriteRefused
from targets.nki.rewrites.values import Affine, Tensor, TensorView

_WIDE_TYPES = frozenset({"float32", "bfloat16"})
"""The types that hold a number with and without a factor in the same number of digits."""

_FACTORS = {"tensor_scalar": "operand0", "activation": "scale"}
"""The argument of an instruction that may be one factor for each row."""
_TRANSPOSES = {"nc_transpose": "data", "dma_transpose": "src"}
_TRANSPOSE_FLAGS = frozenset({"is_transpose", "is_stationary_onezero", "is_moving_onezero"})


@dataclass(frozen=True, slots=True)
class RowScaling:
    """An instruction that multiplies each row of `data` by an element of `factor`."""

    item: Statement
    result: Access
    data: Access
    factor: Access

    @property
    def rows(self) -> int:
        return self.data.view.shape[0]

    @property
    def factor_text(self) -> str:
        return self.item.texts[self.factor.role]


def find_row_scaling(item: Statement) -> RowScaling | None:
    """What an instruction multiplies by one factor for each row; None if it does no such thing."""
    role = _FACTORS.get(item.op, "")
    result, data, factor = (item.find_access(name) for name in ("dst", "data", role))
    if result is None or data is None or factor is None:
        return None
    match element_expression(item):
        case Apply("multiply", (Leaf(), Leaf())) | Apply("copy", (Apply("multiply", (Leaf(), Leaf())),)):
            return RowScaling(item, result, data, factor)
    return None


@dataclass(slots=True)
class FactorPath:
    """The tiles that hold a factor: as that of each row, of each column, and the results of products.

    `makers` are the instructions that write them, and `readers` those that read results.
    """

    rows: dict[int, Tensor] = field(default_factory=dict)
    columns: dict[int, Tensor] = field(default_factory=dict)
    results: dict[int, Tensor] = field(default_factory=dict)
    makers: set[Statement] = field(default_factory=set)
    readers: dict[Statement, Access] = field(default_factory=dict)

    @property
    def tiles(self) -> list[Tensor]:
        return [*self.rows.values(), *self.columns.values(), *self.results.values()]


def follow_factor(kernel: Kernel, scalings: Sequence[RowScaling]) -> FactorPath:
    """Follow the factor that these instructions bring in, until products' results are read.

    Raises:
        RewriteRefused: a tile on the way is also made or used otherwise, or outlives the factor.
    """
    path = FactorPath(makers={scaling.item for scaling in scalings})
    for scaling in scalings:
        path.rows[scaling.result.tensor.id] = scaling.result.tensor
        for view in (scaling.result.view, scaling.factor.view):
            _check_rows(view, scaling.rows)
    _FactorWalk(kernel, scalings[0].rows, path).run()
    if not path.results:
        raise RewriteRefused(f"no product reads {scalings[0].result.tensor.name} turned")
    _check_writers(kernel, path)
    for scaling in scalings:
        _check_scope(kernel, scaling, path)
    return path


class _FactorWalk:
    """Finds the tiles to which the instructions that read a tile carry its factor."""

    def __init__(self, kernel: Kernel, rows: int, path: FactorPath) -> None:
        self._kernel, self._rows, self._path = kernel, rows, path

    def run(self) -> None:
        """Follow the factor as far as it goes. What an instruction does with it may depend on later ones."""
        scalings = [*self._path.makers]
        while waiting := self._list_readers():
            if not [item for item in waiting if self._carry_on(item)]:
                tile = next(access.tensor for access in self._accesses(waiting[0]))
                raise RewriteRefused(f"{tile.name} is also read by {waiting[0].op}, which needs the factors")
        for item in scalings:
            if self._accesses(item):
                raise RewriteRefused(f"{item.op} multiplies what has a factor")
        done = self._path.makers.difference(scalings) | self._path.readers.keys()
        for item in sorted(done, key=lambda item: item.order):
            if not self._carry_on(item):  # other operands of it had none yet
                raise RewriteRefused(f"{item.op} multiplies what has the factor twice")

    def _list_readers(self) -> list[Statement]:
        """The instructions that read a tile with the factor, and of which it is not known what they do."""
        known = self._path.makers | self._path.readers.keys()
        found: dict[Statement, None] = {}
        for tile in self._path.tiles:
            if tile.id in self._kernel.escaping_ids or not tile.is_on_chip:
                raise RewriteRefused(f"{tile.name} has a second name, or is in HBM")
            if tile.dtype not in _WIDE_TYPES:
                raise RewriteRefused(
                    f"{tile.name} holds {tile.dtype}, which may not hold rows without factors"
                )
            for item, access in self._kernel.uses_of(tile):
                if not access.writes and item not in known:
                    found[item] = None
        return list(found)

    def _accesses(self, item: Statement) -> list[Access]:
        """The operands of an instruction that have the factor."""
        ids = {tile.id for tile in self._path.tiles}
        return [access for access in item.accesses if not access.writes and access.tensor.id in ids]

    def _carry_on(self, item: Statement) -> bool:
        """Note what an instruction makes; False if that does not have the factor once, as far as is known."""
        path, accesses = self._path, self._accesses(item)
        sides = [side for side in (path.rows, path.columns, path.results) if accesses[0].tensor.id in side]
        if any(access.tensor.id not in sides[0] for access in accesses):
            return False
        if sides[0] is path.results:
            return self._read_result(item, accesses)
        dst, alone = _destination(item), len(accesses) == 1
        if sides[0] is path.rows and alone and _transposes(self._kernel, item, accesses[0]):
            _check_rows(accesses[0].view, self._rows)
            _check_columns(dst.view, self._rows, whole=True)
            return self._add(path.columns, item, dst.tensor)
        if sides[0] is path.columns and alone and _multiplies(item, accesses[0]):
            _check_columns(accesses[0].view, self._rows, whole=True)
            _check_rows(dst.view, self._rows)
            return self._add(path.results, item, dst.tensor)
        if not _keeps_factor(item, sides[0]):
            return False
        for access in (*accesses, dst):
            (_check_rows if sides[0] is path.rows else _check_columns)(access.view, self._rows)
        return self._add(sides[0], item, dst.tensor)

    def _read_result(self, item: Statement, accesses: Sequence[Access]) -> bool:
        if len(accesses) > 1:
            raise RewriteRefused(f"{item.op} reads what has the factor twice")
        _check_rows(accesses[0].view, self._rows)
        self._path.readers[item] = accesses[0]
        return True

    def _add(self, side: dict[int, Tensor], item: Statement, tile: Tensor) -> bool:
        others = [one for one in (self._path.rows, self._path.columns, self._path.results) if one is not side]
        if any(tile.id in one for one in others):
            raise RewriteRefused(f"{tile.name} gets a factor in two ways")
        side[tile.id] = tile
        self._path.makers.add(item)
        return True


def _destination(item: Statement) -> Access:
    dst = item.find_access("dst")
    if dst is None or sum(access.writes for access in item.accesses) != 1:
        raise RewriteRefused(f"{item.op} does not write one tile")
    return dst


def _transposes(kernel: Kernel, item: Statement, access: Access) -> bool:
    """Whether an instruction writes an operand transposed."""
    if item.op == "nc_matmul":
        moving = item.find_access("moving")
        plain = item.texts.keys() <= {"dst", "stationary", "moving"} | _TRANSPOSE_FLAGS | HINTS
        return (
            plain and access.role == "stationary" and moving is not None and _is_identity(kernel, moving.view)
        )
    plain = item.texts.keys() <= {"dst", "engine", access.role} | HINTS
    return plain and _TRANSPOSES.get(item.op) == access.role and len(access.view.axes) == len("pf")


def _is_identity(kernel: Kernel, view: TensorView) -> bool:
    """Whether a view is an identity matrix: a constant in HBM, or a tile that is a copy of one."""
    tile = view.tensor
    if not view.is_whole or not view.plain or tile.copies or len(set(tile.shape)) != 1:
        return False
    if tile.id in kernel.escaping_ids:
        return False
    if not tile.is_on_chip:
        bound = [item for item in kernel.statements if tile.name in item.binds]
        return len(bound) == 1 and makes_identity(kernel.tree, bound[0].place)
    writers = [item for item in kernel.users_of(tile) if item.writes_tensor(tile)]
    if len(writers) != 1 or writers[0].op not in {"dma_copy", "tensor_copy"}:
        return False
    src, dst = writers[0].find_access("src"), writers[0].find_access("dst")
    assert src is not None
    assert dst is not None
    return dst.view.is_whole and dst.view.plain and _is_identity(kernel, src.view)


def _multiplies(item: Statement, access: Access) -> bool:
    """Whether an instruction is a product with an operand as the stationary one."""
    plain = item.texts.keys() <= {"dst", "stationary", "moving", "accumulate", "is_moving_onezero"} | HINTS
    return item.op == "nc_matmul" and access.role == "stationary" and plain


def _keeps_factor(item: Statement, tiles: Collection[int]) -> bool:
    """Whether the result of an instruction has the factor once, if these tiles have it."""
    if item.op == "tensor_copy":
        return has_plain_arguments(item)
    expression = element_expression(item)
    return expression is not None and _count_factors(expression, tiles) == 1


def _count_factors(expression: Expression, tiles: Collection[int]) -> int | None:
    """How often an expression has the factor of these tiles; None if it is no multiple of any power of it."""
    match expression:
        case Leaf(view):
            return int(view.tensor.id in tiles)
        case Apply("multiply", (first, second)):
            found = _count_factors(first, tiles), _count_factors(second, tiles)
            return None if None in found else sum(one or 0 for one in found)
        case Apply("add" | "subtract", (first, second)):
            found = _count_factors(first, tiles), _count_factors(second, tiles)
            return found[0] if found[0] == found[1] else None
        case Apply("copy", (first,)):
            return _count_factors(first, tiles)
        case Apply(_, operands):
            return None if any(_count_factors(one, tiles) != 0 for one in operands) else 0
    return 0


def _check_rows(view: TensorView, rows: int) -> None:
    """Refuse a view that does not have the rows of the factors, in their order."""
    axis, window = view.axes[0], view.box[0]
    if axis.source != 0 or (window.start, window.size, window.step) != (Affine(0), rows, 1):
        raise RewriteRefused(f"{view.tensor.name} is not used in all of the {rows} rows")


def _check_columns(view: TensorView, rows: int, *, whole: bool = False) -> None:
    """Refuse a view whose columns are not repetitions of the factors, or, if `whole`, once the factors."""
    steps = [prod(view.tensor.shape[axis + 1 :]) for axis in range(len(view.tensor.shape))]
    start = Affine(0)
    for window, step in list(zip(view.box, steps, strict=True))[1:]:
        start += window.start.scale_by(step)
    for place in view.within:
        start += place
    axes = [axis for axis in view.axes[1:] if axis.count > 1] or list(view.axes[1:2])
    whole_runs = bool(axes) and axes[-1].step == 1 and axes[-1].count % rows == 0
    ordered = all(outer.step >= inner.step * inner.count for outer, inner in pairwise(axes))
    aligned = all(part % rows == 0 for part in (start.const, *(factor for _, factor in start.terms)))
    aligned = aligned and all(axis.step % rows == 0 for axis in axes[:-1])
    if not (whole_runs and ordered and aligned) or (whole and prod(view.shape[1:]) != rows):
        raise RewriteRefused(f"{view.tensor.name} is not used in whole blocks of {rows} columns")


def _check_writers(kernel: Kernel, path: FactorPath) -> None:
    """Refuse tiles on the way that hold something else, too; zeros are the same with any factor."""
    for tile in path.tiles:
        for item in kernel.users_of(tile):
            if item.writes_tensor(tile) and item not in path.makers and memset_value(item) != 0.0:
                raise RewriteRefused(f"{tile.name} is also written by {item.op}")


def _check_scope(kernel: Kernel, scaling: RowScaling, path: FactorPath) -> None:
    """Refuse tiles that may still hold rows with the factors of another iteration, or that outlive them."""
    declared = [kernel.declarations.get(tile.id) for tile in path.tiles]
    homes = [item for item in declared if item is not None]
    if len(homes) != len(declared):
        raise RewriteRefused("a tile on the way is not declared in the kernel")
    factor, items = scaling.factor, [*path.makers, *path.readers]
    if any(item.guards != scaling.item.guards for item in [*homes, *items]):
        raise RewriteRefused("the tiles on the way are used in some iterations only")
    scope = _common_path([*homes, *items])
    if not factor.view.loops <= {loop.id for loop in scope}:
        raise RewriteRefused(f"the tiles on the way hold rows with several factors of {factor.tensor.name}")
    if factor.tensor.id in kernel.escaping_ids or not factor.tensor.is_on_chip:
        raise RewriteRefused(f"{factor.tensor.name} has a second name, or is in HBM")
    for writer in _writers(kernel, factor.tensor):
        inside = writer.path[: len(scope)] == scope
        apart = all(_common_path([writer, item]) == scope for item in items)
        if inside and not (apart and all(writer.order < item.order for item in items)):
            raise RewriteRefused(f"{factor.tensor.name} may change before the products are done")
    text, first = scaling.factor_text, min(items, key=lambda item: item.order)
    hidden = names_in(text) & {loop.var for item in items for loop in item.path[len(scope) :]}
    if hidden or any(kernel.may_rebind(text, first, reader) for reader in path.readers):
        raise RewriteRefused(f"{text} means something else where the products' results are read")


def _writers(kernel: Kernel, tile: Tensor) -> Iterator[Statement]:
    return (item for item in kernel.users_of(tile) if item.writes_tensor(tile))


def _common_path(items: list[Statement]) -> tuple[Loop, ...]:
    """The loops around all of these statements."""
    common: list[Loop] = []
    for loops in zip(*(item.path for item in items), strict=False):
        if len(set(loops)) != 1:
            break
        common.append(loops[0])
    return tuple(common)
