"""Reductions, scans, statistics and the accumulation registers, against plain loops."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim import targets
from nki_sim.checks import program as checks
from nki_sim.errors import IRError, KernelError
from nki_sim.operators import OPERATORS
from nki_sim.operators.state import lacks_state
from nki_sim.program import wire
from nki_sim.program.decode import decode_form

FEW = settings(max_examples=10)
SIZES = st.tuples(st.sampled_from([1, 7, 32, 128]), st.integers(1, 40))
BINARY: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "maximum": max,
    "minimum": min,
}
IDENTITY = {"add": 0.0, "subtract": 0.0, "multiply": 1.0, "maximum": -math.inf, "minimum": math.inf}
COMMANDS = "nisa.reduce_cmd"


def draws(seed: int, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).uniform(0.5, 1.5, shape).astype(dtype)


def close(found: Any, wanted: Any, *, bits: int = 17) -> None:
    np.testing.assert_allclose(np.asarray(found, float), wanted, rtol=2.0**-bits, atol=2.0**-bits)


def fold(op: str, row: Any, start: float) -> float:
    """start op row[0] op row[1]..., in float64."""
    for value in row:
        start = BINARY[op](start, float(value))
    return start


# -- accumulation registers ------------------------------------------------------------------------


@FEW
@given(
    size=SIZES, seed=st.integers(0, 99), op=st.sampled_from(["add", "multiply", "maximum", "minimum"]),
    negate=st.booleans(), load=st.booleans(),
)  # fmt: skip
def test_a_chain_of_reductions_keeps_its_registers(
    size: tuple[int, int], seed: int, op: str, *, negate: bool, load: bool, simulate: Any, texts: Any
) -> None:
    x, c = draws(seed, size), draws(seed + 1, (size[0], 1))
    first = f"reduce_cmd={COMMANDS}.load_reduce, reduce_init=sc" if load else ""
    body = f"""
    nisa.tensor_scalar_reduce(r[:, 1:], sx, nl.add, 0.5, nl.{op}, {first})
    nisa.tensor_scalar_reduce(r[:, 1:], sx, nl.multiply, 1.25, nl.{op}, r[:, 0:1],
                              reduce_cmd={COMMANDS}.reduce, reduce_res_negate={negate})
    """
    (found,) = simulate(texts.on_chip(["x", "c"], body, shape="(p, f + 1)"), x, c)
    starts = c[:, 0] if load else [IDENTITY[op]] * size[0]
    wanted = [fold(op, np.hstack([a + 0.5, a * 1.25]), float(s)) for a, s in zip(x, starts, strict=True)]
    close(found[:, 0], np.array(wanted) * (-1.0 if negate else 1.0))
    close(found[:, 1:], x * 1.25)


def test_activations_add_up_across_instructions(simulate: Any, texts: Any) -> None:
    x = draws(3, (64, 16))
    body = f"""
    nisa.activation(r[:, 3:], nl.square, sx, reduce_res=r[:, 0:1], reduce_cmd={COMMANDS}.reset_reduce)
    nisa.activation(r[:, 3:], nl.copy, sx, reduce_op=nl.add, reduce_cmd={COMMANDS}.reduce)
    nisa.activation(r[:, 3:], nl.copy, sx, reduce_res=r[:, 1:2])
    nisa.activation(r[:, 3:], nl.exp, sx, reduce_res=r[:, 2:3], reduce_cmd={COMMANDS}.reset)
    """
    (found,) = simulate(texts.on_chip(["x"], body, shape="(p, f + 3)"), x)
    squares, sums = (x * x).sum(1), x.sum(1)
    close(found[:, :3], np.stack([squares, squares + sums, np.zeros(64)], axis=1), bits=16)


def test_engines_have_registers_of_their_own(simulate: Any, texts: Any) -> None:
    x = draws(4, (32, 8))
    body = f"""
    nisa.activation(r[:, 2:], nl.copy, sx, reduce_op=nl.add, reduce_cmd={COMMANDS}.reset_reduce)
    nisa.tensor_scalar_reduce(r[:, 2:], sx, nl.add, 0.0, nl.maximum, r[:, 1:2])
    nisa.activation(r[:, 2:], nl.copy, sx, reduce_res=r[:, 0:1])
    """
    (found,) = simulate(texts.on_chip(["x"], body, shape="(p, f + 2)"), x)
    close(found[:, :2], np.stack([x.sum(1), x.max(1)], axis=1))


def test_lanes_are_the_partitions_of_what_is_read(simulate: Any, texts: Any) -> None:
    x = draws(5, (128, 8))
    body = f"""
    nisa.activation(r[:, 1:], nl.copy, sx, reduce_op=nl.add, reduce_cmd={COMMANDS}.reset_reduce)
    nisa.activation(r[0:32, 1:], nl.copy, sx[32:64, :], reduce_op=nl.add, reduce_res=r[0:32, 0:1],
                    reduce_cmd={COMMANDS}.reduce)
    nisa.activation(r[32:64, 1:], nl.copy, sx[32:64, :], reduce_res=r[32:64, 0:1])
    nisa.activation(r[64:128, 1:], nl.copy, sx[64:128, :], reduce_res=r[64:128, 0:1])
    """
    (found,) = simulate(texts.on_chip(["x"], body, shape="(p, f + 1)"), x)
    sums = x.sum(1)
    close(found[:, 0], np.concatenate([2 * sums[32:64], 2 * sums[32:64], sums[64:]]))


def test_registers_that_nobody_filled_are_not_given_out(tracing: Any, texts: Any) -> None:
    x = draws(6, (128, 8))
    body = "nisa.activation(r[:, 1:], nl.exp, sx, reduce_op=nl.add, reduce_res=r[:, 0:1])"
    with pytest.raises(KernelError, match="nothing was ever put into") as caught:
        tracing(texts.on_chip(["x"], body, shape="(p, f + 1)"), x)
    assert caught.value.code == "reduce_cmd"
    half = f"""
    nisa.activation(r[:64, 1:], nl.exp, sx[:64], reduce_op=nl.add, reduce_cmd={COMMANDS}.reset_reduce)
    nisa.activation(r[:, 1:], nl.exp, sx, reduce_res=r[:, 0:1], reduce_cmd={COMMANDS}.reduce)
    """
    program = tracing(texts.on_chip(["x"], half, shape="(p, f + 1)"), x)
    (found,) = checks.check(program, targets.load("trn2"))
    assert (found.code, found.tensor) == ("uninitialised_read", "reduce_regs of the scalar engine")
    whole = half.replace(":64", ":")
    assert not checks.check(tracing(texts.on_chip(["x"], whole, shape="(p, f + 1)"), x), targets.load("trn2"))


def test_a_command_wants_its_arguments(tracing: Any, texts: Any) -> None:
    x = draws(7, (4, 4))
    call = "nisa.tensor_scalar_reduce(r, sx, nl.add, 1.0, nl.add, {})"
    for extra, legal in (
        (f"reduce_cmd={COMMANDS}.load_reduce", False),
        ("reduce_init=0.0", False),
        (f"reduce_cmd={COMMANDS}.load_reduce, reduce_init=0.0", True),
    ):
        text = texts.on_chip(["x"], call.format(extra))
        if legal:
            tracing(text, x)
        else:
            with pytest.raises(KernelError) as caught:
                tracing(text, x)
            assert caught.value.code == "argument_pair"
    with pytest.raises(KernelError) as caught:
        tracing(texts.on_chip(["x"], call.format(f"reduce_cmd={COMMANDS}.idle")), x)
    assert caught.value.code == "argument_value"


def test_programs_hold_the_memory_that_instructions_use(tracing: Any, texts: Any) -> None:
    """Front ends supply it, so only a program that was tampered with lacks it or has another."""
    x = draws(8, (4, 4))
    program = tracing(texts.on_chip(["x"], "nisa.tensor_scalar_reduce(r, sx, nl.add, 1.0, nl.add)"), x)
    form = next(form for form in program.forms if form.op == "tensor_scalar_reduce")
    operator, target = OPERATORS[form.op], targets.load("trn2")
    assert not operator.find_breaches(form, target)
    without = replace(form, operands=form.operands[:-1])
    assert lacks_state(operator, without)
    with pytest.raises(IRError, match="lacks the memory"):
        decode_form(json.loads(json.dumps(wire.form_to_json(without))))
    narrow = replace(form.operands[-1], dtype="bfloat16")
    (breach,) = operator.find_breaches(replace(form, operands=(*form.operands[:-1], narrow)), target)
    assert breach.code == "engine_state"


# -- running reductions and scans --------------------------------------------------------------------


@FEW
@given(
    size=SIZES, seed=st.integers(0, 99), ops=st.tuples(*[st.sampled_from(sorted(BINARY))] * 2),
    start=st.sampled_from(["reset_reduce", "load_reduce", "reduce"]),
)  # fmt: skip
def test_tensor_scalar_cumulative(
    size: tuple[int, int], seed: int, ops: tuple[str, str], start: str, *, simulate: Any, texts: Any
) -> None:
    """reg = op1(op0(x, imm0), reg), one element after the other."""
    x, c = draws(seed, size), draws(seed + 1, (size[0], 1))
    before = (
        f"nisa.tensor_scalar_cumulative(r, sx, nl.{ops[0]}, nl.{ops[1]}, sc)" if start == "reduce" else ""
    )
    init = "imm1=0.75, " if start == "load_reduce" else ""
    body = f"""
    {before}
    nisa.tensor_scalar_cumulative(r, sx, nl.{ops[0]}, nl.{ops[1]}, sc, {init}reduce_cmd={COMMANDS}.{start})
    """
    (found,) = simulate(texts.on_chip(["x", "c"], body), x, c)
    wanted = np.zeros(size)
    for row, (values, scalar) in enumerate(zip(x, c[:, 0], strict=True)):
        state = 0.75 if start == "load_reduce" else IDENTITY[ops[1]]
        for _ in range(2 if start == "reduce" else 1):
            for column, value in enumerate(values):
                state = BINARY[ops[1]](BINARY[ops[0]](float(value), float(scalar)), state)
                wanted[row, column] = state
    np.testing.assert_allclose(found, wanted, rtol=2.0**-12, atol=2.0**-12)


@FEW
@given(
    size=SIZES, seed=st.integers(0, 99), ops=st.tuples(*[st.sampled_from(sorted(BINARY))] * 2),
    turned=st.tuples(st.booleans(), st.booleans()), tile=st.booleans(),
)  # fmt: skip
def test_tensor_tensor_scan(
    size: tuple[int, int], seed: int, ops: tuple[str, str], turned: tuple[bool, bool], *, tile: bool,
    simulate: Any, texts: Any,
) -> None:  # fmt: skip
    x, y, c = draws(seed, size), draws(seed + 1, size), draws(seed + 2, (size[0], 1))
    body = (
        f"nisa.tensor_tensor_scan(r, sx, sy, {'sc' if tile else 0.25}, nl.{ops[0]}, nl.{ops[1]}, "
        f"reverse0={turned[0]}, reverse1={turned[1]})"
    )
    (found,) = simulate(texts.on_chip(["x", "y", "c"], body), x, y, c)
    wanted = np.zeros(size)
    for row in range(size[0]):
        state = float(c[row, 0]) if tile else 0.25
        for column in range(size[1]):
            for op, back, left, right in (
                (ops[0], turned[0], float(x[row, column]), None),
                (ops[1], turned[1], None, float(y[row, column])),
            ):
                pair = (state if left is None else left, state if right is None else right)
                state = BINARY[op](*(pair[::-1] if back else pair))
            wanted[row, column] = state
    np.testing.assert_allclose(found, wanted, rtol=2.0**-10, atol=2.0**-10)


def test_a_long_scan(simulate: Any, texts: Any) -> None:
    """Feasible because all partitions take a step at once."""
    x = draws(8, (128, 4096)) * np.float32(0.5)
    (found,) = simulate(
        texts.on_chip(["x"], "nisa.tensor_tensor_scan(r, sx, sx, 0.0, nl.multiply, nl.add)"), x
    )
    state = np.zeros(128)
    for column in range(4096):
        state = state * x[:, column] + x[:, column]
    close(found[:, -1], state, bits=14)


# -- reductions ----------------------------------------------------------------------------------------

LOGIC: dict[str, Callable[[Any], bool]] = {
    "logical_and": lambda row: all(value != 0 for value in row),
    "logical_or": lambda row: any(value != 0 for value in row),
    "logical_xor": lambda row: sum(value != 0 for value in row) % 2 == 1,
}


def over_inner(shape: tuple[int, ...], axes: str, kept: str, call: str, dtype: str = "nl.float32") -> str:
    return f"""
    @nki.jit
    def kernel(x):
        s = nl.ndarray({shape}, dtype=x.dtype, buffer=nl.sbuf)
        r = nl.ndarray({kept}, dtype={dtype}, buffer=nl.sbuf)
        out = nl.ndarray({kept}, dtype={dtype}, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=s, src=x)
        nisa.tensor_reduce(dst=r, data=s, axis={axes}, {call})
        nisa.dma_copy(dst=out, src=r)
        return out
    """


@FEW
@given(
    shape=st.tuples(st.sampled_from([1, 32, 128]), *[st.integers(1, 4)] * 3), count=st.integers(1, 3),
    op=st.sampled_from([*sorted(BINARY), *LOGIC]), negate=st.booleans(), negative=st.booleans(),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_tensor_reduce_over_the_last_axes(
    shape: tuple[int, ...], count: int, op: str, *, negate: bool, negative: bool, seed: int, simulate: Any
) -> None:
    x = draws(seed, shape)
    x[..., 0] = 0.0 if op in LOGIC else x[..., 0]
    axes = tuple(range(-count, 0)) if negative else tuple(range(4 - count, 4))
    kept = shape[: 4 - count] if count < 3 else (*shape[:1], 1)
    (found,) = simulate(over_inner(shape, str(axes), str(kept), f"op=nl.{op}, negate={negate}"), x)
    rows = x.reshape(math.prod(shape[: 4 - count]), -1)
    wanted = [LOGIC[op](row) if op in LOGIC else fold(op, row[1:], float(row[0])) for row in rows]
    close(found.reshape(-1), np.array(wanted, float) * (-1.0 if negate else 1.0))


@FEW
@given(
    dtype=st.sampled_from(["int8", "uint16", "int32"]), op=st.sampled_from(["and", "or", "xor"]),
    seed=st.integers(0, 99), partitions=st.booleans(),
)  # fmt: skip
def test_bitwise_reductions(
    dtype: str, op: str, seed: int, *, partitions: bool, simulate: Any, texts: Any
) -> None:
    limits = np.iinfo(dtype)
    x = np.random.default_rng(seed).integers(limits.min, limits.max, (32, 5), dtype=dtype)
    partitions &= op != "xor"
    call = (
        "tensor_partition_reduce(r, nl.bitwise_{}, sx)"
        if partitions
        else "tensor_reduce(r, nl.bitwise_{}, sx, 1)"
    )
    shape = "(1, f)" if partitions else "(p, 1)"
    (found,) = simulate(texts.on_chip(["x"], f"nisa.{call.format(op)}", shape=shape, dtype=f"nl.{dtype}"), x)
    wanted = []
    for row in x.T.tolist() if partitions else x.tolist():
        total = row[0]
        for value in row[1:]:
            total = {"and": total & value, "or": total | value, "xor": total ^ value}[op]
        wanted.append(total)
    assert found.reshape(-1).tolist() == wanted


@FEW
@given(size=SIZES, seed=st.integers(0, 99), op=st.sampled_from(["add", "maximum", "average"]))
def test_tensor_partition_reduce(
    size: tuple[int, int], seed: int, op: str, *, simulate: Any, texts: Any
) -> None:
    x = draws(seed, size)
    (found,) = simulate(
        texts.on_chip(["x"], f"nisa.tensor_partition_reduce(r, nl.{op}, sx)", shape="(1, f)"), x
    )
    sums = [fold("add" if op == "average" else op, column[1:], float(column[0])) for column in x.T]
    close(found[0], np.array(sums) / (size[0] if op == "average" else 1))


def test_reduction_shapes(tracing: Any) -> None:
    x = draws(9, (32, 2, 3, 4))
    for axes, kept, legal in (
        ("(2, 3)", "(32, 2)", True),
        ("(1, 3)", "(32, 3)", False),
        ("(1, 2)", "(32, 4)", False),
        ("(0, 1, 2, 3)", "(32, 1)", False),
        ("3", "(32, 2, 3)", True),
    ):
        text = over_inner(x.shape, axes, kept, "op=nl.add")
        if legal:
            tracing(text, x)
        else:
            with pytest.raises(KernelError) as caught:
                tracing(text, x)
            assert caught.value.code == "reduce_axis"


# -- batch-norm statistics ---------------------------------------------------------------------------------


@FEW
@given(size=SIZES, seed=st.integers(0, 99), dtype=st.sampled_from(["float32", "bfloat16"]))
def test_bn_stats_are_of_even_and_odd_elements(
    size: tuple[int, int], seed: int, dtype: str, *, simulate: Any, texts: Any
) -> None:
    x = draws(seed, size)
    text = texts.on_chip(["x"], "nisa.bn_stats(r, sx)", shape="(p, 6)", dtype=f"nl.{dtype}")
    (found,) = simulate(text, x)
    wanted = []
    for row in x.astype(np.float64):
        wanted.append([])
        for part in (row[0::2], row[1::2]):
            mean = part.mean() if len(part) else 0.0
            wanted[-1] += [len(part), mean, ((part - mean) ** 2).sum()]
    close(found, wanted, bits=17 if dtype == "float32" else 7)


@FEW
@given(parts=st.lists(st.integers(1, 30), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_bn_aggr_joins_statistics_of_parts(parts: list[int], seed: int, *, simulate: Any, texts: Any) -> None:
    x = draws(seed, (32, sum(parts)))
    begins = [sum(parts[:i]) for i in range(len(parts))]
    calls = [
        f"nisa.bn_stats(t[:, {6 * i}:{6 * i + 6}], sx[:, {at}:{at + n}])"
        for i, (at, n) in enumerate(zip(begins, parts, strict=True))
    ]
    body = "\n".join([
        f"t = nl.ndarray((p, {6 * len(parts)}), dtype=nl.float32, buffer=nl.sbuf)", *calls,
        "nisa.bn_aggr(r, t)",
    ])  # fmt: skip
    (found,) = simulate(texts.on_chip(["x"], body, shape="(p, 2)"), x)
    close(found, np.stack([x.astype(float).mean(1), x.astype(float).var(1)], axis=1))


@pytest.mark.parametrize(
    ("code", "wrong", "right"),
    [
        ("bn_stats_size", "nisa.bn_stats(r[:, :6], sx)", "nisa.bn_stats(r[:, :6], sx[:, :512])"),
        ("shape_mismatch", "nisa.bn_stats(r[:, :5], sx[:, :8])", "nisa.bn_stats(r[:, :6], sx[:, :8])"),
        ("bn_aggr_size", "nisa.bn_aggr(r[:, :2], sx[:, :8])", "nisa.bn_aggr(r[:, :2], sx[:, :9])"),
        ("shape_mismatch", "nisa.bn_aggr(r[:, :6], sx[:, :9])", "nisa.bn_aggr(r[:, :2], sx[:, :9])"),
        (
            "shape_mismatch", "nisa.tensor_partition_reduce(r[:2], nl.add, sx)",
            "nisa.tensor_partition_reduce(r[:1], nl.add, sx)",
        ),
    ],
)  # fmt: skip
def test_sizes_of_statistics(code: str, wrong: str, right: str, tracing: Any, texts: Any) -> None:
    x = draws(10, (4, 513))
    with pytest.raises(KernelError) as caught:
        tracing(texts.on_chip(["x"], wrong), x)
    assert caught.value.code == code
    tracing(texts.on_chip(["x"], right), x)
