"""Plans: joined products and spared copies change nothing that a program computes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim.program.ir import Program
from nki_sim.running import numerics
from nki_sim.running.execution_plan import plan_execution
from nki_sim.running.interpreter import ProgramInterpreter
from nki_sim.running.machine import Machine, prepare_form
from nki_sim.running.work import WorkAllowance
from tests.support.sweeps import scale_examples

# Blocks of an output, each a sum over k; STYLE says where operand tiles live and how sums are used.
BLOCKS = """
M, N, K, TM, TN = {m}, {n}, {k}, {tm}, {tn}
ROTATE, PRELOAD, SCALE, TWICE, DTYPE = {rotate}, {preload}, {scale}, {twice}, nl.{dtype}

@nki.jit
def kernel(a, b):
    out = nl.ndarray((M * TM, N * TN), dtype=nl.float32, buffer=nl.shared_hbm)
    left = nl.ndarray((128, K, M * TM), dtype=DTYPE, buffer=nl.sbuf)
    for q in range(K):
        nisa.dma_copy(dst=left[:, q, :], src=a[q * 128:(q + 1) * 128])
    one = nl.ndarray((128, TN), dtype=DTYPE, buffer=nl.sbuf)
    right = nl.ndarray((128, K, N * TN), dtype=DTYPE, buffer=nl.sbuf)
    if PRELOAD:
        for q in range(K):
            nisa.dma_copy(dst=right[:, q, :], src=b[q * 128:(q + 1) * 128])
    for i in range(M):
        for j in range(N):
            acc = nl.ndarray((TM, TN), dtype=nl.float32, buffer=nl.psum)
            for q in range(K):
                w = one if ROTATE else nl.ndarray((128, TN), dtype=DTYPE, buffer=nl.sbuf)
                part = b[q * 128:(q + 1) * 128, j * TN:(j + 1) * TN]
                if PRELOAD:
                    w = right[:, q, j * TN:(j + 1) * TN]
                else:
                    nisa.dma_copy(dst=w, src=part)
                if SCALE:
                    v = one if ROTATE else nl.ndarray((128, TN), dtype=DTYPE, buffer=nl.sbuf)
                    nisa.tensor_scalar(dst=v, data=w, op0=nl.multiply, operand0=0.5)
                    w = v
                nisa.nc_matmul(dst=acc, stationary=left[:, q, i * TM:(i + 1) * TM], moving=w)
            res = nl.ndarray((TM, TN), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=res, src=acc)
            if TWICE:
                nisa.nc_matmul(
                    dst=acc, stationary=left[:, 0, i * TM:(i + 1) * TM], moving=right[:, 0, 0:TN]
                    if PRELOAD else one, accumulate=True)
                nisa.tensor_tensor(dst=res, data1=res, data2=acc, op=nl.add)
            nisa.dma_copy(dst=out[i * TM:(i + 1) * TM, j * TN:(j + 1) * TN], src=res)
    return out
"""


def one_by_one(program: Program, inputs: list[Any]) -> list[Any]:
    """The outputs when every instruction is run as it comes."""
    machine = Machine(program.site)
    for number, array in zip(program.inputs, inputs, strict=True):
        machine.place_tensor(number, array.reshape(-1).copy())
    actions = [prepare_form(form, program.target) for form in program.forms]
    with np.errstate(all="ignore"):
        runner = ProgramInterpreter(machine, actions, WorkAllowance(1 << 40))
        runner.run(numerics.instruction_columns(program), 0, len(program), {})
    return [machine.tensor_array(number).reshape(program.site(number).shape) for number in program.outputs]


def normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@st.composite
def styles(draw: Any) -> dict[str, Any]:
    flags = {name: draw(st.booleans()) for name in ("rotate", "preload", "scale", "twice")}
    if flags["twice"] and not flags["preload"]:
        flags["rotate"] = True
    sizes = {"m": draw(st.integers(1, 3)), "n": draw(st.integers(1, 3)), "k": draw(st.integers(1, 3))}
    tiles = {"tm": draw(st.sampled_from([8, 64])), "tn": draw(st.sampled_from([1, 16, 96]))}
    return {**flags, **sizes, **tiles, "dtype": draw(st.sampled_from(["float32", "bfloat16"]))}


@settings(max_examples=scale_examples(40), deadline=None)
@given(style=styles())
def test_a_plan_computes_what_the_instructions_compute(style: dict[str, Any], *, tracing: Any) -> None:
    a = normal(1, style["k"] * 128, style["m"] * style["tm"])
    b = normal(2, style["k"] * 128, style["n"] * style["tn"])
    program = tracing(BLOCKS.format(**style), a, b)
    (found,), (wanted,) = numerics.run(program, [a, b]), one_by_one(program, [a, b])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5 * np.abs(wanted).max())


def counted(program: Program) -> Counter[str]:
    """Steps of a plan: products, and instructions by name."""
    return Counter(
        "product" if step.product else program.forms[program.form_ids[step.number]].op
        for step in plan_execution(program, frozenset()).steps
    )


BASE = {
    "m": 2, "n": 3, "k": 3, "tm": 64, "tn": 96, "rotate": False, "preload": False, "scale": False,
    "twice": False, "dtype": "float32",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        # Everything is one product of the inputs; the sums are stored from there.
        ({}, {"product": 1, "dma_copy": 6}),
        ({"rotate": True}, {"product": 1, "dma_copy": 6}),
        ({"preload": True}, {"product": 1, "dma_copy": 6}),
        # Tiles that are computed are gathered, once.
        ({"scale": True}, {"tensor_scalar": 18, "product": 6, "dma_copy": 6}),
        # A tile that is computed again and again holds the operand of one matmul at a time.
        ({"scale": True, "rotate": True}, {"tensor_scalar": 18, "nc_matmul": 18, "product": 0}),
    ],
)
def test_what_is_left_to_do(changes: dict[str, Any], steps: dict[str, int], tracing: Any) -> None:
    style = {**BASE, **changes}
    a, b = normal(1, 384, 128), normal(2, 384, 288)
    found = counted(tracing(BLOCKS.format(**style), a, b))
    assert {name: found[name] for name in steps} == steps


def test_sums_that_are_read_while_they_grow_are_not_joined(tracing: Any) -> None:
    text = """
    @nki.jit
    def kernel(a, b):
        out = nl.ndarray((2, 64, 96), dtype=nl.float32, buffer=nl.shared_hbm)
        s, m = (nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf) for x in (a, b))
        nisa.dma_copy(dst=s, src=a)
        nisa.dma_copy(dst=m, src=b)
        acc = nl.ndarray((64, 96), dtype=nl.float32, buffer=nl.psum)
        for i in range(2):
            nisa.nc_matmul(dst=acc, stationary=s, moving=m, accumulate=i > 0)
            res = nl.ndarray((64, 96), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=res, src=acc)
            nisa.dma_copy(dst=out[i], src=res)
        return out
    """
    a, b = normal(1, 128, 64), normal(2, 128, 96)
    (found,) = numerics.run(tracing(text, a, b), [a, b])
    np.testing.assert_allclose(found[0], a.T @ b, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[1], 2 * (a.T @ b), rtol=1e-4, atol=1e-4)


def test_a_copy_keeps_what_it_copied(tracing: Any) -> None:
    """The source is overwritten before the copy is read: the copy must then be made."""
    text = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, 8, 16), dtype=x.dtype, buffer=nl.shared_hbm)
        t, u = (nl.ndarray((8, 16), dtype=x.dtype, buffer=nl.sbuf) for _ in range(2))
        nisa.dma_copy(dst=t, src=x)
        nisa.tensor_copy(dst=u, src=t)
        nisa.tensor_tensor(dst=t, data1=t, data2=u, op=nl.add)
        nisa.dma_copy(dst=out[0], src=t)
        nisa.dma_copy(dst=out[1], src=u)
        return out
    """
    x = normal(1, 8, 16)
    (found,) = numerics.run(tracing(text, x), [x])
    assert np.array_equal(found, np.stack([x + x, x]))


def test_what_no_output_needs_is_not_run(tracing: Any, texts: Any) -> None:
    body = "nisa.activation(dst=r, op=nl.exp, data=sx)\nnisa.tensor_copy(dst=r, src=sx)"
    program = tracing(texts.on_chip(["x"], body), normal(1, 8, 16))
    assert counted(program) == {"dma_copy": 1}


@pytest.mark.parametrize(
    ("diagonal", "target", "steps"),
    [
        (1.0, "trn2", {"nc_matmul": 0, "dma_copy": 1}),
        # No identity, or a machine that multiplies where the other moves.
        (0.0, "trn2", {"nc_matmul": 1, "dma_copy": 1}),
        (1.0, "trn1", {"nc_matmul": 1, "dma_copy": 1}),
    ],
)
def test_transposes_by_an_identity_are_copies(
    diagonal: float, target: str, steps: dict[str, int], tracing: Any
) -> None:
    text = f"""
    import numpy as np

    @nki.jit
    def kernel(x):
        p, f = x.shape
        out = nl.ndarray((f, p), dtype=x.dtype, buffer=nl.shared_hbm)
        t = nl.ndarray((p, f), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x)
        eye = nl.ndarray((p, p), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=eye, src=nl.shared_constant(np.diag(np.float32([{diagonal}] + [1.0] * (p - 1)))))
        flip = nl.ndarray((f, p), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=flip, stationary=t, moving=eye, is_transpose=True)
        res = nl.ndarray((f, p), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=res, src=flip)
        nisa.dma_copy(dst=out, src=res)
        return out
    """
    x = normal(1, 8, 16)
    program = tracing(text, x, target=target)
    found = counted(program)
    assert {name: found[name] for name in steps} == steps
    scales = np.diag([diagonal] + [1.0] * 7).astype(np.float32)
    assert np.array_equal(numerics.run(program, [x])[0], x.T @ scales)
