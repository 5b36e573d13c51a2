"""Kernels as people write them, whole: softmax, layer norm, attention, an optimiser step, a gated product.

Each is traced for both targets, breaks no rule, agrees with NumPy in float64, and has a profile.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nki_sim import targets
from nki_sim.checks import program as checks
from nki_sim.errors import SimError
from nki_sim.frontend.modules import MODULES
from nki_sim.program.ir import Program
from nki_sim.running import numerics
from nki_sim.timing.bounds import MinimalWork, tight_bound
from nki_sim.timing.counters import profile_counters
from nki_sim.timing.explain import explain_latency
from nki_sim.timing.forecast import forecast_program
from nki_sim.timing.schedule import schedule
from tests.support.sweeps import scale_examples

F32 = np.dtype(np.float32)
BF16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Kernel:
    """Source, argument shapes, float64 reference, element type, relative L2 allowed."""

    text: str
    shapes: tuple[tuple[int, ...], ...]
    reference: Any
    dtype: Any = F32
    rel_l2: float = 2e-5


SOFTMAX = """
@nki.jit
def softmax(x):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(m // 128):
        rows = nl.ds(i * 128, 128)
        t = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf, name="t")
        nisa.dma_copy(dst=t, src=x[rows, :], dge_mode=nisa.dge_mode.swdge)
        top = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=top, op=nl.max, data=t, axis=1, negate=True)
        e = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(dst=e, op=nl.exp, data=t, reduce_op=nl.add, reduce_res=total, bias=top)
        share = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.reciprocal(dst=share, data=total)
        nisa.tensor_scalar(dst=e, data=e, op0=nl.multiply, operand0=share)
        nisa.dma_copy(dst=out[rows], src=e)
    return out
"""


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


LAYERNORM = """
@nki.jit
def kernel(x, gain, shift):
    m, n = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    g = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
    s = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=g, src=gain.expand_dim(0).broadcast(0, 128))
    nisa.dma_copy(dst=s, src=nl.expand_dims(shift, 0).broadcast(0, 128))
    for i in range(m // 128):
        t = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[i * 128:(i + 1) * 128])
        mean = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(mean, nl.add, t, axis=[1])
        nisa.tensor_scalar(mean, mean, nl.multiply, 1.0 / n)
        nisa.tensor_scalar(t, t, nl.subtract, mean)
        squares = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
        var = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(squares, nl.square, t, reduce_op=nl.add, reduce_res=var)
        nisa.tensor_scalar(var, var, nl.multiply, 1.0 / n, op1=nl.add, operand1=1e-5)
        nisa.activation(var, nl.rsqrt, var)
        nisa.scalar_tensor_tensor(t, t, nl.multiply, var, nl.multiply, g)
        nisa.tensor_tensor(t, t, s, nl.add, engine=nisa.engine.gpsimd)
        nisa.dma_copy(dst=out[i * 128:(i + 1) * 128], src=t)
    return out
"""


def layernorm(x: Any, gain: Any, shift: Any) -> Any:
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5) * gain + shift


ATTENTION = """
def transposed(source, rows, columns):
    flipped = nl.ndarray((columns, rows), dtype=source.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=flipped, data=source)
    kept = nl.ndarray((columns, rows), dtype=source.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=kept, src=flipped)
    return kept


@nki.jit
def attention(q, k, v):
    length, depth = q.shape
    out = nl.ndarray((length, depth), dtype=q.dtype, buffer=nl.shared_hbm)
    kt = nl.ndarray((depth, length), dtype=q.dtype, buffer=nl.sbuf)
    values = nl.ndarray((128, length // 128, depth), dtype=q.dtype, buffer=nl.sbuf)
    for j in range(length // 128):
        tile = nl.ndarray((128, depth), dtype=q.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, k[nl.ds(j * 128, 128), :])
        flipped = nl.ndarray((depth, 128), dtype=q.dtype, buffer=nl.psum)
        nisa.nc_transpose(flipped, tile)
        nisa.tensor_copy(kt[:, nl.ds(j * 128, 128)], flipped, engine=nisa.engine.vector)
        nisa.dma_copy(values[:, j, :], v[nl.ds(j * 128, 128), :])
    for i in range(length // 128):
        tile = nl.ndarray((128, depth), dtype=q.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, q[nl.ds(i * 128, 128), :])
        qt = transposed(tile, 128, depth)
        scores = nl.ndarray((128, length), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(scores, qt, kt)
        top = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(top, nl.max, scores, axis=1)
        nisa.tensor_scalar(top, top, nl.multiply, -depth ** -0.5)
        weights = nl.ndarray((128, length), dtype=q.dtype, buffer=nl.sbuf)
        total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(weights, nl.exp, scores, nl.add, total, bias=top, scale=depth ** -0.5)
        nisa.reciprocal(total, total)
        acc = nl.ndarray((128, depth), dtype=nl.float32, buffer=nl.psum)
        for j in range(length // 128):
            wt = transposed(weights[:, nl.ds(j * 128, 128)], 128, 128)
            nisa.nc_matmul(acc, wt, values[:, j, :], accumulate=j > 0)
        result = nl.ndarray((128, depth), dtype=q.dtype, buffer=nl.sbuf)
        nisa.activation(result, nl.copy, acc, scale=total)
        nisa.dma_copy(out[nl.ds(i * 128, 128), :], result)
    return out
"""


def attention(q: Any, k: Any, v: Any) -> Any:
    return softmax(q @ k.T / np.sqrt(q.shape[1])) @ v


ADAM = """
RATE, B1, B2, EPS = 1e-2, 0.9, 0.999, 1e-8

@nki.jit
def kernel(theta, grad, first, second):
    m, n = theta.shape
    outs = [nl.ndarray((m, n), dtype=theta.dtype, buffer=nl.shared_hbm) for _ in range(3)]
    for i in range(m // 128):
        rows = slice(i * 128, (i + 1) * 128)
        tiles = {}
        for name, source in (("p", theta), ("g", grad), ("a", first), ("b", second)):
            tiles[name] = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf, name=name)
            nisa.dma_copy(tiles[name], source[rows])
        p, g, a, b = (tiles[name] for name in "pgab")
        step = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(step, nl.copy, g, scale=1.0 - B1)
        nisa.scalar_tensor_tensor(a, a, nl.multiply, B1, nl.add, step)
        nisa.activation(step, nl.square, g)
        nisa.tensor_scalar(step, step, nl.multiply, 1.0 - B2)
        nisa.scalar_tensor_tensor(b, b, nl.multiply, B2, nl.add, step)
        nisa.activation(step, nl.sqrt, b)
        nisa.tensor_scalar(step, step, nl.add, EPS)
        nisa.reciprocal(step, step)
        nisa.tensor_tensor(step, a, step, nl.multiply)
        nisa.scalar_tensor_tensor(p, step, nl.multiply, -RATE, nl.add, p)
        for out, tile in zip(outs, (p, a, b)):
            nisa.dma_copy(out[rows], tile)
    return tuple(outs)
"""


def adam(p: Any, g: Any, a: Any, b: Any) -> Any:
    b = np.abs(b)
    a = 0.9 * a + (1 - 0.9) * g
    b = 0.999 * b + (1 - 0.999) * g * g
    return p - 1e-2 * a / (np.sqrt(b) + 1e-8), a, b


GATED = """
@nki.jit
def kernel(xt, gate, up):
    k, m = xt.shape
    n = gate.shape[1]
    out = nl.ndarray((m, n), dtype=xt.dtype, buffer=nl.shared_hbm)
    pieces = k // 128

    def resident(source, width):
        tile = nl.ndarray((128, pieces, width), dtype=source.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, source.reshape(pieces, 128, width).permute((1, 0, 2)))
        return tile

    sx, sg, su = resident(xt, m), resident(gate, n), resident(up, n)
    for i in range(m // 128):
        for j in range(n // 256):
            part = nl.ds(j * 256, 256)
            both = nl.ndarray((128, 2, 256), dtype=nl.float32, buffer=nl.psum)
            for which, weight in enumerate((sg, su)):
                for q in range(pieces):
                    left = sx[:, q, i * 128:(i + 1) * 128]
                    nisa.nc_matmul(both[:, which, :], left, weight[:, q, part])
            gated = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(gated, nl.silu, both[:, 0, :])
            r = nl.ndarray((128, 256), dtype=xt.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(r, gated, both[:, 1, :], nl.multiply)
            nisa.dma_copy(out[i * 128:(i + 1) * 128, part], r)
    return out
"""


def gated(xt: Any, gate: Any, up: Any) -> Any:
    product = xt.T @ gate
    return product / (1.0 + np.exp(-product)) * (xt.T @ up)


KERNELS = {
    "softmax": Kernel(SOFTMAX, ((256, 300),), softmax),
    "layernorm": Kernel(LAYERNORM, ((256, 192), (192,), (192,)), layernorm),
    "attention": Kernel(ATTENTION, ((384, 64),) * 3, attention),
    "attention bf16": Kernel(ATTENTION, ((256, 128),) * 3, attention, BF16, 2e-2),
    "adam": Kernel(ADAM, ((256, 100),) * 4, adam),
    "gated": Kernel(GATED, ((256, 128), (256, 512), (256, 512)), gated),
    "gated bf16": Kernel(GATED, ((256, 128), (256, 512), (256, 512)), gated, BF16, 2e-2),
}


def arguments(kernel: Kernel) -> list[Any]:
    rng = np.random.default_rng(5)
    made = [rng.standard_normal(shape) for shape in kernel.shapes]
    if kernel.text is ADAM:
        made[3] = np.abs(made[3])
    return [array.astype(kernel.dtype) for array in made]


@pytest.fixture(params=KERNELS)
def kernel(request: Any) -> Kernel:
    return KERNELS[request.param]


@pytest.mark.parametrize("target", targets.names())
def test_it_is_legal_and_agrees_with_numpy(kernel: Kernel, target: str, tracing: Any) -> None:
    arrays = arguments(kernel)
    program = tracing(kernel.text, *arrays, target=target)
    assert checks.check(program, targets.load(target)) == []
    wanted = kernel.reference(*[array.astype(np.float64) for array in arrays])
    for found, exact in zip(
        numerics.run(program, arrays), wanted if isinstance(wanted, tuple) else (wanted,), strict=True
    ):
        error = np.linalg.norm(found.astype(np.float64) - exact) / np.linalg.norm(exact)
        assert error < kernel.rel_l2


@pytest.mark.parametrize("target", targets.names())
def test_it_has_a_profile_above_its_bound(kernel: Kernel, target: str, tracing: Any) -> None:
    arrays = arguments(kernel)
    loaded = targets.load(target)
    program = tracing(kernel.text, *arrays, target=target)
    predicted = forecast_program(program, loaded)
    counters = profile_counters(predicted)
    least = sum(array.nbytes for array in arrays)
    outputs = program.array_specs(program.outputs)
    written = sum(int(np.prod(spec.shape)) for spec in outputs) * kernel.dtype.itemsize
    work = MinimalWork(read_bytes=least, write_bytes=written)
    assert counters["hbm_read_bytes"] >= least
    assert counters["hbm_write_bytes"] == written
    assert predicted.latency_ms >= tight_bound(work, loaded)
    found = explain_latency(predicted)
    assert sum(part.ms for part in found.critical_path) == pytest.approx(predicted.latency_ms)
    assert max(found.busy_ms.values()) <= predicted.latency_ms


def test_it_survives_the_wire(kernel: Kernel, tracing: Any) -> None:
    arrays = arguments(kernel)
    program = tracing(kernel.text, *arrays)
    again = Program.from_bytes(program.to_bytes())
    for first, second in zip(numerics.run(program, arrays), numerics.run(again, arrays), strict=True):
        assert first.tobytes() == second.tobytes()


WORDS = re.compile(r"[A-Za-z_]+|[0-9]+|[-+*/()\[\]:,=.]")


@settings(max_examples=scale_examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_mutated_kernels_raise_only_the_simulators_errors(draw: Any, kernel: Kernel, tracing: Any) -> None:
    """One or two words of the source are replaced by other words of it, or dropped."""
    text = kernel.text
    for _ in range(draw.draw(st.integers(1, 2))):
        words = list(WORDS.finditer(text))
        spot = draw.draw(st.sampled_from(words[8:]))
        other = draw.draw(
            st.sampled_from([word.group() for word in words] + ["", "0", "1", "-1", "513", "nl.hbm"])
        )
        text = text[: spot.start()] + other + text[spot.end() :]
    arrays = arguments(kernel)
    names = dict(vars(MODULES["nki.language"]))
    try:
        program = tracing(text, *arrays, max_instructions=20_000)
        if checks.check(program, targets.load("trn2")):
            return
        outputs = numerics.run(program, arrays)
    except SimError:
        return
    finally:
        assert vars(MODULES["nki.language"]) == names
    assert len(outputs) == len(program.outputs)
    assert schedule(program, targets.load("trn2")).latency_ms > 0


def test_narrow_types_are_faster_than_wide_ones(tracing: Any) -> None:
    target = targets.load("trn2")
    wide, narrow = (
        schedule(tracing(GATED, *[array.astype(dtype) for array in arguments(KERNELS["gated"])]), target)
        for dtype in (F32, BF16)
    )
    assert narrow.latency_ms < wide.latency_ms
