"""A call is worked out once for what it says and what its names mean, and again when either changes."""

from __future__ import annotations

import pytest

from targets.nki.rewrites import instruction_calls
from targets.nki.rewrites.kernel_ir import ArrayArgument, Kernel, Statement, StatementKind
from targets.nki.rewrites.reader import read_kernel
from tests.support.kernels import HEADER, TARGET

BODY = """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range({trips}):
        a = nl.ndarray((128, 64), dtype={dtype}, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x[:, i // 4 * 64 : i // 4 * 64 + 64])
        nisa.tensor_scalar(dst=a, data=a, op0=nl.multiply, operand0=s)
        nisa.dma_copy(dst=out[:, 0:64], src=a)
    return out
"""


def kernel(*, trips: int = 4, dtype: str = "nl.float32", scale: str = "s = 2.0") -> Kernel:
    source = f"{HEADER}\n{scale}\n{BODY.format(trips=trips, dtype=dtype)}"
    return read_kernel(source, [ArrayArgument((128, 256), "float32")], TARGET)


def find_scaled_call(made: Kernel) -> Statement:
    return next(item for item in made.operations() if item.op == "tensor_scalar")


def unread(made: Kernel) -> int:
    return sum(item.kind is StatementKind.OPAQUE for item in made.statements)


def test_what_is_said_again_is_not_worked_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = kernel(scale="s = 2")
    monkeypatch.delattr(instruction_calls, "make_form")
    again = kernel(scale="s = 2")
    assert [item.form for item in again.operations()] == [item.form for item in first.operations()]
    assert [item.accesses for item in again.operations()] == [item.accesses for item in first.operations()]


def test_another_tile_of_the_same_name_is_another_call() -> None:
    wide, narrow = find_scaled_call(kernel()), find_scaled_call(kernel(dtype="nl.bfloat16"))
    assert (wide.accesses[0].tensor.dtype, narrow.accesses[0].tensor.dtype) == ("float32", "bfloat16")
    assert wide.texts == narrow.texts
    assert wide.form != narrow.form


def test_a_flag_is_not_taken_for_the_number_that_it_equals() -> None:
    number = kernel(scale="s = 1.0")
    assert find_scaled_call(number).arguments["operand0"] == 1.0
    assert unread(number) == 0
    assert unread(kernel(scale="s = True")) == 1


def test_an_index_is_told_apart_by_the_iterations_of_its_loop() -> None:
    """The quotient is the same for all iterations only in a loop that ends before the divisor."""
    assert unread(kernel(trips=4)) == 0
    assert unread(kernel(trips=6)) == 1


def test_no_more_calls_are_kept_than_a_long_kernel_has(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[object, instruction_calls.InstructionCall] = {}
    monkeypatch.setattr(instruction_calls, "MAX_CACHED_CALLS", 5)
    monkeypatch.setattr(instruction_calls, "_call_cache", known)
    for trips in range(1, 5):
        kernel(trips=trips)
        assert 0 < len(known) <= 5
