"""Random small kernels, each with what it computes in NumPy, and the simulator's judgement of a source.

A kernel is put together from parts that engineers vary: loop order, tile sizes, where tiles are declared,
how slices are written, what is done to a tile. The meaning is built beside the source, part by part.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from numpy.typing import NDArray

import nki_sim
from nki_sim import ArraySpec, targets
from nki_sim.checks import program as checks
from nki_sim.running import numerics
from targets.nki.rewrites.kernel_ir import ArrayArgument

Array = NDArray[np.float64]
HEADER = "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n\n"
TARGET = targets.load("trn2")
ROWS = f"""{HEADER}
@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(m // 128):
        a = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
        {{body}}
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=a)
    return out
"""
"""A kernel of row tiles `a`, which `body` computes in place."""
TILE = "{} = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)"
"""Declares a tile like `a`."""


@dataclass(frozen=True)
class Sample:
    """A kernel's source, its argument shapes (float32), and what it computes."""

    source: str
    shapes: tuple[tuple[int, ...], ...]
    meaning: Callable[..., Array]

    @property
    def arguments(self) -> list[ArrayArgument]:
        return [ArrayArgument(shape, "float32") for shape in self.shapes]


def make_inputs(sample: Sample) -> list[NDArray[np.float32]]:
    random = np.random.default_rng(7)
    return [random.standard_normal(shape).astype(np.float32) for shape in sample.shapes]


def relative_error(sample: Sample, source: str) -> float:
    """Relative L2 error of a source on the sample's inputs; infinite when the simulator refuses it."""
    arrays = make_inputs(sample)
    program = nki_sim.trace(source, args=[ArraySpec(shape, "float32") for shape in sample.shapes])
    refused = checks.check(program, TARGET)
    assert not refused, f"{refused[0].message}\n{source}"
    (found,) = numerics.run(program, list(arrays))
    expected = sample.meaning(*(item.astype(np.float64) for item in arrays))
    return float(np.linalg.norm(found - expected) / (np.linalg.norm(expected) or 1.0))  # of zeros: absolute


def join_wrapped_calls(source: str) -> str:
    """A source with wrapped calls on one line, to look for parts of them."""
    return re.sub(r",?\n\s*\)", ")", re.sub(r"(?<=[(,])\n\s*", " ", source)).replace("( ", "(")


# -- element-wise ----------------------------------------------------------------------------------

STEPS: dict[str, tuple[str, Callable[[Array, Array], Array]]] = {
    "scale": ("tensor_scalar(dst={d}, data={s}, op0=nl.multiply, operand0=0.5)", lambda t, x: t * 0.5),
    "shift": ("tensor_scalar(dst={d}, data={s}, op0=nl.add, operand0=1.5)", lambda t, x: t + 1.5),
    "from": (
        "tensor_scalar(dst={d}, data={s}, op0=nl.subtract, operand0=2.0, reverse0=True)",
        lambda t, x: 2.0 - t,
    ),
    "exp": ("activation(dst={d}, op=nl.exp, data={s}, scale=-1.0)", lambda t, x: np.exp(-t)),
    "tanh": ("activation(dst={d}, op=nl.tanh, data={s})", lambda t, x: np.tanh(t)),
    "square": ("tensor_tensor(dst={d}, data1={s}, data2={s}, op=nl.multiply)", lambda t, x: t * t),
    "gate": ("tensor_tensor(dst={d}, data1={s}, data2={x}, op=nl.multiply)", lambda t, x: t * x),
    "plus": ("tensor_tensor(dst={d}, data1={x}, data2={s}, op=nl.add)", lambda t, x: x + t),
    "copy": ("tensor_copy(dst={d}, src={s})", lambda t, x: t),
}
SIGMOID = ("exp", "one", "recip")
EXTRA: dict[str, tuple[str, Callable[[Array, Array], Array]]] = {
    "one": ("tensor_scalar(dst={d}, data={s}, op0=nl.add, operand0=1.0)", lambda t, x: t + 1.0),
    "recip": ("reciprocal(dst={d}, data={s})", lambda t, x: 1.0 / t),
}


@st.composite
def elementwise(draw: DrawFn) -> Sample:
    """A chain of element-wise steps over a tiled matrix."""
    rows, columns = 128 * draw(st.sampled_from([1, 2])), 512 * draw(st.sampled_from([1, 2, 3]))
    tile = draw(st.sampled_from([128, 256, 512]))
    names = draw(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4))
    if draw(st.booleans()):
        names = [*SIGMOID, *draw(st.sampled_from([[], ["gate"]])), *names[:1]]
    outside = draw(st.booleans())
    slices = draw(st.sampled_from(["plain", "ds", "named"]))
    tiles = draw(st.sampled_from(["own", "shared", "same name"]))
    order = draw(st.permutations(["i", "j"]))
    source = _elementwise_source(
        names, tile, slices, tiles, order, outside=outside, wall=draw(st.integers(0, 4)) == 0
    )
    return Sample(source, ((rows, columns),), _chain(names))


def _chain(names: list[str]) -> Callable[..., Array]:
    def meaning(x: Array) -> Array:
        value = x
        for name in names:
            value = (STEPS | EXTRA)[name][1](value, x)
        return value

    return meaning


WINDOWS = {
    "plain": "[i * ROWS : (i + 1) * ROWS, j * TILE : (j + 1) * TILE]",
    "ds": "[nl.ds(i * ROWS, ROWS), nl.ds(j * TILE, TILE)]",
    "named": "[top : top + ROWS, j * TILE : (j + 1) * TILE]",
}


def _elementwise_source(
    names: list[str], tile: int, slices: str, tiles: str, order: list[str], *, outside: bool, wall: bool
) -> str:
    """Tiles of the chain: one each, one for all (each step in place), or one name bound again and again.

    With a wall the result is stored under a condition that no reader follows.
    """
    window = WINDOWS[slices]
    ranges = {"i": "m // ROWS", "j": "n // TILE"}
    declare = "{} = nl.ndarray((ROWS, TILE), dtype=nl.float32, buffer=nl.sbuf)"
    lines = ["top = i * ROWS"] if slices == "named" else []
    lines.append(f"nisa.dma_copy(dst=x_tile, src=x{window})")
    previous = "x_tile"
    for number, name in enumerate(names):
        goal = f"t{number}" if tiles == "own" else "t"
        if number == 0 or tiles == "own":
            lines.append(declare.format(goal))
        elif tiles == "same name":
            lines += ["before = t", declare.format(goal)]
            previous = "before"
        call = (STEPS | EXTRA)[name][0].format(d=goal, s=previous, x="x_tile")
        lines.append(f"nisa.{call}")
        previous = goal
    store = f"nisa.dma_copy(dst=out{window}, src={previous})"
    lines += ["if m > 1:", f"    {store}"] if wall else [store]
    head = [
        "m, n = x.shape",
        "out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)",
        *([declare.format("x_tile")] if outside else []),
    ]
    body = [*([] if outside else [declare.format("x_tile")]), *lines]
    nest = [f"for {order[0]} in nl.affine_range({ranges[order[0]]}):"]
    nest.append(f"    for {order[1]} in range({ranges[order[1]]}):")
    return _kernel("x", [*head, *nest, *(f"        {line}" for line in body)], f"ROWS = 128\nTILE = {tile}")


def _kernel(parameters: str, body: list[str], constants: str) -> str:
    inner = "\n".join(f"    {line}" for line in [*body, "return out"])
    return f"{HEADER}{constants}\n\n\n@nki.jit\ndef kernel({parameters}):\n{inner}\n"


# -- products --------------------------------------------------------------------------------------


@st.composite
def product(draw: DrawFn) -> Sample:
    """a.T @ b or a @ b, tile by tile, with something done to the rows first and to the result after."""
    m, k = 128 * draw(st.sampled_from([1, 2, 4])), 128 * draw(st.sampled_from([1, 2, 3]))
    n = 512 * draw(st.sampled_from([1, 2]))
    tile = draw(st.sampled_from([128, 256, 512]))
    flipped, hoisted = draw(st.booleans()), draw(st.booleans())
    scaled = draw(st.booleans())
    finish = draw(st.sampled_from(["copy", "relu", "both"]))
    lines = [*_stationary(flipped=flipped, scaled=scaled), *_columns(finish, hoisted=hoisted)]
    head = [
        f"{'k, m' if flipped else 'm, k'} = a.shape",
        "n = b.shape[1]",
        "out = nl.ndarray((m, n), dtype=a.dtype, buffer=nl.shared_hbm)",
        "for i in nl.affine_range(m // P):",
    ]
    source = _kernel("a, b", [*head, *(f"    {line}" for line in lines)], f"P = 128\nTILE = {tile}")

    def meaning(a: Array, b: Array) -> Array:
        left = (a.T if flipped else a) * (0.25 if scaled else 1.0)
        value = left @ b
        if finish != "copy":
            value = np.maximum(value, 0.0)
        return value * 2.0 if finish == "both" else value

    return Sample(source, ((k, m) if flipped else (m, k), (k, n)), meaning)


def _stationary(*, flipped: bool, scaled: bool) -> list[str]:
    """Lines that make `left` (P, k // P, P): the rows of this i, transposed."""
    declare = "left = nl.ndarray((P, k // P, P), dtype=a.dtype, buffer=nl.sbuf)"
    scale = "nisa.tensor_scalar(dst={}, data={}, op0=nl.multiply, operand0=0.25)"
    if flipped:
        load = ["part = nl.ndarray((P, P), dtype=a.dtype, buffer=nl.sbuf)"]
        load.append("nisa.dma_copy(dst=part, src=a[q * P : (q + 1) * P, i * P : (i + 1) * P])")
        move = (
            scale.format("left[:, q, :]", "part")
            if scaled
            else "nisa.tensor_copy(dst=left[:, q, :], src=part)"
        )
        return [declare, "for q in nl.affine_range(k // P):", *(f"    {line}" for line in [*load, move])]
    rows = [
        "rows = nl.ndarray((P, k), dtype=a.dtype, buffer=nl.sbuf)",
        "nisa.dma_copy(dst=rows, src=a[i * P : (i + 1) * P, :])",
    ]
    if scaled:
        rows += ["ready = nl.ndarray((P, k), dtype=a.dtype, buffer=nl.sbuf)", scale.format("ready", "rows")]
    turn = [
        "turned = nl.ndarray((P, P), dtype=a.dtype, buffer=nl.psum)",
        f"nisa.nc_transpose(dst=turned, data={'ready' if scaled else 'rows'}[:, q * P : (q + 1) * P])",
        "nisa.tensor_copy(dst=left[:, q, :], src=turned)",
    ]
    return [*rows, declare, "for q in nl.affine_range(k // P):", *(f"    {line}" for line in turn)]


def _columns(finish: str, *, hoisted: bool) -> list[str]:
    """Lines that multiply `left` with each tile of columns and store the result."""
    declare = "{} = nl.ndarray((P, TILE), dtype=nl.float32, buffer=nl.sbuf)"
    wide = declare.format("right")
    load = "nisa.dma_copy(dst=right, src=b[q * P : (q + 1) * P, j * TILE : (j + 1) * TILE])"
    inner = ["acc = nl.ndarray((P, TILE), dtype=nl.float32, buffer=nl.psum)"]
    inner += [wide] if hoisted else []
    inner += ["for q in nl.affine_range(k // P):"]
    inner += [f"    {line}" for line in ([load] if hoisted else [wide, load])]
    inner += ["    nisa.nc_matmul(dst=acc, stationary=left[:, q, :], moving=right)"]
    inner += [declare.format("done"), "nisa.tensor_copy(dst=done, src=acc)"]
    last = "done"
    if finish != "copy":
        inner += [declare.format("positive"), f"nisa.activation(dst=positive, op=nl.relu, data={last})"]
        last = "positive"
    if finish == "both":
        doubled = f"nisa.tensor_scalar(dst=doubled, data={last}, op0=nl.multiply, operand0=2.0)"
        inner += [declare.format("doubled"), doubled]
        last = "doubled"
    inner += [f"nisa.dma_copy(dst=out[i * P : (i + 1) * P, j * TILE : (j + 1) * TILE], src={last})"]
    return ["for j in nl.affine_range(n // TILE):", *(f"    {line}" for line in inner)]


# -- rows ------------------------------------------------------------------------------------------


@st.composite
def row_norm(draw: DrawFn) -> Sample:
    """Rows divided by a norm: a reduction along the free axis, then a scale per partition, times a weight."""
    m, n = 128 * draw(st.sampled_from([1, 2, 3])), 256 * draw(st.sampled_from([1, 2]))
    spelled = draw(st.booleans())
    weight = draw(st.booleans())
    column = "{} = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)"
    matrix = "{} = nl.ndarray((P, n), dtype=nl.float32, buffer=nl.sbuf)"
    root = ["nisa.activation(dst=inverse, op=nl.rsqrt, data=mean)"]
    if spelled:
        sqrt = "nisa.activation(dst=root, op=nl.sqrt, data=mean)"
        root = [column.format("root"), sqrt, "nisa.reciprocal(dst=inverse, data=root)"]
    lines = [
        matrix.format("rows"), "nisa.dma_copy(dst=rows, src=x[i * P : (i + 1) * P, :])",
        matrix.format("squares"),
        "nisa.tensor_tensor(dst=squares, data1=rows, data2=rows, op=nl.multiply)",
        column.format("total"), "nisa.tensor_reduce(dst=total, op=nl.add, data=squares, axis=1)",
        column.format("mean"),
        "nisa.tensor_scalar(dst=mean, data=total, op0=nl.multiply, operand0=1.0 / n)",
        column.format("inverse"), *root,
        matrix.format("normed"),
        "nisa.tensor_scalar(dst=normed, data=rows, op0=nl.multiply, operand0=inverse)",
    ]  # fmt: skip
    last = "normed"
    if weight:
        lines += [
            matrix.format("weights"), "nisa.dma_copy(dst=weights, src=w)",
            matrix.format("weighted"),
            "nisa.tensor_tensor(dst=weighted, data1=normed, data2=weights, op=nl.multiply)",
        ]  # fmt: skip
        last = "weighted"
    lines += [f"nisa.dma_copy(dst=out[i * P : (i + 1) * P, :], src={last})"]
    head = [
        "m, n = x.shape",
        "out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)",
        "for i in nl.affine_range(m // P):",
    ]
    source = _kernel("x, w", [*head, *(f"    {line}" for line in lines)], "P = 128")

    def meaning(x: Array, w: Array) -> Array:
        value = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True))
        return value * np.tile(w, (m // 128, 1)) if weight else value

    return Sample(source, ((m, n), (128, n)), meaning)


# -- running sums ----------------------------------------------------------------------------------


@st.composite
def running_sum(draw: DrawFn) -> Sample:
    """Row sums collected tile by tile in a column, the first tile found by a condition or by a memset."""
    m, n = 128 * draw(st.sampled_from([1, 2])), 512 * draw(st.sampled_from([1, 2, 3]))
    tile = draw(st.sampled_from([128, 256, 512]))
    condition = draw(st.booleans())
    column = "{} = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)"
    first = "nisa.memset(dst=total, value=0.0)"
    inner = [
        "part = nl.ndarray((P, TILE), dtype=nl.float32, buffer=nl.sbuf)",
        "nisa.dma_copy(dst=part, src=x[i * P : (i + 1) * P, j * TILE : (j + 1) * TILE])",
        column.format("piece"),
        "nisa.tensor_reduce(dst=piece, op=nl.add, data=part, axis=1)",
        *(["if j == 0:", f"    {first}"] if condition else []),
        "nisa.tensor_tensor(dst=total, data1=total, data2=piece, op=nl.add)",
    ]
    lines = [
        column.format("total"),
        *([] if condition else [first]),
        "for j in nl.affine_range(n // TILE):",
        *(f"    {line}" for line in inner),
        "nisa.dma_copy(dst=out[i * P : (i + 1) * P, 0:1], src=total)",
    ]
    head = [
        "m, n = x.shape",
        "out = nl.ndarray((m, 1), dtype=x.dtype, buffer=nl.shared_hbm)",
        "for i in nl.affine_range(m // P):",
    ]
    source = _kernel("x", [*head, *(f"    {line}" for line in lines)], f"P = 128\nTILE = {tile}")
    return Sample(source, ((m, n),), lambda x: x.sum(axis=1, keepdims=True))


def draw_samples() -> st.SearchStrategy[Sample]:
    """Kernels of every kind."""
    return st.one_of(elementwise(), product(), row_norm(), running_sum())
