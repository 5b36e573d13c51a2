"""Integers that are known only when the kernel runs: virtual registers, and scalars computed from them.

A register is a tensor of one integer in the buffer `register`. A scalar whose value is known while tracing
(the variable of an unrolled loop) stays a number until an instruction needs it in a register.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from nki_sim.frontend.kernel_values import KernelValue
from nki_sim.frontend.recorder import current_recorder
from nki_sim.frontend.storage import fail
from nki_sim.frontend.tensor import Tensor
from nki_sim.operators import OPERATORS

_BITS = {"int32": 32, "int64": 64}


class VirtualRegister(KernelValue):
    """A 32-bit register; `frozen` if a loop owns it. Its value is unknown while tracing."""

    __slots__ = ("_frozen", "_tensor")

    def __init__(self, tensor: Tensor, *, frozen: bool = False) -> None:
        self._tensor = tensor
        self._frozen = frozen

    def _as_operand(self) -> Tensor:
        """The register as an operand of instructions and as an index."""
        return self._tensor

    def _describe(self) -> str:
        return f"<register {self._tensor.name}>"

    def _refuse_value(self, *_: object) -> NoReturn:
        fail(
            "dynamic_control_flow_not_supported",
            f"the value of register {self._tensor.name} is not known while tracing",
            "loop with nl.fori_loop or nl.while_loop; compute with nisa.scalar_load and scalars",
        )  # fmt: skip

    __bool__ = __int__ = __index__ = __float__ = __len__ = __iter__ = _refuse_value
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = _refuse_value
    __lt__ = __le__ = __gt__ = __ge__ = __mod__ = __floordiv__ = _refuse_value


class NkiScalar(KernelValue):
    """An integer of 32 or 64 bits for arithmetic with +, - and *; it wraps at its width.

    `_value` is a number if it is known, else the register that holds it.
    """

    __slots__ = ("_dtype_name", "_value")

    def __init__(self, value: int | Tensor, dtype_name: str = "int32") -> None:
        self._value = value
        self._dtype_name = dtype_name

    @property
    def dtype(self) -> Any:
        """`nl.int32` or `nl.int64`."""
        from nki_sim.dtypes import DTYPES

        return DTYPES[self._dtype_name]

    def _as_operand(self) -> int | Tensor:
        """The scalar as an index: a number if it is known."""
        return self._value

    def _to_register(self) -> Tensor:
        """Return a register that holds the scalar."""
        return (
            self._value
            if isinstance(self._value, Tensor)
            else copy_to_register(self._value, self._dtype_name)
        )

    def _describe(self) -> str:
        return f"<scalar {self._value!r}>"

    def _refuse_value(self, *_: object) -> NoReturn:
        fail(
            "dynamic_control_flow_not_supported", "a scalar has no value while the kernel is traced",
            "use it as scalar_offset=, as an index or as a bound of nl.fori_loop",
        )  # fmt: skip

    __bool__ = __int__ = __index__ = __float__ = __len__ = __iter__ = _refuse_value

    def _no_comparison(self, _: object) -> Any:
        fail(
            "scalar_comparison", "the result of comparing scalars cannot be used",
            "compute the condition in a tile and load it with nisa.register_load",
        )  # fmt: skip

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _no_comparison
    __hash__ = object.__hash__

    def _no_operator(self, *_: object) -> NoReturn:
        fail("scalar_operator", "scalars have +, - and * alone", "compute other functions on a tile")

    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _no_operator
    __pow__ = __lshift__ = __rshift__ = __and__ = __or__ = __xor__ = _no_operator

    def __add__(self, other: Any) -> NkiScalar:
        return _compute_scalar("add", self, other)

    def __radd__(self, other: Any) -> NkiScalar:
        return _compute_scalar("add", self, other)

    def __sub__(self, other: Any) -> NkiScalar:
        return _compute_scalar("subtract", self, other)

    def __rsub__(self, other: Any) -> NkiScalar:
        return _compute_scalar("add", -self, other)

    def __mul__(self, other: Any) -> NkiScalar:
        return _compute_scalar("multiply", self, other)

    def __rmul__(self, other: Any) -> NkiScalar:
        return _compute_scalar("multiply", self, other)

    def __neg__(self) -> NkiScalar:
        return _compute_scalar("multiply", self, -1)

    def __pos__(self) -> NkiScalar:
        return self


_FOLD: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
}


def _compute_scalar(op: str, left: NkiScalar, right: Any) -> NkiScalar:
    """`left op right` at the width of `left`: folded if both are known, else an instruction."""
    name = left._dtype_name
    other = right._value if isinstance(right, NkiScalar) else right
    if isinstance(other, bool) or not isinstance(other, int | Tensor):
        fail(
            "argument_type", f"a scalar {op} {type(right).__name__}: the other must be an integer or a scalar"
        )
    if isinstance(right, NkiScalar) and right._dtype_name != name:
        fail("scalar_width", f"a scalar of {name} {op} one of {right._dtype_name}", "load both in one type")
    if isinstance(left._value, int) and isinstance(other, int):
        return NkiScalar(_wrap_integer(_FOLD[op](left._value, other), _BITS[name]), name)
    return NkiScalar(compute_register(op, left._value, other, name), name)


def _wrap_integer(value: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (value + half) % (2 * half) - half


# -- instructions --------------------------------------------------------------------------------


def new_register(dtype: str = "int32", name: str | None = None) -> Tensor:
    """Make a register without a value."""
    return current_recorder().declare((1, 1), dtype, "register", name)


def copy_to_register(value: int | Tensor, dtype: str = "int32") -> Tensor:
    """Make a new register that holds a value."""
    register = new_register(dtype)
    set_register(register, value)
    return register


def set_register(dst: Tensor, value: int | Tensor) -> None:
    """Put a number or another register's value into a register."""
    current_recorder().emit(OPERATORS["register_move"], {"dst": dst, "src": value})


def compute_register(op: str, left: int | Tensor, right: int | Tensor, dtype: str = "int32") -> Tensor:
    """Make a new register with `left op right`."""
    register = new_register(dtype)
    current_recorder().emit(
        OPERATORS["register_alu"], {"dst": register, "left": left, "right": right, "op": _NamedFunction(op)}
    )
    return register


class _NamedFunction:
    """A function of the sequencers, by its name."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _NamedFunction) and other._name == self._name

    def __hash__(self) -> int:
        return hash(self._name)


# -- what kernels call ---------------------------------------------------------------------------


def register_alloc(x: Any = None) -> VirtualRegister:
    """Make a register: with a number it holds the number, with None it has no value yet.

    A tile of one element, which earlier releases accepted, is loaded.
    """
    register = VirtualRegister(new_register())
    if isinstance(x, Tensor):
        register_load(register, x)
    elif x is not None:
        register_move(register, x)
    return register


def register_move(dst: VirtualRegister, src: Any) -> None:
    """Put a constant or another register's value into a register."""
    if isinstance(src, NkiScalar):
        set_register(_writable_register("register_move", dst), src._value)
    elif isinstance(src, VirtualRegister):
        set_register(_writable_register("register_move", dst), src._tensor)
    else:
        set_register(_writable_register("register_move", dst), src)


def register_load(dst: VirtualRegister, src: Tensor) -> None:
    """Read a tensor of one element, in SBUF or HBM, into a register."""
    current_recorder().emit(
        OPERATORS["register_load"], {"dst": _writable_register("register_load", dst), "src": src}
    )


def register_store(dst: Tensor, src: Any) -> None:
    """Write a register to a tensor of one element, in SBUF or HBM."""
    if not isinstance(src, VirtualRegister | NkiScalar):
        fail("argument_type", f"nisa.register_store: src is {type(src).__name__}, not a register")
    source = src._to_register() if isinstance(src, NkiScalar) else src._tensor
    current_recorder().emit(OPERATORS["register_store"], {"dst": dst, "src": source})


def _writable_register(what: str, register: Any) -> Tensor:
    if not isinstance(register, VirtualRegister):
        fail("argument_type", f"nisa.{what}: dst is {type(register).__name__}, not a register")
    if register._frozen:
        fail(
            "frozen_register", f"nisa.{what} writes the variable of a loop",
            "copy it to a register of your own with nisa.register_move",
        )  # fmt: skip
    return register._tensor


def scalar_load(src: Tensor) -> NkiScalar:
    """Read a 1x1 tensor of int32 or int64, in SBUF or HBM, as a scalar of that width."""
    if not isinstance(src, Tensor) or src._storage.dtype not in _BITS:
        found = src._storage.dtype if isinstance(src, Tensor) else type(src).__name__
        fail("scalar_width", f"nisa.scalar_load of {found}", "the tensor is nl.int32 or nl.int64")
    register = new_register(src._storage.dtype)
    current_recorder().emit(OPERATORS["register_load"], {"dst": register, "src": src})
    return NkiScalar(register, src._storage.dtype)


def scalar_store(dst: Tensor, value: NkiScalar) -> None:
    """Write a scalar to a 1x1 tensor of its own width, in SBUF or HBM."""
    if not isinstance(value, NkiScalar):
        fail(
            "argument_type", f"nisa.scalar_store: value is {type(value).__name__}, not a scalar",
            "write constants with nisa.memset",
        )  # fmt: skip
    if not isinstance(dst, Tensor) or dst._storage.dtype != value._dtype_name:
        found = dst._storage.dtype if isinstance(dst, Tensor) else type(dst).__name__
        fail(
            "scalar_width",
            f"nisa.scalar_store of {value._dtype_name} to {found}",
            "store at the scalar's width",
        )
    current_recorder().emit(OPERATORS["register_store"], {"dst": dst, "src": value._to_register()})
