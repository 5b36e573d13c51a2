"""Simplifies slices: neighbouring ones become one, and what takes all of a tile takes the tile."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from targets.nki.rewrites.arithmetic import are_equal_integers
from targets.nki.rewrites.syntax import bound_names, code_of

# --- neighbouring slices -----------------------------------------------------------------------------


class _NeighbourMerger(cst.CSTTransformer):
    """Makes one call of two that follow each other, if they differ only in slices that are neighbours."""

    def leave_IndentedBlock(  # noqa: N802
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        del original_node
        body: list[cst.BaseStatement] = []
        for item in updated_node.body:
            merged = _merge_statements(body[-1], item) if body else None
            if merged is None:
                body.append(item)
            else:
                body[-1] = merged
        return updated_node if len(body) == len(updated_node.body) else updated_node.with_changes(body=body)


def _merge_statements(one: cst.BaseStatement, other: cst.BaseStatement) -> cst.BaseStatement | None:
    first, second = _only_call(one), _only_call(other)
    if first is None or second is None or not first.func.deep_equals(second.func):
        return None
    if len(first.args) != len(second.args):
        return None
    args: list[cst.Arg] = []
    changed = False
    for mine, theirs in zip(first.args, second.args, strict=True):
        if code_of(mine.keyword) != code_of(theirs.keyword) or mine.star != theirs.star:
            return None
        if code_of(mine.value) == code_of(theirs.value):
            args.append(mine)
            continue
        value = _merge_subscripts(mine.value, theirs.value)
        if value is None:
            return None
        args.append(mine.with_changes(value=value))
        changed = True
    if not changed:
        return None
    assert isinstance(one, cst.SimpleStatementLine)
    return one.with_changes(body=[cst.Expr(first.with_changes(args=args))])


def _only_call(item: cst.BaseStatement) -> cst.Call | None:
    if not isinstance(item, cst.SimpleStatementLine) or len(item.body) != 1:
        return None
    (small,) = item.body
    return small.value if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call) else None


def _merge_subscripts(one: cst.BaseExpression, other: cst.BaseExpression) -> cst.Subscript | None:
    """The view that covers two views of a tensor; None if they are no neighbours along one dimension."""
    if not isinstance(one, cst.Subscript) or not isinstance(other, cst.Subscript):
        return None
    if not one.value.deep_equals(other.value) or len(one.slice) != len(other.slice):
        return None
    differing = [
        number
        for number, (mine, theirs) in enumerate(zip(one.slice, other.slice, strict=True))
        if code_of(mine.slice) != code_of(theirs.slice)
    ]
    if len(differing) != 1:
        return None
    (number,) = differing
    mine, theirs = one.slice[number].slice, other.slice[number].slice
    if not isinstance(mine, cst.Slice) or not isinstance(theirs, cst.Slice):
        return None
    if mine.step is not None or theirs.step is not None or mine.upper is None or theirs.lower is None:
        return None
    if not are_equal_integers(code_of(mine.upper), code_of(theirs.lower)):
        return None
    slices = list(one.slice)
    slices[number] = slices[number].with_changes(slice=mine.with_changes(upper=theirs.upper))
    return one.with_changes(slice=slices)


def merge_neighbours(module: cst.Module) -> cst.Module:
    """Return the module with one call for two that differ only in neighbouring slices."""
    return module.visit(_NeighbourMerger())


# --- whole slices ------------------------------------------------------------------------------------


def drop_whole_slices(module: cst.Module) -> cst.Module:
    """Return the module with tiles for views of all of them, and `:` for slices of all of a dimension."""
    shapes = _TileShapes()
    module.visit(shapes)
    return module.visit(_WholeSliceDropper(shapes.found))


class _TileShapes(cst.CSTVisitor):
    """The shapes of names that `ndarray` alone binds, always with the same shape; None for other names."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, tuple[str, ...] | None] = {}

    def visit_Assign(self, node: cst.Assign) -> None:  # noqa: N802
        shape = _declared_shape(node.value)
        for item in node.targets:
            name = code_of(item.target)
            if isinstance(item.target, cst.Name) and self.found.get(name, shape) == shape:
                self.found[name] = shape
            else:
                self._forget(item.target)

    def visit_Param(self, node: cst.Param) -> None:  # noqa: N802
        self.found[node.name.value] = None

    def visit_For(self, node: cst.For) -> None:  # noqa: N802
        self._forget(node.target)

    def visit_CompFor(self, node: cst.CompFor) -> None:  # noqa: N802
        self._forget(node.target)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:  # noqa: N802
        self._forget(node.target)

    def _forget(self, target: cst.BaseExpression) -> None:
        self.found |= dict.fromkeys(name for name in bound_names(target) if name is not None)


def _declared_shape(value: cst.BaseExpression) -> tuple[str, ...] | None:
    if not isinstance(value, cst.Call) or code_of(value.func).rpartition(".")[2] != "ndarray":
        return None
    shapes = [
        arg.value
        for number, arg in enumerate(value.args)
        if (arg.keyword.value if arg.keyword is not None else ("shape" if number == 0 else "")) == "shape"
    ]
    if len(shapes) != 1 or not isinstance(shapes[0], cst.Tuple):
        return None
    return tuple(code_of(item.value) for item in shapes[0].elements)


class _WholeSliceDropper(cst.CSTTransformer):
    def __init__(self, shapes: Mapping[str, tuple[str, ...] | None]) -> None:
        super().__init__()
        self._shapes = shapes

    def leave_Subscript(  # noqa: N802
        self, original_node: cst.Subscript, updated_node: cst.Subscript
    ) -> cst.BaseExpression:
        del original_node
        shape = self._shapes.get(code_of(updated_node.value)) or ()
        sizes = (*shape, *[""] * len(updated_node.slice))
        slices = [_open_slice(one, size) for one, size in zip(updated_node.slice, sizes, strict=False)]
        if len(slices) == len(shape) and all(code_of(one.slice).strip() == ":" for one in slices):
            return updated_node.value
        return updated_node.with_changes(slice=slices)


def _open_slice(element: cst.SubscriptElement, size: str) -> cst.SubscriptElement:
    """A slice of all of its dimension without bounds; any other stays as it is."""
    part = element.slice
    if not isinstance(part, cst.Slice) or part.step is not None:
        return element
    from_start = part.lower is None or code_of(part.lower) == "0"
    to_end = part.upper is None or (bool(size) and are_equal_integers(code_of(part.upper), size))
    return element.with_changes(slice=cst.Slice(None, None)) if from_start and to_end else element
