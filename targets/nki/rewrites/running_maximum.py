"""Running maxima: how the values of a loop depend on the maximum so far, as in an online softmax.

The loop's instructions are followed once. Each tile is either independent of the maximum, or a shifted value
`new * N + old * P + (something independent)`, or a scaled value: the exponential of a shifted one, times
something independent. P is the maximum before an iteration, N the one after it. A sum is rescaled rightly
if it is multiplied by exactly `exp(d * (N - P))` and its terms are scaled by `exp(d * N)`: then it has the
same value as a sum of terms that are scaled by the last maximum from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import libcst as cst

from targets.nki.rewrites import syntax
from targets.nki.rewrites.instructions import HINTS
from targets.nki.rewrites.kernel_ir import Access, Kernel, Loop, Node, Statement, StatementKind
from targets.nki.rewrites.transform import RewriteRefused
from targets.nki.rewrites.values import LibrarySymbol, Tensor


@dataclass(frozen=True, slots=True)
class Shifted:
    """`new * N + old * P`, and something independent of both unless it is `pure`."""

    new: float
    old: float
    pure: bool


@dataclass(frozen=True, slots=True)
class Scaled:
    """`exp(new * N + old * P)`, times something independent of both unless it is `pure`."""

    new: float
    old: float
    pure: bool


@dataclass(frozen=True, slots=True)
class RunningSum:
    """A sum that an iteration finds scaled by P; `degree` is known once it is rescaled to N."""

    tensor: int
    degree: float | None = None


ZERO, FREE = 0.0, None
Dependence = Shifted | Scaled | RunningSum | float | None
"""FREE is independent of the maximum; a float is that number everywhere."""


@dataclass(frozen=True, eq=False)
class RescaledSums:
    """A loop with a running maximum in `peak`, which `update` takes of the old one and of `part`."""

    kernel: Kernel
    loop: Loop
    peak: Tensor
    update: Statement
    old: Access
    """The operand of `update` that is the old maximum."""
    renamed: tuple[Tensor, ...]
    """Tiles that hold the new maximum, beside `peak`."""
    copies: tuple[Tensor, ...]
    """Tiles that hold the old maximum, beside `peak`."""
    dropped: frozenset[Statement]
    replaced: Mapping[Statement, cst.BaseStatement]
    """Instructions that also rescale, and what they do otherwise."""

    def write_update(self) -> cst.BaseStatement:
        """The instruction that takes the maximum, from and to `peak`."""
        words: dict[str, str | None] = {"dst": self.peak.name, self.old.role: self.peak.name}
        return syntax.replace_arguments(self.update.node, words)


def read_rescaled_sums(kernel: Kernel, loop: Loop) -> RescaledSums:
    """Follow a loop's instructions.

    Raises:
        RewriteRefused: it keeps no running maximum, or uses it otherwise than to scale terms and sums.
    """
    peaks = dict.fromkeys(_changed_tiles(kernel, loop))
    reason = f"the loop over {loop.var} keeps no running maximum"
    for peak in peaks:
        try:
            return _Reader(kernel, loop, peak).read()
        except RewriteRefused as refusal:
            reason = str(refusal)
    raise RewriteRefused(reason)


def _changed_tiles(kernel: Kernel, loop: Loop) -> Iterator[Tensor]:
    """Tiles on chip from outside a loop that its body changes."""
    for item in kernel.operations():
        if loop not in item.path:
            continue
        for access in item.accesses:
            declared = kernel.declarations.get(access.tensor.id)
            if declared is None or not access.writes or not access.tensor.is_on_chip:
                continue
            if declared.path == loop.path[: len(declared.path)]:
                yield access.tensor


@dataclass(eq=False)
class _Reader:
    kernel: Kernel
    loop: Loop
    peak: Tensor
    values: dict[int, Dependence] = field(default_factory=dict)
    update: tuple[Statement, Access] | None = None
    dropped: set[Statement] = field(default_factory=set)
    replaced: dict[Statement, cst.BaseStatement] = field(default_factory=dict)
    rescaled: set[int] = field(default_factory=set)

    def read(self) -> RescaledSums:
        self.values[self.peak.id] = Shifted(0, 1, pure=True)
        outside = {tensor.id: tensor for tensor in _changed_tiles(self.kernel, self.loop)}
        outside.pop(self.peak.id)
        for key in outside:
            self.values[key] = RunningSum(key)
        self._read_nodes(self.loop.body)
        if self.update is None or self.values[self.peak.id] != Shifted(1, 0, pure=True):
            raise RewriteRefused(
                f"the loop over {self.loop.var} keeps no running maximum in {self.peak.name}"
            )
        self._check_sums(outside)
        update, old = self.update
        return RescaledSums(
            self.kernel,
            self.loop,
            self.peak,
            update,
            old,
            tuple(self._tiles_with(Shifted(1, 0, pure=True))),
            tuple(self._tiles_with(Shifted(0, 1, pure=True))),
            frozenset(self.dropped),
            self.replaced,
        )

    def _tiles_with(self, value: Shifted) -> Iterator[Tensor]:
        for key, held in self.values.items():
            if held == value and key != self.peak.id:
                declared = self.kernel.declarations[key]
                assert declared.tensor is not None
                yield declared.tensor

    def _check_sums(self, outside: Mapping[int, Tensor]) -> None:
        """Check that sums begin with zero and are rescaled, and that nothing has a second name."""
        if not self.rescaled:
            raise RewriteRefused(f"nothing is rescaled in the loop over {self.loop.var}")
        for key, tensor in {**outside, self.peak.id: self.peak}.items():
            if tensor.id in self.kernel.escaping_ids or tensor.copies:
                raise RewriteRefused(f"{tensor.name} has a second name, or is a list")
            before = [
                item
                for item in self.kernel.users_of(tensor)
                if self.loop not in item.path and item.order < self.loop_order and item.writes_tensor(tensor)
            ]
            is_filled = [item for item in before if item.op == "memset" and item.path == self.loop.path]
            if before != is_filled or not before:
                raise RewriteRefused(f"{tensor.name} does not begin with a number")
            if key == self.peak.id:
                continue
            if key not in self.rescaled or before[-1].arguments.get("value") != ZERO:
                raise RewriteRefused(f"{tensor.name} is not rescaled, or does not begin with zero")
            held = self.values[key]
            if not isinstance(held, RunningSum) or held.tensor != key or held.degree is None:
                raise RewriteRefused(f"{tensor.name} is not rescaled in each iteration")

    @property
    def loop_order(self) -> int:
        return min(item.order for item in self.kernel.statements if self.loop in item.path)

    def _read_nodes(self, nodes: list[Node]) -> None:
        for node in nodes:
            if isinstance(node, Loop):
                # The second time sees what the first one left.
                self._read_nodes(node.body)
                self._read_nodes(node.body)
            elif isinstance(node, Statement) and node.kind is StatementKind.OPERATE:
                self._read_instruction(node)

    def _value(self, access: Access | None) -> Dependence:
        return self.values.get(access.tensor.id, FREE) if access is not None else FREE

    def _read_instruction(self, item: Statement) -> None:
        depends = any(access.reads and self._value(access) is not FREE for access in item.accesses) or any(
            access.writes and isinstance(self._value(access), RunningSum | Shifted | Scaled)
            for access in item.accesses
        )
        if item.op == "memset":
            dst = item.find_access("dst")
            value = item.arguments.get("value")
            self._set(item, dst, float(value) if isinstance(value, int | float) else FREE)
            return
        if not depends:
            for access in item.accesses:
                if access.writes:
                    self._set(item, access, FREE)
            return
        rule = _RULES.get(item.op)
        if rule is None:
            raise self._refuse(item)
        rule(self, item)

    def _refuse(self, item: Statement) -> RewriteRefused:
        return RewriteRefused(f"{item.op} uses the running maximum otherwise than to scale terms and sums")

    def _set(self, item: Statement, access: Access | None, value: Dependence) -> None:
        """Note what an instruction writes."""
        if access is None:
            raise self._refuse(item)
        key = access.tensor.id
        held = self.values.get(key, FREE)
        if not access.tensor.is_on_chip and value is not FREE:
            raise RewriteRefused(f"{item.op} stores what depends on the running maximum")
        declared = self.kernel.declarations.get(key)
        is_carried = declared is None or self.loop not in declared.path
        if is_carried and key != self.peak.id and isinstance(held, RunningSum):
            if value == held and item.op != "memset":
                pass
            elif not isinstance(value, RunningSum) or value.tensor != key or value.degree is None:
                raise RewriteRefused(f"{access.tensor.name} is no sum that is rescaled")
        elif is_carried and key != self.peak.id and value is not FREE:
            raise RewriteRefused(
                f"{access.tensor.name} outlives the loop, and depends on the running maximum"
            )
        elif not access.view.is_whole and held not in (value, FREE, ZERO) and value not in (FREE, ZERO):
            raise RewriteRefused(f"{access.tensor.name} holds several kinds of values")
        elif not access.view.is_whole and value in (FREE, ZERO) and held not in (FREE, ZERO):
            return
        if key == self.peak.id and value not in (Shifted(0, 1, pure=True), Shifted(1, 0, pure=True)):
            raise RewriteRefused(f"{access.tensor.name} is no running maximum")
        self.values[key] = value
        if isinstance(value, Shifted | Scaled) and value.old:
            self._drop(item)
        if key == self.peak.id and item.op == "tensor_copy":
            self._drop(item)

    def _drop(self, item: Statement) -> None:
        if item.path[-1] is not self.loop:
            raise self._refuse(item)
        self.dropped.add(item)

    # --- what instructions do ---------------------------------------------------------------------------

    def copy(self, item: Statement) -> None:
        """A copy, also with its axes in another order."""
        source = item.find_access("src") or item.find_access("data")
        self._set(item, item.find_access("dst"), self._value(source))
        held = self._value(source)
        dst = item.find_access("dst")
        if held == Shifted(1, 0, pure=True) and dst is not None and dst.tensor.id != self.peak.id:
            self._drop(item)

    def reduce(self, item: Statement) -> None:
        value = self._value(item.find_access("data"))
        if _leaf(item, "op") != "add" or not isinstance(value, Scaled):
            raise self._refuse(item)
        self._set(item, item.find_access("dst"), replace(value, pure=False))

    def activate(self, item: Statement) -> None:
        """exp, or a copy, of `data * scale + bias`, perhaps summed."""
        known = {"dst", "op", "data", "bias", "scale", "reduce_op", "reduce_res", "reduce_cmd", "engine"}
        scale = item.arguments.get("scale", 1.0)
        if not item.texts.keys() <= known | HINTS or not isinstance(scale, int | float):
            raise self._refuse(item)
        value = self._multiply(item, self._value(item.find_access("data")), float(scale))
        if item.find_access("bias") is not None:
            value = self._add(item, value, self._value(item.find_access("bias")), 1)
        elif item.arguments.get("bias", 0.0) not in (0.0, None):
            value = self._add(item, value, FREE, 1)
        match _leaf(item, "op"), value:
            case "exp", Shifted(new, old, pure):
                value = Scaled(new, old, pure)
            case "copy" | "identity", Scaled() | Shifted():
                pass
            case _:
                raise self._refuse(item)
        self._set(item, item.find_access("dst"), value)
        result = item.find_access("reduce_res")
        if result is not None:
            if _leaf(item, "reduce_op") != "add" or not isinstance(value, Scaled):
                raise self._refuse(item)
            if "reduce_cmd" in item.texts and _leaf(item, "reduce_cmd") != "reset_reduce":
                raise self._refuse(item)
            self._set(item, result, replace(value, pure=False))

    def combine(self, item: Statement) -> None:
        """tensor_tensor."""
        first, second = item.find_access("data1"), item.find_access("data2")
        name = _leaf(item, "op")
        if not item.texts.keys() <= {"dst", "data1", "data2", "op", "engine"} | HINTS:
            raise self._refuse(item)
        a, b = self._value(first), self._value(second)
        for old, other, held in ((first, b, a), (second, a, b)):
            if name in {"maximum", "minimum"} and held == Shifted(0, 1, pure=True) and other is FREE:
                assert old is not None
                self._note_update(item, old)
                return
        self._set(item, item.find_access("dst"), self._apply(item, name, a, b))
        for total, factor in ((first, b), (second, a)):
            if name == "multiply" and self._is_rescaling(total, factor):
                assert total is not None
                self._replace_rescaling(item, total, {})

    def scale_columns(self, item: Statement) -> None:
        """tensor_scalar: one operation with a number for each partition, or two."""
        known = {"dst", "data", "op0", "operand0", "reverse0", "op1", "operand1", "reverse1", "engine"}
        if not item.texts.keys() <= known | HINTS:
            raise self._refuse(item)
        data, operand = item.find_access("data"), item.find_access("operand0")
        a, name = self._value(data), _leaf(item, "op0")
        if (
            name in {"maximum", "minimum"}
            and "op1" not in item.texts
            and operand is not None
            and a is FREE
            and self._value(operand) == Shifted(0, 1, pure=True)
        ):
            self._note_update(item, operand)
            return
        value = self._apply_operand(item, a, 0)
        middle = value
        if "op1" in item.texts:
            value = self._apply_operand(item, value, 1)
        self._set(item, item.find_access("dst"), value)
        if (
            name == "multiply"
            and self._is_rescaling(data, self._value(operand))
            and isinstance(middle, RunningSum)
        ):
            assert data is not None
            more = {"op": item.texts["op1"], "data2": item.texts["operand1"]} if "op1" in item.texts else {}
            second = item.find_access("operand1")
            if more and (
                second is None or second.view.shape != data.view.shape or item.texts.get("reverse1")
            ):
                raise self._refuse(item)
            self._replace_rescaling(item, data, more)

    def scale_and_combine(self, item: Statement) -> None:
        """scalar_tensor_tensor: (data op0 operand0) op1 operand1."""
        known = {"dst", "data", "op0", "operand0", "op1", "operand1", "engine"}
        if not item.texts.keys() <= known | HINTS:
            raise self._refuse(item)
        data, operand = item.find_access("data"), item.find_access("operand0")
        a = self._value(data)
        middle = self._apply_operand(item, a, 0)
        value = self._apply(item, _leaf(item, "op1"), middle, self._value(item.find_access("operand1")))
        rescales = _leaf(item, "op0") == "multiply" and self._is_rescaling(data, self._value(operand))
        self._set(item, item.find_access("dst"), value)
        if rescales and data is not None:
            self._replace_rescaling(item, data, {"data2": item.texts["operand1"], "op": item.texts["op1"]})

    def product(self, item: Statement) -> None:
        """nc_matmul."""
        values = [self._value(item.find_access(role)) for role in ("stationary", "moving")]
        scaled = [value for value in values if isinstance(value, Scaled)]
        if len(scaled) != 1 or values[1 - values.index(scaled[0])] is not FREE:
            raise self._refuse(item)
        self._set(item, item.find_access("dst"), replace(scaled[0], pure=False))

    # --- their parts --------------------------------------------------------------------------------

    def _note_update(self, item: Statement, old: Access) -> None:
        if self.update not in (None, (item, old)) or item.path[-1] is not self.loop:
            raise self._refuse(item)
        dst = item.find_access("dst")
        if dst is None or not (dst.view.is_whole and dst.view.plain and old.view.is_whole and old.view.plain):
            raise self._refuse(item)
        self.update = item, old
        self._set(item, dst, Shifted(1, 0, pure=True))

    def _is_rescaling(self, total: Access | None, factor: Dependence) -> bool:
        return (
            total is not None
            and isinstance(factor, Scaled)
            and factor.pure
            and bool(factor.old)
            and total.tensor.id in self.values
        )

    def _require_own(self, item: Statement) -> None:
        if item.path[-1] is not self.loop:
            raise self._refuse(item)

    def _replace_rescaling(self, item: Statement, total: Access, more: Mapping[str, str]) -> None:
        """Leave the factor out: keep the addition in `more`, copy the sum to another tile, or do nothing."""
        self._require_own(item)
        dst = item.find_access("dst")
        assert dst is not None
        nisa, words = self.kernel.nisa, {"dst": item.texts["dst"]}
        if more:
            words |= {"data1": item.texts[total.role], **more}
            self.replaced[item] = syntax.make_call(f"{nisa}.tensor_tensor", words)
        elif dst.tensor.id == total.tensor.id:
            self.dropped.add(item)
        else:
            words["src"] = item.texts[total.role]
            self.replaced[item] = syntax.make_call(f"{nisa}.tensor_copy", words)

    def _apply_operand(self, item: Statement, value: Dependence, number: int) -> Dependence:
        """One operation of tensor_scalar."""
        name, role = _leaf(item, f"op{number}"), f"operand{number}"
        access, given = item.find_access(role), item.arguments.get(role)
        other: Dependence = self._value(access)
        if access is None and isinstance(given, int | float):
            other = float(given)
        if item.arguments.get(f"reverse{number}"):
            return self._apply(item, name, other, value)
        return self._apply(item, name, value, other)

    def _apply(self, item: Statement, name: str | None, a: Dependence, b: Dependence) -> Dependence:
        if name == "multiply":
            return self._multiply(item, a, b)
        if name in {"add", "subtract"}:
            return self._add(item, a, b, 1 if name == "add" else -1)
        raise self._refuse(item)

    def _multiply(self, item: Statement, a: Dependence, b: Dependence) -> Dependence:
        if isinstance(a, float):
            a, b = b, a
        match a, b:
            case None, None:
                return FREE
            case ((None | float()), float()):
                return FREE
            case Shifted(new, old, pure), float():
                return Shifted(new * b, old * b, pure)
            case ((Scaled() as one), (None | float())):
                return one if b == 1.0 else replace(one, pure=False)
            case None, (Scaled() as one):
                return replace(one, pure=False)
            case Scaled(new, old, pure), Scaled(new2, old2, pure2):
                return Scaled(new + new2, old + old2, pure and pure2)
            case (RunningSum() as total, (Scaled() as by)) | ((Scaled() as by), RunningSum() as total):
                if total.degree is None and by.pure and by.old == -by.new and by.new:
                    self.rescaled.add(total.tensor)
                    return replace(total, degree=by.new)
        raise self._refuse(item)

    def _add(self, item: Statement, a: Dependence, b: Dependence, sign: int) -> Dependence:
        if b == ZERO and isinstance(b, float):
            return a
        if a == ZERO and isinstance(a, float) and sign > 0:
            return b
        match a, b:
            case Shifted(new, old, pure), Shifted(new2, old2, pure2):
                return Shifted(new + sign * new2, old + sign * old2, pure and pure2)
            case ((Shifted() as one), (None | float())):
                return replace(one, pure=False)
            case ((None | float()), Shifted(new, old, _)):
                return Shifted(sign * new, sign * old, pure=False)
            case Scaled(new, old, _), Scaled(new2, old2, _) if (new, old) == (new2, old2):
                return Scaled(new, old, pure=False)
            case RunningSum(_, degree) as total, Scaled(new, old, _) if degree == new and not old:
                return total
            case Scaled(new, old, _), RunningSum(_, degree) as total if (
                degree == new and not old and sign > 0
            ):
                return total
            case ((None | float()), (None | float())):
                return FREE
        raise self._refuse(item)


def _leaf(item: Statement, role: str) -> str | None:
    value = item.arguments.get(role)
    return value.leaf if isinstance(value, LibrarySymbol) else None


_RULES: Mapping[str, Callable[[_Reader, Statement], None]] = {
    "tensor_copy": _Reader.copy,
    "dma_copy": _Reader.copy,
    "nc_transpose": _Reader.copy,
    "tensor_reduce": _Reader.reduce,
    "activation": _Reader.activate,
    "activation_reduce": _Reader.activate,
    "tensor_tensor": _Reader.combine,
    "tensor_scalar": _Reader.scale_columns,
    "scalar_tensor_tensor": _Reader.scale_and_combine,
    "nc_matmul": _Reader.product,
}
