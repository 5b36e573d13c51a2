"""Deferred scaling: a factor of each row multiplies the results of products instead of their operand.

An attention multiplies each row of its weights by one over their sum, and a norm each row by a root, before a
product. The product's result has the same rows. It is often narrower, and the wait for the factor is then
beside the product instead of before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.arithmetic import names_in, substitute_names
from targets.nki.rewrites.elementwise import has_plain_arguments
from targets.nki.rewrites.instructions import HINTS
from targets.nki.rewrites.kernel_ir import Access, Kernel, Node, Statement
from targets.nki.rewrites.row_factors import RowScaling, find_row_scaling, follow_factor
from targets.nki.rewrites.slices import SourceWindow, base_name, parse_windows
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform, sites_by_result


class DeferScaling(Transform[Statement]):
    """Multiplies the rows of products' results, instead of those of an operand, by a factor each."""

    id: ClassVar[str] = "defer_scaling"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = "row i of a product is linear in row i of its stationary operand"

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, Statement]:
        del target
        return sites_by_result(item for item in kernel.operations() if find_row_scaling(item) is not None)

    def list_choices(self, kernel: Kernel, target: Target, place: Statement) -> tuple[Choice, ...]:
        del target
        _plan_deferral(kernel, place)
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: Statement, choice: Choice) -> str:
        del target, choice
        made = _plan_deferral(kernel, place)

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            return made.get(node) if isinstance(node, Statement) else None

        return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


Replacements = dict[Statement, list[cst.BaseStatement]]
Changes = dict[str, str | None]
"""Sources of an instruction's arguments; None drops one."""


def _plan_deferral(kernel: Kernel, place: Statement) -> Replacements:
    """What becomes of a scaling instruction, those with the same factor, and the readers of results.

    Raises:
        RewriteRefused: something on the way needs the scaled rows, or has no place for the factor.
    """
    scalings = [found for item in kernel.operations() if (found := find_row_scaling(item)) is not None]
    own = next(scaling for scaling in scalings if scaling.item is place)
    twins = [scaling for scaling in scalings if scaling.factor.view == own.factor.view]
    try:
        return _defer_scalings(kernel, twins)
    except RewriteRefused:
        if len(twins) == 1:
            raise
        return _defer_scalings(kernel, [own])


def _defer_scalings(kernel: Kernel, scalings: Sequence[RowScaling]) -> Replacements:
    path = follow_factor(kernel, scalings)
    made: Replacements = {}
    for item, access in path.readers.items():
        made[item] = _scale_result(kernel, scalings[0], item, access)
    for scaling in scalings:
        made |= _read_unscaled(kernel, scaling)
    return made


def _scale_result(
    kernel: Kernel, scaling: RowScaling, item: Statement, result: Access
) -> list[cst.BaseStatement]:
    """The instruction that reads a product's result, with the factor as its first step.

    Raises:
        RewriteRefused: it has no place for one.
    """
    if not has_plain_arguments(item):
        raise RewriteRefused(
            f"{item.op} reads {result.tensor.name} with arguments that leave no factor a place"
        )
    words = _add_step(kernel, scaling, item, result)
    if words is None:
        raise RewriteRefused(f"{item.op} reads {result.tensor.name} and has no place for a factor")
    function, changes = words
    return [syntax.replace_arguments(item.node, changes, f"{kernel.nisa}.{function}")]


def _add_step(
    kernel: Kernel, scaling: RowScaling, item: Statement, result: Access
) -> tuple[str, Changes] | None:
    """The function and the changed arguments of an instruction that scales a result first."""
    step: Changes = {"op0": f"{kernel.nl}.multiply", "operand0": scaling.factor_text}
    copied: Changes = {"src": None, "data": item.texts[result.role]}
    match item.op:
        case "tensor_copy" if item.engine != "scalar":
            return "tensor_scalar", copied | step
        case "tensor_copy":
            scaled: Changes = {"engine": None, "op": f"{kernel.nl}.copy", "scale": scaling.factor_text}
            return "activation", copied | scaled
        case "activation" if result.role == "data" and "scale" not in item.texts:
            return "activation", {"scale": scaling.factor_text}
        case "tensor_scalar" if result.role == "data" and "op1" not in item.texts:
            later: Changes = {"op1": item.texts["op0"], "operand1": item.texts["operand0"]}
            if "reverse0" in item.texts:
                later |= {"reverse0": None, "reverse1": item.texts["reverse0"]}
            return "tensor_scalar", step | later
        case "tensor_tensor":
            return "scalar_tensor_tensor", _add_step_before_pair(item, result, step)
    return None


def _add_step_before_pair(item: Statement, result: Access, step: Changes) -> Changes:
    """The arguments of an instruction for two tiles, one of which is scaled first."""
    second = result.role == "data2"
    words: Changes = {"data1": None, "data2": None, "op": None, "data": item.texts[result.role], **step}
    words |= {"op1": item.texts["op"], "operand1": item.texts["data1" if second else "data2"]}
    return words | {"reverse1": "True"} if second else words


def _read_unscaled(kernel: Kernel, scaling: RowScaling) -> Replacements:
    """What is left of an instruction that scaled rows: nothing, if others may read its input, or a copy."""
    item, tile = scaling.item, scaling.result.tensor
    readers = [user for user in kernel.users_of(tile) if user is not item]
    try:
        _check_input(kernel, scaling, readers)
        read_input = _input_reader(kernel, scaling)
        moved = {user: [syntax.reindex_tensor(user.node, tile.name, read_input)] for user in readers}
    except RewriteRefused:
        return {item: [_write_copy(kernel, scaling)]}
    declared, first = kernel.declarations[tile.id], moved[readers[0]][0]
    comments = syntax.merge_leading_lines(first, declared.node, item.node)
    return {item: [], declared: [], **moved, readers[0]: [syntax.with_leading_lines(first, comments)]}


def _write_copy(kernel: Kernel, scaling: RowScaling) -> cst.BaseStatement:
    item = scaling.item
    if item.op == "activation":
        return syntax.replace_arguments(item.node, {"scale": None})
    dropped: Changes = dict.fromkeys(item.texts.keys() - {"dst"} - HINTS)
    changes = {**dropped, "src": item.texts[scaling.data.role]}
    return syntax.replace_arguments(item.node, changes, f"{kernel.nisa}.tensor_copy")


def _input_reader(kernel: Kernel, scaling: RowScaling) -> syntax.Change:
    """What stands for the scaled rows, or a part of them, in an instruction that reads the input instead.

    Raises:
        RewriteRefused: the input is a part of a tile, and its source or the reader's is no plain window.
    """
    text, data = scaling.item.texts[scaling.data.role], scaling.data
    source = syntax.parse_expression(text)
    if data.view.is_whole:
        return lambda parts: cst.Subscript(source, parts) if parts else source
    windows = parse_windows(kernel, text, len(data.tensor.shape))

    def narrow(parts: list[cst.SubscriptElement] | None) -> cst.BaseExpression:
        if parts is None:
            return source
        inner = [*(part.slice for part in parts), *([None] * (len(windows) - len(parts)))]
        words = [_narrow_window(window, part) for window, part in zip(windows, inner, strict=True)]
        return syntax.make_subscript(base_name(text), syntax.parse_subscript_elements(", ".join(words)))

    return narrow


def _narrow_window(window: SourceWindow, part: cst.BaseSlice | None) -> str:
    """The source of a part of a window."""
    if part is None or (isinstance(part, cst.Slice) and part.lower is None and part.upper is None):
        return window.text
    bounds = (part.lower, part.upper) if isinstance(part, cst.Slice) else ()
    texts = [syntax.code_of(bound) for bound in bounds if bound is not None]
    if len(texts) != len("ab") or (isinstance(part, cst.Slice) and part.step is not None):
        raise RewriteRefused("the scaled rows are not read in plain windows")
    if any("-" in one for one in texts):
        raise RewriteRefused("a window of the scaled rows may be counted from their end")
    known = {"low": window.lower}
    return " : ".join(substitute_names("low + bound", known | {"bound": one}) for one in texts)


def _check_input(kernel: Kernel, scaling: RowScaling, readers: Sequence[Statement]) -> None:
    """Check that the readers of scaled rows may read what these were made from.

    Raises:
        RewriteRefused: they may not.
    """
    item, data, result = scaling.item, scaling.data, scaling.result
    tile, declared = result.tensor, kernel.declarations[result.tensor.id]
    even = data.view.plain and all(window.step == 1 for window in data.view.box)
    if not (even and result.view.plain and result.view.is_whole) or tile.copies:
        raise RewriteRefused(f"{tile.name} is made in parts, or of what is rearranged")
    if (data.tensor.dtype, data.tensor.buffer, data.view.shape) != (tile.dtype, tile.buffer, tile.shape):
        raise RewriteRefused(f"{tile.name} has another type, place or shape than {data.tensor.name}")
    if (declared.path, declared.guards) != (item.path, item.guards) or data.tensor.id in kernel.escaping_ids:
        raise RewriteRefused(f"{tile.name} is declared elsewhere, or {data.tensor.name} has a second name")
    if any(user.path[: len(item.path)] != item.path or user.order < item.order for user in readers):
        raise RewriteRefused(f"{tile.name} is read elsewhere")
    if not readers or any(user.writes_tensor(tile) for user in readers):
        raise RewriteRefused(f"{tile.name} is not read, or written again")
    if _may_change_before(kernel, scaling, readers):
        raise RewriteRefused(f"{data.tensor.name} may change before {tile.name} is read")


def _may_change_before(kernel: Kernel, scaling: RowScaling, readers: Sequence[Statement]) -> bool:
    """Whether the input, or what its source says, may be another one at readers of the scaled rows."""
    item, text, tensor = scaling.item, scaling.item.texts[scaling.data.role], scaling.data.tensor
    around = [loop for user in readers for loop in user.path[len(item.path) :]]
    if names_in(text) & {loop.var for loop in around}:
        return True
    for writer in kernel.users_of(tensor):
        # A loop around a reader comes back to it after all that it holds.
        later = item.order < writer.order <= readers[-1].order or any(loop in around for loop in writer.path)
        if later and writer.writes_tensor(tensor):
            return True
    return kernel.may_rebind(text, item, readers[-1])
