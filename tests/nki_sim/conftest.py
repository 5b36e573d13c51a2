"""Kernels and helpers that the simulator's tests share: sources are text, as they come to the tracer."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import nki_sim
from nki_sim import ArraySpec, targets
from nki_sim.checks import program as checks
from nki_sim.errors import KernelError
from nki_sim.frontend import isa
from nki_sim.frontend.recorder import Recorder, recording
from nki_sim.operators import OPERATORS
from nki_sim.program.ir import Program
from nki_sim.running import numerics
from nki_sim.semantics.arrays import NUMPY
from tests.nki_sim import lowered

HEADER = "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n\n\n"
NAMES = {dtype: name for name, dtype in NUMPY.items()}

MATMUL = """
@nki.jit
def kernel(lhs, rhs):
    m, k = lhs.shape
    n = rhs.shape[1]
    out = nl.ndarray((m, n), dtype=lhs.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(m // 128):
        x = nl.ndarray((128, k), dtype=lhs.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x, src=lhs[i * 128:(i + 1) * 128, 0:k])
        xt = nl.ndarray((128, k // 128, 128), dtype=lhs.dtype, buffer=nl.sbuf)
        for q in nl.affine_range(k // 128):
            flipped = nl.ndarray((128, 128), dtype=lhs.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=flipped, data=x[:, nl.ds(q * 128, 128)])
            nisa.tensor_copy(dst=xt[:, q, :], src=flipped)
        for j in nl.affine_range(n // 512):
            acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
            for q in nl.affine_range(k // 128):
                w = nl.ndarray((128, 512), dtype=rhs.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=w, src=rhs[q * 128:(q + 1) * 128, j * 512:(j + 1) * 512])
                nisa.nc_matmul(dst=acc, stationary=xt[:, q, :], moving=w)
            res = nl.ndarray((128, 512), dtype=out.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=res, src=acc)
            nisa.dma_copy(dst=out[i * 128:(i + 1) * 128, j * 512:(j + 1) * 512], src=res)
    return out
"""

# One tile after the other through three engines; FRESH declares tiles in the loop, else before it.
STREAM = """
WIDTH = {width}
FRESH = {fresh}

@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray((128, WIDTH), dtype=x.dtype, buffer=nl.sbuf)
    u = nl.ndarray((128, WIDTH), dtype=x.dtype, buffer=nl.sbuf)
    for i in range(m // 128):
        for j in range(n // WIDTH):
            if FRESH:
                t = nl.ndarray((128, WIDTH), dtype=x.dtype, buffer=nl.sbuf)
                u = nl.ndarray((128, WIDTH), dtype=x.dtype, buffer=nl.sbuf)
            part = (slice(i * 128, (i + 1) * 128), slice(j * WIDTH, (j + 1) * WIDTH))
            nisa.dma_copy(dst=t, src=x[part])
            nisa.activation(dst=u, op=nl.exp, data=t)
            nisa.tensor_tensor(dst=u, data1=u, data2=t, op=nl.add)
            nisa.dma_copy(dst=out[part], src=u)
    return out
"""

Tracer = Callable[..., Program]


def source_of(text: str) -> str:
    """A kernel file: the imports, then the text."""
    return HEADER + textwrap.dedent(text)


def spec_of(value: Any) -> Any:
    """The argument that stands for an array or a scalar when tracing."""
    return ArraySpec(value.shape, NAMES[value.dtype]) if isinstance(value, np.ndarray) else value


@pytest.fixture(scope="session")
def tracing() -> Tracer:
    """trace(text, *arrays, specs or scalars, target=)."""

    def trace(text: str, *args: Any, target: str = "trn2", **options: Any) -> Program:
        return nki_sim.trace(source_of(text), args=[spec_of(arg) for arg in args], target=target, **options)

    return trace


@pytest.fixture(scope="session")
def simulate(tracing: Tracer) -> Callable[..., list[Any]]:
    """Trace and run on the arrays given; the outputs."""

    def run(text: str, *args: Any, target: str = "trn2") -> list[Any]:
        arrays = [arg for arg in args if isinstance(arg, np.ndarray)]
        return numerics.run(tracing(text, *args, target=target), arrays)

    return run


def on_chip(inputs: Sequence[str], body: str, *, shape: str = "(p, f)", dtype: str = "nl.float32") -> str:
    """A kernel that loads each input into SBUF under its name with an s before it, runs `body`, stores `r`.

    `p` and `f` are the first input's partitions and free elements; `r` has `shape` and `dtype`.
    """
    lines = [
        "@nki.jit",
        f"def kernel({', '.join(inputs)}):",
        f"    p, f = {inputs[0]}.shape",
        f"    out = nl.ndarray({shape}, dtype={dtype}, buffer=nl.shared_hbm)",
        f"    r = nl.ndarray({shape}, dtype={dtype}, buffer=nl.sbuf)",
    ]
    for name in inputs:
        lines += [
            f"    s{name} = nl.ndarray({name}.shape, dtype={name}.dtype, buffer=nl.sbuf)",
            f"    nisa.dma_copy(dst=s{name}, src={name})",
        ]
    lines += [f"    {line}" for line in textwrap.dedent(body).strip().splitlines()]
    return "\n".join([*lines, "    nisa.dma_copy(dst=out, src=r)", "    return out"])


class Texts:
    """The shared sources, for tests under an import mode without sibling imports."""

    matmul = MATMUL
    stream = staticmethod(lambda *, width=512, fresh=True: STREAM.format(width=width, fresh=fresh))
    on_chip = staticmethod(on_chip)
    source_of = staticmethod(source_of)


@pytest.fixture(scope="session")
def texts() -> type[Texts]:
    return Texts


@pytest.fixture(scope="session")
def refusals() -> Callable[..., set[str]]:
    """refusals(source): the codes of what a kernel of one [128, 512] float32 array is refused for.

    It is traced, checked, and run when nothing was found until then.
    """

    def found(source: str, target: str = "trn2", **options: Any) -> set[str]:
        try:
            program = nki_sim.trace(source, args=[ArraySpec((128, 512), "float32")], target=target, **options)
            broken = {item.code for item in checks.check(program, targets.load(target))}
            if not broken:
                numerics.run(program, [np.ones((128, 512), np.float32)])
        except KernelError as error:
            return {error.code}
        return broken

    return found


class Builder:
    """A program written instruction by instruction, as no front end would: iterations, cores, loops."""

    def __init__(self, dialect: str, target: str) -> None:
        self.recorder = Recorder(targets.load(target), "none.py", max_instructions=100_000)
        self.recorder.dialect = dialect
        self.x = self.recorder.declare_argument("x", (128, 64), "float32")
        self.out = self.recorder.declare((128, 64), "float32", "shared_hbm", "out")

    def tile(self, name: str, free: int = 64, buffer: str = "sbuf") -> Any:
        tile = self.recorder.declare((128, free), "float32", buffer, name)
        if buffer == "sbuf":
            isa.memset(tile, 0.0)
        return tile

    @contextmanager
    def iteration(self, loop: int, index: int) -> Iterator[None]:
        self.recorder.enter_iteration(loop, index)
        yield
        self.recorder.leave_iteration()

    def emit(self, name: str, **given: Any) -> None:
        self.recorder.emit(OPERATORS[name], given)

    def register(self, dtype: str = "int32") -> Any:
        return self.recorder.declare((1, 1), dtype, "register", "reg")

    def loop(self, count: int, body: Callable[[int], None]) -> None:
        number = self.recorder.new_loop()
        for index in range(count):
            with self.iteration(number, index):
                body(index)


@pytest.fixture(scope="session")
def building() -> Callable[..., Program]:
    """building(body): the program of what `body(builder)` records, then a copy of `x` to `out`."""

    def build(
        body: Callable[[Builder], None], *, dialect: str = "neuronxcc", target: str = "trn2"
    ) -> Program:
        builder = Builder(dialect, target)
        with recording(builder.recorder):
            body(builder)
            isa.dma_copy(builder.out, builder.x)
        return Program.from_bytes(builder.recorder.to_bytes("kernel", [builder.out._storage.id]))

    return build


@pytest.fixture(scope="module")
def evaluate(simulate: Any) -> Callable[..., Any]:
    """What an expression over tiles named a, b, c gives; `fn` holds the functions."""

    def run(body: str, *arrays: Any, **options: Any) -> Any:
        names = ", ".join("abc"[: len(arrays)])
        return simulate(lowered.KERNEL.format(names=names, body=body), *arrays, **options)[0]

    return run
