"""Registers, scalars and the loops they bound, against Python's own integers and loops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim.errors import KernelError
from nki_sim.frontend import isa as nisa
from nki_sim.frontend import language as nl
from nki_sim.frontend.api import jit, simulate
from tests.support.sweeps import scale_examples


@pytest.fixture(autouse=True, scope="module")
def _older_front_end() -> Iterator[None]:
    """It keeps loops over registers, which are tested beside those of today."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NKI_COMPILER_FRONTEND", "custom")
        yield


INT32 = st.integers(-(1 << 31), (1 << 31) - 1)


def wrapped(value: int, bits: int) -> int:
    return (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


def tile(shape: tuple[int, ...] = (1, 1), dtype: Any = nl.int32) -> Any:
    return nl.ndarray(shape, dtype, buffer=nl.sbuf)


def stored(scalar: Any, dtype: Any) -> Any:
    """An output that holds a scalar."""
    here = tile(dtype=dtype)
    nisa.scalar_store(here, scalar)
    out = nl.ndarray((1, 1), dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=here)
    return out


@jit
def arithmetic(numbers: Any) -> Any:
    a, b = nisa.scalar_load(numbers[0:1, 0:1]), nisa.scalar_load(numbers[0:1, 1:2])
    return stored(2 - (a * 3 + b - 1) * b + -a, numbers.dtype)


@settings(max_examples=scale_examples(20))
@given(a=INT32, b=INT32, wide=st.booleans())
def test_scalars_wrap_at_their_width(a: int, b: int, wide: bool) -> None:
    found = simulate(arithmetic)(np.array([[a, b]], np.int64 if wide else np.int32))
    assert int(found[0, 0]) == wrapped(2 - (a * 3 + b - 1) * b - a, 64 if wide else 32)


def test_scalars_known_while_tracing_are_numbers_until_stored() -> None:
    @jit
    def kernel(x: Any) -> Any:
        results = []

        def body(i: Any) -> None:
            results.append(i * 100_000 * 100_000 + 1)

        nl.fori_loop(1, 2, body)
        return stored(results[0], nl.int32)

    assert int(simulate(kernel)(np.zeros((1, 1), np.int32))[0, 0]) == 1410065409


@jit
def doubled(x: Any, bounds: Any, step: int, how: str) -> Any:
    """Doubles rows first, first + step, ... below last; both bounds are data."""
    out = nl.zeros(x.shape, x.dtype, buffer=nl.shared_hbm)
    here = tile((1, x.shape[1]), x.dtype)
    limits = tile((1, 2))
    nisa.dma_copy(dst=limits, src=bounds)

    def body(i: Any) -> None:
        nisa.dma_copy(dst=here, src=x.select(0, i))
        nisa.tensor_scalar(dst=here, data=here, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out.ap([[x.shape[1], 1], [1, x.shape[1]]], scalar_offset=i), src=here)

    if how == "scalar":
        nl.fori_loop(nisa.scalar_load(limits[:, 0:1]), nisa.scalar_load(limits[:, 1:2]), body, step)
        return out
    first, last = nisa.register_alloc(), nisa.register_alloc()
    nisa.register_load(first, limits[:, 0:1])
    nisa.register_load(last, limits[:, 1:2])
    if how == "register":
        nl.fori_loop(first, last, body, step)
    else:
        for i in nl.dynamic_range(first, last, step):
            body(i)
    return out


@settings(max_examples=scale_examples(30))
@given(
    first=st.integers(0, 8), last=st.integers(0, 8), step=st.integers(1, 3),
    how=st.sampled_from(["scalar", "register", "range"]),
)  # fmt: skip
def test_loops_between_bounds_found_in_data_are_pythons(first: int, last: int, step: int, how: str) -> None:
    x = np.arange(32, dtype=np.float32).reshape(8, 4) + 1
    wanted = np.zeros_like(x)
    for i in range(first, last, step):
        wanted[i] = 2 * x[i]
    found = simulate(doubled)(x, np.array([[first, last]], np.int32), step, how)
    assert found.tolist() == wanted.tolist()


def test_an_index_out_of_bounds_is_found_when_the_kernel_runs() -> None:
    with pytest.raises(KernelError) as caught:
        simulate(doubled)(np.ones((8, 4), np.float32), np.array([[7, 9]], np.int32), 1, "scalar")
    assert caught.value.code == "tensor_access_out_of_bound"


@jit
def halvings(number: Any) -> Any:
    """How often a number is subtracted from before it is 0, three at a time."""
    left, count = tile(), tile()
    nisa.dma_copy(dst=left, src=number)
    nisa.memset(dst=count, value=0)
    condition = nisa.register_alloc()
    nisa.register_load(condition, left)

    def body(register: Any) -> Any:
        nisa.tensor_scalar(dst=left, data=left, op0=nl.subtract, operand0=3.0)
        nisa.tensor_scalar(dst=count, data=count, op0=nl.add, operand0=1.0)
        nisa.register_load(register, left)
        return register

    nl.while_loop(condition, body)
    out = nl.ndarray((1, 1), nl.int32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=count)
    return out


@pytest.mark.parametrize("times", [0, 1, 5])
def test_while_loops_go_on_while_the_register_is_not_0(times: int) -> None:
    assert int(simulate(halvings)(np.array([[3 * times]], np.int32))[0, 0]) == times


def test_registers_hold_what_is_moved_into_them() -> None:
    @jit
    def kernel(x: Any) -> Any:
        a, b = nisa.register_alloc(7), nisa.register_alloc(x)
        nisa.register_move(a, b)
        here, out = tile(), nl.ndarray((1, 1), nl.int32, buffer=nl.shared_hbm)
        nisa.register_store(here, a)
        nisa.dma_copy(dst=out, src=here)
        return out

    assert int(simulate(kernel)(np.array([[-5]], np.int32))[0, 0]) == -5


def use(body: Any) -> Any:
    """A kernel around a body that gets a register, a scalar and a 64-bit scalar."""

    @jit
    def kernel(x: Any, wide: Any) -> Any:
        register = nisa.register_alloc(1)
        body(register, nisa.scalar_load(x), nisa.scalar_load(wide), x)
        return nl.zeros((1, 1), nl.float32, buffer=nl.shared_hbm)

    return simulate(kernel)(np.ones((1, 1), np.int32), np.ones((1, 1), np.int64))


def leave(*_: Any) -> None:
    for _i in nl.dynamic_range(nisa.register_alloc(3)):
        break


def in_order(register: Any, *_: Any) -> None:
    with nl.no_reorder():
        nl.fori_loop(0, register, lambda i: None)


def write_counter(register: Any, *_: Any) -> None:
    for i in nl.dynamic_range(register):
        nisa.register_move(i, 0)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (lambda r, s, w, x: bool(r), "dynamic_control_flow_not_supported"),
        (lambda r, s, w, x: range(r), "dynamic_control_flow_not_supported"),
        (lambda r, s, w, x: r + 1, "dynamic_control_flow_not_supported"),
        (lambda r, s, w, x: bool(s), "dynamic_control_flow_not_supported"),
        (lambda r, s, w, x: s < 3, "scalar_comparison"),
        (lambda r, s, w, x: s == 3, "scalar_comparison"),
        (lambda r, s, w, x: s // 2, "scalar_operator"),
        (lambda r, s, w, x: s + w, "scalar_width"),
        (lambda r, s, w, x: s + 1.5, "argument_type"),
        (lambda r, s, w, x: nl.fori_loop(0, w, print), "scalar_width"),
        (lambda r, s, w, x: nl.fori_loop(0, r, print, step=0), "loop_step"),
        (lambda r, s, w, x: nl.fori_loop(0, 2.5, print), "loop_bound"),
        (lambda r, s, w, x: nl.fori_loop(0, 2, lambda i: 3), "loop_result"),
        (lambda r, s, w, x: nl.while_loop(3, print), "loop_condition"),
        (lambda r, s, w, x: nl.while_loop(r, lambda c: None), "loop_condition"),
        (lambda r, s, w, x: nisa.scalar_load(tile(dtype=nl.uint32)), "scalar_width"),
        (lambda r, s, w, x: nisa.scalar_store(tile(), 3), "argument_type"),
        (lambda r, s, w, x: nisa.scalar_store(tile(), w), "scalar_width"),
        (lambda r, s, w, x: nisa.register_store(tile(), 3), "argument_type"),
        (lambda r, s, w, x: nisa.register_move(3, 3), "argument_type"),
        (lambda r, s, w, x: nisa.register_load(r, tile((1, 2))), "register_size"),
        (leave, "loop_left"),
        (in_order, "loop_in_no_reorder"),
        (write_counter, "frozen_register"),
    ],
)
def test_what_registers_and_loops_refuse(body: Any, code: str) -> None:
    with pytest.raises(KernelError) as caught:
        use(body)
    assert caught.value.code == code


def test_loops_over_registers_are_gone_since_0_7(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NKI_COMPILER_FRONTEND")
    assert not hasattr(nl, "dynamic_range")
    with pytest.raises(KernelError, match=r"unsupported: not supported: nl.dynamic_range .*use nl.fori_loop"):
        use(write_counter)
    with pytest.raises(KernelError, match=r"register .* is not known .*nl.fori_loop or nl.while_loop"):
        use(lambda register, *_: [None for _ in range(1) if register])
