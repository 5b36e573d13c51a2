"""Element-wise chains as expressions: what a tile holds, in terms of the tiles it was made from.

A tile that one instruction writes whole, once per declaration, stands for an expression; chains of such
tiles compose. Recognising a known function in an expression is then a matter of matching shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

from targets.nki.rewrites.instructions import HINTS
from targets.nki.rewrites.model import Kernel, Statement
from targets.nki.rewrites.values import Affine, Symbol, Tensor, Value, View


@dataclass(frozen=True, slots=True)
class Leaf:
    """A view that is taken as it is; `text` is how the source spells it."""

    view: View
    text: str


@dataclass(frozen=True, slots=True)
class Apply:
    """A function of expressions and numbers."""

    function: str
    operands: tuple[Expression, ...]


Expression = Leaf | Apply | float


def negated(expression: Expression) -> Expression | None:
    """The z of an expression that is -z."""
    match expression:
        case (
            Apply("multiply", (inner, -1.0)) | Apply("multiply", (-1.0, inner)) | Apply("negative", (inner,))
        ):
            return inner
    return None


def sole_writer(kernel: Kernel, tensor: Tensor) -> Statement | None:
    """The one instruction that writes a tensor, whole, in the block that declares it."""
    writers = [item for item in kernel.users(tensor) if item.writes(tensor)]
    declared = kernel.declarations.get(tensor.id)
    if len(writers) != 1 or declared is None or tensor.copies or tensor.id in kernel.escaping:
        return None
    item = writers[0]
    written = next(access for access in item.accesses if access.writes and access.tensor.id == tensor.id)
    same_place = item.path == declared.path and item.guards == declared.guards
    filled = written.view.whole and written.view.plain and written.role == "dst" and not written.reads
    return item if same_place and filled else None


def is_plain(item: Statement) -> bool:
    """Whether an instruction has no arguments but those that its expression is made of."""
    return item.texts.keys() <= _WORDS.get(item.op, frozenset()) | HINTS | {"engine"}


def computed(item: Statement) -> Expression | None:
    """What an element-wise instruction computes, one step deep; None when it is not element-wise."""
    rule = _RULES.get(item.op)
    return rule(item) if rule is not None and is_plain(item) else None


def expanded(kernel: Kernel, expression: Expression, at: Statement) -> Expression:
    """The expression with tiles replaced by what they were computed from, as far as that can be seen."""
    if isinstance(expression, Apply):
        return Apply(expression.function, tuple(expanded(kernel, item, at) for item in expression.operands))
    if not isinstance(expression, Leaf) or not expression.view.whole or not expression.view.plain:
        return expression
    writer = sole_writer(kernel, expression.view.tensor)
    if writer is None or writer.path != at.path or writer.order >= at.order:
        return expression
    if expression.view.tensor.dtype != "float32":
        return expression
    inner = computed(writer)
    if inner is None or not _unchanged(kernel, inner, writer, at):
        return expression
    return expanded(kernel, inner, writer)


def _unchanged(kernel: Kernel, expression: Expression, writer: Statement, at: Statement) -> bool:
    """Whether what the writer read still holds the same at a later statement of the same block."""
    if isinstance(expression, Apply):
        return all(_unchanged(kernel, item, writer, at) for item in expression.operands)
    if not isinstance(expression, Leaf):
        return True
    tensor = expression.view.tensor
    return not (kernel.changes(tensor, writer, at) or kernel.rebinds(expression.text, writer, at))


def _number(value: Value) -> float | None:
    if isinstance(value, Affine):
        return float(value.const) if value.is_const else None
    return value if isinstance(value, float) else None


def _operand(item: Statement, role: str) -> Expression | None:
    access = item.access(role)
    if access is not None:
        return Leaf(access.view, item.texts[role])
    return _number(item.arguments.get(role))


def _symbol(item: Statement, role: str) -> str | None:
    value = item.arguments.get(role)
    return value.leaf if isinstance(value, Symbol) else None


def _activation(item: Statement) -> Expression | None:
    data, function = _operand(item, "data"), _symbol(item, "op")
    if data is None or function is None:
        return None
    for role, step in (("scale", "multiply"), ("bias", "add")):
        if role in item.texts:
            value = _operand(item, role)
            if value is None:
                return None
            data = Apply(step, (data, value))
    return Apply(function, (data,))


def _tensor_scalar(item: Statement) -> Expression | None:
    data = _operand(item, "data")
    for step in ("0", "1"):
        function = _symbol(item, f"op{step}")
        if function is None:
            continue
        value = _operand(item, f"operand{step}")
        if data is None or value is None:
            return None
        swapped = item.arguments.get(f"reverse{step}", False)
        data = Apply(function, (value, data) if swapped else (data, value))
    return data


def _tensor_tensor(item: Statement) -> Expression | None:
    first, second, function = _operand(item, "data1"), _operand(item, "data2"), _symbol(item, "op")
    return None if first is None or second is None or function is None else Apply(function, (first, second))


def _scalar_tensor_tensor(item: Statement) -> Expression | None:
    data, scale, other = (_operand(item, role) for role in ("data", "operand0", "operand1"))
    first, second = _symbol(item, "op0"), _symbol(item, "op1")
    if data is None or scale is None or other is None or first is None or second is None:
        return None
    inner = Apply(first, (scale, data) if item.arguments.get("reverse0", False) else (data, scale))
    return Apply(second, (other, inner) if item.arguments.get("reverse1", False) else (inner, other))


def _reciprocal(item: Statement) -> Expression | None:
    data = _operand(item, "data")
    return None if data is None else Apply("reciprocal", (data,))


def _copy(item: Statement) -> Expression | None:
    src, dst = item.access("src"), item.access("dst")
    same = src is not None and dst is not None and src.tensor.dtype == dst.tensor.dtype
    return _operand(item, "src") if same else None


_WORDS = {
    "activation": frozenset({"dst", "op", "data", "bias", "scale"}),
    "tensor_scalar": frozenset({"dst", "data", "op0", "operand0", "reverse0", "op1", "operand1", "reverse1"}),
    "tensor_tensor": frozenset({"dst", "data1", "data2", "op"}),
    "scalar_tensor_tensor": frozenset(
        {"dst", "data", "op0", "operand0", "op1", "operand1", "reverse0", "reverse1"}
    ),
    "tensor_reduce": frozenset({"dst", "op", "data", "axis", "negate"}),
    "reciprocal": frozenset({"dst", "data"}),
    "tensor_copy": frozenset({"dst", "src"}),
}
_RULES = {
    "activation": _activation,
    "tensor_scalar": _tensor_scalar,
    "tensor_tensor": _tensor_tensor,
    "scalar_tensor_tensor": _scalar_tensor_tensor,
    "reciprocal": _reciprocal,
    "tensor_copy": _copy,
}


def unused_after(kernel: Kernel, root: Statement, kept: frozenset[int]) -> frozenset[Statement]:
    """What nobody needs once `root` no longer reads its inputs: their writers and declarations, and so on.

    `kept` are ids of tensors that the new form of `root` still reads.
    """
    gone: set[Statement] = set()
    pending = [access.tensor for access in root.accesses if not access.writes]
    while pending:
        tensor = pending.pop()
        declared = kernel.declarations.get(tensor.id)
        users = [item for item in kernel.users(tensor) if item not in gone and item is not root]
        stays = tensor.id in kept or tensor.id in kernel.escaping
        if stays or declared is None or not tensor.on_chip or declared in gone:
            continue
        if any(_reads(item, tensor) or _writes_other(item, tensor) for item in users):
            continue
        gone.update(users)
        gone.add(declared)
        pending.extend(access.tensor for item in users for access in item.accesses if not access.writes)
    return frozenset(gone)


def _reads(item: Statement, tensor: Tensor) -> bool:
    return any(not access.writes and access.tensor.id == tensor.id for access in item.accesses)


def _writes_other(item: Statement, tensor: Tensor) -> bool:
    return any(access.writes and access.tensor.id != tensor.id for access in item.accesses)
