"""Loops: those with bounds known while tracing are unrolled, the others run on the device.

A device loop is a `loop_begin` and a `loop_end` around one recording of its body. It runs while a condition
register is not 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from nki_sim.frontend import registers
from nki_sim.frontend.recorder import current_recorder
from nki_sim.frontend.registers import NkiScalar, VirtualRegister
from nki_sim.frontend.storage import fail
from nki_sim.frontend.tensor import Tensor


def affine_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Plain `range`; iterations are unrolled."""
    return range(start) if stop is None else range(start, stop, step)


sequential_range = static_range = affine_range


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any], Any], step: int = 1) -> None:
    """`body_fun(i)` for i from `lower` below `upper`; a bound is an integer, a register or a 32-bit scalar.

    `i` is a register when a bound is one, else a scalar. State from one iteration to the next lives in
    tensors; the body returns nothing.
    """
    _check_step("fori_loop", step)
    as_register = isinstance(lower, VirtualRegister) or isinstance(upper, VirtualRegister)
    first, last = _loop_bound(lower), _loop_bound(upper)
    if isinstance(first, int) and isinstance(last, int):
        for value in range(first, last, step):
            _call_body(body_fun, NkiScalar(value))
        return
    for counter in _count_on_device(first, last, step):
        # By value: changes of the variable in the body do not affect the loop.
        copy = registers.copy_to_register(counter)
        _call_body(body_fun, VirtualRegister(copy) if as_register else NkiScalar(copy))


def _call_body(body: Callable[[Any], Any], variable: Any) -> None:
    if body(variable) is not None:
        fail("loop_result", "the body of nl.fori_loop returns a value", "carry state in SBUF or HBM tensors")


def dynamic_range(start: Any, stop: Any = None, step: int = 1) -> Iterator[Any]:
    """The loop of releases before 0.7: `for i in nl.dynamic_range(register)`.

    With bounds known while tracing it is `range`. Otherwise the body is traced once. Leaving it with `break`
    or `return` is refused when the kernel ends, because the loop is then not closed.
    """
    _check_step("dynamic_range", step)
    lower, upper = (0, start) if stop is None else (start, stop)
    first, last = _loop_bound(lower), _loop_bound(upper)
    if isinstance(first, int) and isinstance(last, int):
        return iter(range(first, last, step))
    return (VirtualRegister(counter, frozen=True) for counter in _count_on_device(first, last, step))


def _count_on_device(first: int | Tensor, last: int | Tensor, step: int) -> Iterator[Tensor]:
    """Yield the counter of a device loop; the body runs before the next value is requested."""
    counter = registers.copy_to_register(first)
    end = registers.copy_to_register(last) if isinstance(last, Tensor) else last
    condition = registers.compute_register("less", counter, end)
    _mark_loop("loop_begin", condition)
    yield counter
    registers.set_register(counter, registers.compute_register("add", counter, step))
    registers.set_register(condition, registers.compute_register("less", counter, end))
    _mark_loop("loop_end", condition)


def while_loop(init: VirtualRegister, body_fun: Callable[[VirtualRegister], VirtualRegister]) -> None:
    """`r = init; while r != 0: r = body_fun(r)`, with the condition in a register."""
    condition = registers.copy_to_register(_condition_register("init", init))
    _mark_loop("loop_begin", condition)
    found = body_fun(VirtualRegister(registers.copy_to_register(condition)))
    registers.set_register(condition, _condition_register("what the body returns", found))
    _mark_loop("loop_end", condition)


def _condition_register(what: str, value: Any) -> Tensor:
    if isinstance(value, NkiScalar):
        return value._to_register()
    if not isinstance(value, VirtualRegister):
        fail(
            "loop_condition", f"nl.while_loop: {what} is {type(value).__name__}, not a register",
            "load the condition with nisa.register_load and return the register",
        )  # fmt: skip
    return value._tensor


def _mark_loop(name: str, condition: Tensor) -> None:
    recorder = current_recorder()
    if recorder.ordered:
        fail(
            "loop_in_no_reorder",
            "loops of the device cannot stand in nl.no_reorder()",
            "put it into the body",
        )
    recorder.mark_loop(name, condition)


def _check_step(what: str, step: Any) -> None:
    if type(step) is not int or step < 1:
        fail("loop_step", f"nl.{what}: step is {step!r}, it must be a positive integer known while tracing")


def _loop_bound(value: Any) -> int | Tensor:
    if isinstance(value, NkiScalar) and value._dtype_name != "int32":
        fail("scalar_width", f"a loop is bounded by a scalar of {value._dtype_name}", "bounds have 32 bits")
    if isinstance(value, NkiScalar | VirtualRegister):
        return value._as_operand()
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        fail(
            "loop_bound", f"a loop is bounded by {type(value).__name__}", "an integer, a register or a scalar"
        )
    return int(value)


class no_reorder:  # noqa: N801  the documented spelling
    """`with nl.no_reorder():` keeps program order inside, which the simulator always does."""

    def __enter__(self) -> None:
        current_recorder().ordered += 1

    def __exit__(self, *_: object) -> None:
        current_recorder().ordered -= 1
