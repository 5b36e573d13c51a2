"""Elementwise chains as expressions: a tile's contents in terms of the tiles it was made from.

A tile that one instruction writes whole, once per declaration, stands for an expression; chains of such tiles
compose. A known function in an expression is then recognised by its shape.
"""

from __future__ import annotations

from dataclasses import dataclass

from targets.nki.rewrites.instructions import HINTS
from targets.nki.rewrites.kernel_ir import Kernel, Statement
from targets.nki.rewrites.values import Affine, LibrarySymbol, Tensor, TensorView, Value


@dataclass(frozen=True, slots=True)
class Leaf:
    """A view that is not expanded further; `text` is its source."""

    view: TensorView
    text: str


@dataclass(frozen=True, slots=True)
class Apply:
    """A function applied to expressions and numbers."""

    function: str
    operands: tuple[Expression, ...]


Expression = Leaf | Apply | float
NEUTRAL_OPERANDS = {"add": 0.0, "multiply": 1.0}
"""The operand with which an operator changes nothing, on either side."""
LOWEST_FLOAT32 = -3.4028234663852886e38
"""A maximum begins with it, as with a neutral operand; of numbers only -inf is lower."""
COMMUTATIVE_OPERATORS = frozenset({"add", "multiply", "maximum", "minimum"})
"""Operators whose operands may be swapped."""


def negation_operand(expression: Expression) -> Expression | None:
    """The z of an expression that is -z."""
    match expression:
        case (
            Apply("multiply", (inner, -1.0)) | Apply("multiply", (-1.0, inner)) | Apply("negative", (inner,))
        ):
            return inner
    return None


def find_sole_writer(kernel: Kernel, tensor: Tensor) -> Statement | None:
    """The only instruction that writes a tensor, whole, in the block that declares it."""
    writers = [item for item in kernel.users_of(tensor) if item.writes_tensor(tensor)]
    declared = kernel.declarations.get(tensor.id)
    if len(writers) != 1 or declared is None or tensor.copies or tensor.id in kernel.escaping_ids:
        return None
    item = writers[0]
    written = next(access for access in item.accesses if access.writes and access.tensor.id == tensor.id)
    same_place = item.path == declared.path and item.guards == declared.guards
    filled = written.view.is_whole and written.view.plain and written.role == "dst" and not written.reads
    return item if same_place and filled else None


def has_plain_arguments(item: Statement) -> bool:
    """Whether an instruction's only arguments are those that its expression consists of."""
    return item.texts.keys() <= _PLAIN_ARGUMENTS.get(item.op, frozenset()) | HINTS | {"engine"}


def element_expression(item: Statement) -> Expression | None:
    """The expression of an elementwise instruction, one step deep; None if it is not elementwise."""
    rule = _EXPRESSION_RULES.get(item.op)
    return rule(item) if rule is not None and has_plain_arguments(item) else None


def expand_expression(kernel: Kernel, expression: Expression, at: Statement) -> Expression:
    """The expression with tiles replaced by what they were computed from, as far as that is known."""
    if isinstance(expression, Apply):
        operands = tuple(expand_expression(kernel, item, at) for item in expression.operands)
        return _drop_neutral_operand(Apply(expression.function, operands))
    if not isinstance(expression, Leaf) or not expression.view.is_whole or not expression.view.plain:
        return expression
    writer = find_sole_writer(kernel, expression.view.tensor)
    if writer is None or writer.path != at.path or writer.order >= at.order:
        return expression
    if expression.view.tensor.dtype != "float32":
        return expression
    inner = element_expression(writer)
    if inner is None or not _is_unchanged(kernel, inner, writer, at):
        return expression
    return expand_expression(kernel, inner, writer)


def _drop_neutral_operand(expression: Apply) -> Expression:
    """The other operand of a sum with zero or a product with one."""
    neutral = NEUTRAL_OPERANDS.get(expression.function)
    if neutral is None or len(expression.operands) != len("ab"):
        return expression
    first, second = expression.operands
    if first == neutral:
        return second
    return first if second == neutral else expression


def _is_unchanged(kernel: Kernel, expression: Expression, writer: Statement, at: Statement) -> bool:
    """Whether what the writer read is unchanged at a later statement of the same block."""
    if isinstance(expression, Apply):
        return all(_is_unchanged(kernel, item, writer, at) for item in expression.operands)
    if not isinstance(expression, Leaf):
        return True
    tensor = expression.view.tensor
    return not (kernel.may_change(tensor, writer, at) or kernel.may_rebind(expression.text, writer, at))


def _as_float(value: Value) -> float | None:
    if isinstance(value, Affine):
        return float(value.const) if value.is_const else None
    return value if isinstance(value, float) else None


def _operand_expression(item: Statement, role: str) -> Expression | None:
    access = item.find_access(role)
    if access is not None:
        return Leaf(access.view, item.texts[role])
    return _as_float(item.arguments.get(role))


def _symbol_name(item: Statement, role: str) -> str | None:
    value = item.arguments.get(role)
    return value.leaf if isinstance(value, LibrarySymbol) else None


def _activation_expression(item: Statement) -> Expression | None:
    data, function = _operand_expression(item, "data"), _symbol_name(item, "op")
    if data is None or function is None:
        return None
    for role, step in (("scale", "multiply"), ("bias", "add")):
        if role in item.texts:
            value = _operand_expression(item, role)
            if value is None:
                return None
            data = Apply(step, (data, value))
    return Apply(function, (data,))


def _tensor_scalar_expression(item: Statement) -> Expression | None:
    data = _operand_expression(item, "data")
    for step in ("0", "1"):
        function = _symbol_name(item, f"op{step}")
        if function is None:
            continue
        value = _operand_expression(item, f"operand{step}")
        if data is None or value is None:
            return None
        swapped = item.arguments.get(f"reverse{step}", False)
        data = Apply(function, (value, data) if swapped else (data, value))
    return data


def _tensor_tensor_expression(item: Statement) -> Expression | None:
    first, second, function = (
        _operand_expression(item, "data1"),
        _operand_expression(item, "data2"),
        _symbol_name(item, "op"),
    )
    return None if first is None or second is None or function is None else Apply(function, (first, second))


def _scalar_tensor_tensor_expression(item: Statement) -> Expression | None:
    data, scale, other = (_operand_expression(item, role) for role in ("data", "operand0", "operand1"))
    first, second = _symbol_name(item, "op0"), _symbol_name(item, "op1")
    if data is None or scale is None or other is None or first is None or second is None:
        return None
    inner = Apply(first, (scale, data) if item.arguments.get("reverse0", False) else (data, scale))
    return Apply(second, (other, inner) if item.arguments.get("reverse1", False) else (inner, other))


def _reciprocal_expression(item: Statement) -> Expression | None:
    data = _operand_expression(item, "data")
    return None if data is None else Apply("reciprocal", (data,))


def _exponential_expression(item: Statement) -> Expression | None:
    src, shift = _operand_expression(item, "src"), _operand_expression(item, "max_value")
    if src is None or ("max_value" in item.texts and shift is None):
        return None
    return Apply("exp", (src if shift is None else Apply("subtract", (src, shift)),))


def _copy_expression(item: Statement) -> Expression | None:
    src, dst = item.find_access("src"), item.find_access("dst")
    same = src is not None and dst is not None and src.tensor.dtype == dst.tensor.dtype
    return _operand_expression(item, "src") if same else None


def memset_value(item: Statement) -> float | None:
    """The number that an instruction fills a tile with."""
    return _as_float(item.arguments.get("value")) if item.op == "memset" else None


_PLAIN_ARGUMENTS = {
    "memset": frozenset({"dst", "value"}),
    "activation": frozenset({"dst", "op", "data", "bias", "scale"}),
    "tensor_scalar": frozenset({"dst", "data", "op0", "operand0", "reverse0", "op1", "operand1", "reverse1"}),
    "tensor_tensor": frozenset({"dst", "data1", "data2", "op"}),
    "scalar_tensor_tensor": frozenset(
        {"dst", "data", "op0", "operand0", "op1", "operand1", "reverse0", "reverse1"}
    ),
    "tensor_reduce": frozenset({"dst", "op", "data", "axis", "negate"}),
    "reciprocal": frozenset({"dst", "data"}),
    "exponential": frozenset({"dst", "src", "max_value"}),
    "tensor_copy": frozenset({"dst", "src"}),
}
_EXPRESSION_RULES = {
    "activation": _activation_expression,
    "tensor_scalar": _tensor_scalar_expression,
    "tensor_tensor": _tensor_tensor_expression,
    "scalar_tensor_tensor": _scalar_tensor_tensor_expression,
    "reciprocal": _reciprocal_expression,
    "exponential": _exponential_expression,
    "tensor_copy": _copy_expression,
    "memset": memset_value,
}


def find_unused_after(kernel: Kernel, root: Statement, kept: frozenset[int]) -> frozenset[Statement]:
    """The statements that nothing needs once `root` no longer reads its inputs, declarations included.

    `kept` are ids of tensors that the new form of `root` still reads.
    """
    gone: set[Statement] = set()
    pending = [access.tensor for access in root.accesses if not access.writes]
    while pending:
        tensor = pending.pop()
        declared = kernel.declarations.get(tensor.id)
        users = [item for item in kernel.users_of(tensor) if item not in gone and item is not root]
        stays = tensor.id in kept or tensor.id in kernel.escaping_ids
        if stays or declared is None or not tensor.is_on_chip or declared in gone:
            continue
        if any(_reads_tensor(item, tensor) or _writes_other_tensor(item, tensor) for item in users):
            continue
        gone.update(users)
        gone.add(declared)
        pending.extend(access.tensor for item in users for access in item.accesses if not access.writes)
    return frozenset(gone)


def _reads_tensor(item: Statement, tensor: Tensor) -> bool:
    return any(not access.writes and access.tensor.id == tensor.id for access in item.accesses)


def _writes_other_tensor(item: Statement, tensor: Tensor) -> bool:
    return any(access.writes and access.tensor.id != tensor.id for access in item.accesses)
