"""Small kernels whose times tell the constants of a device apart, and the built-in problems at reduced size.

A micro-kernel repeats one instruction or one transfer, at two or more sizes and counts: the slope between
them is the cost of the instruction, what is left is latency. Each family varies one mechanism. All kernels
copy a tile of their input to the output at the end, so that a compiler has no reason to drop anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import seeds
from seeds.problem import Problem, build_problem
from seeds.problem_files import KERNEL_FILE, REFERENCE_FILE, SPEC_FILE

_HEADER = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
"""

_SPEC = """name = "{name}"
formula = "a micro-kernel: only its time counts"
rel_l2 = 0.5
seeds = [0]
shape_generic = true

[sizes.full]
M = {rows}
N = {columns}

[sizes.reduced]
M = {rows}
N = {columns}

[[inputs]]
name = "x"
shape = ["M", "N"]

[[outputs]]
name = "out"
shape = [128, 512]

[work]
other_flops = 0
"""

_REFERENCE = "def reference(x):\n    return x\n"

_LAST = (
    "last = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)",
    "nisa.dma_copy(dst=last, src=x[0:128, 0:512])",
    "nisa.dma_copy(dst=out, src=last)",
)

SMALL_PROBLEMS = (
    "adamw", "add_rmsnorm_matmul", "bmm", "bmm_softmax", "lora", "matmul", "matmul_add_rmsnorm",
    "rmsnorm_matmul", "rope_single_freq_apply", "silu", "swiglu", "transpose_matmul",
)  # fmt: skip
"""The built-in problems whose starting kernels are timed at reduced size."""


@dataclass(frozen=True, slots=True)
class CalibrationKernel:
    """A kernel to be timed, as a problem with its starting kernel; `family` names the mechanism it varies."""

    name: str
    family: str
    problem: Problem

    @property
    def source(self) -> str:
        return self.problem.kernel


def calibration_kernels() -> tuple[CalibrationKernel, ...]:
    """All micro-kernels and the small problems, always in the same order."""
    micro = tuple(_make_kernel(*one) for one in _micro_kernels())
    small = (CalibrationKernel(name, name, seeds.load_problem(name)) for name in SMALL_PROBLEMS)
    return (*micro, *small)


def _make_kernel(family: str, detail: str, body: Sequence[str], shape: tuple[int, int]) -> CalibrationKernel:
    name = f"{family}_{detail}"
    text = _HEADER + "".join(f"    {line}\n" for line in (*body, *_LAST)) + "    return out\n"
    files = {
        SPEC_FILE: _SPEC.format(name=name, rows=shape[0], columns=shape[1]),
        KERNEL_FILE: text,
        REFERENCE_FILE: _REFERENCE,
    }
    return CalibrationKernel(
        name, family, build_problem({path: body.encode() for path, body in files.items()})
    )


_Micro = tuple[str, str, Sequence[str], tuple[int, int]]


def _micro_kernels() -> Iterator[_Micro]:
    yield "overhead", "copy", (), (128, 512)
    yield from _transfers()
    yield from _products()
    yield from _elementwise()
    yield from _chains()
    yield from _reused_tiles()


def _tile(name: str, shape: str, *, dtype: str = "float32", buffer: str = "sbuf") -> str:
    return f"{name} = nl.ndarray({shape}, dtype=nl.{dtype}, buffer=nl.{buffer})"


def _loop(count: int, *lines: str) -> tuple[str, ...]:
    return (f"for i in nl.affine_range({count}):", *(f"    {line}" for line in lines))


def _transfers() -> Iterator[_Micro]:
    """Loads by length of their rows and by number, of few partitions, of short strided runs, and stores."""
    for columns in (8, 64, 256, 1024, 4096):
        for count in (4, 24):
            source = f"x[0:128, i * {columns} : (i + 1) * {columns}]"
            body = _loop(count, _tile("t", f"(128, {columns})"), f"nisa.dma_copy(dst=t, src={source})")
            yield "load", f"{columns}x{count}", body, (128, max(512, columns * count))
    for rows in (1, 16):
        body = _loop(16, _tile("t", f"({rows}, 2048)"), f"nisa.dma_copy(dst=t, src=x[0:{rows}, 0:2048])")
        yield "load_rows", str(rows), body, (128, 2048)
    for run in (1, 4, 32):
        body = _loop(
            8, _tile("t", f"(128, 64, {run})"),
            f"nisa.dma_copy(dst=t, src=x.reshape((128, 64, 64))[:, :, 0:{run}])",
        )  # fmt: skip
        yield "load_runs", str(run), body, (128, 4096)
    for count in (4, 24):
        body = (
            "spare = nl.ndarray((128, 24576), dtype=nl.float32, buffer=nl.private_hbm)",
            _tile("t", "(128, 1024)"),
            "nisa.dma_copy(dst=t, src=x[0:128, 0:1024])",
            *_loop(count, "nisa.dma_copy(dst=spare[0:128, i * 1024 : (i + 1) * 1024], src=t)"),
        )
        yield "store", str(count), body, (128, 1024)


def _products() -> Iterator[_Micro]:
    """Products by type, columns and number, and transposes."""
    for dtype in ("float32", "bfloat16"):
        for columns, count in ((64, 32), (512, 32), (512, 192)):
            body = (
                _tile("a", "(128, 128)", dtype=dtype),
                _tile("b", f"(128, {columns})", dtype=dtype),
                "nisa.memset(dst=a, value=1.0)",
                "nisa.memset(dst=b, value=1.0)",
                *_loop(
                    count // 16,
                    _tile("acc", f"(128, {columns})", buffer="psum"),
                    "for k in nl.affine_range(16):",
                    "    nisa.nc_matmul(dst=acc, stationary=a, moving=b)",
                    _tile("r", f"(128, {columns})"),
                    "nisa.tensor_copy(dst=r, src=acc)",
                ),
            )
            yield "product", f"{dtype}_{columns}x{count}", body, (128, 512)
    for count in (8, 48):
        body = (
            _tile("a", "(128, 128)"),
            "nisa.memset(dst=a, value=1.0)",
            *_loop(
                count,
                _tile("p", "(128, 128)", buffer="psum"),
                "nisa.nc_transpose(dst=p, data=a)",
                _tile("r", "(128, 128)"),
                "nisa.tensor_copy(dst=r, src=p)",
            ),
        )
        yield "transpose", str(count), body, (128, 512)


_INSTRUCTIONS = {
    "vector_add": ("nisa.tensor_tensor(dst=r, data1=a, data2=b, op=nl.add)", "float32", "sbuf"),
    "vector_scalar": ("nisa.tensor_scalar(dst=r, data=a, op0=nl.add, operand0=1.0)", "float32", "sbuf"),
    "vector_half": ("nisa.tensor_tensor(dst=r, data1=a, data2=b, op=nl.add)", "bfloat16", "sbuf"),
    "vector_psum": ("nisa.tensor_tensor(dst=r, data1=a, data2=b, op=nl.add)", "float32", "psum"),
    "reciprocal": ("nisa.reciprocal(dst=r, data=a)", "float32", "sbuf"),
    "scalar_exp": ("nisa.activation(dst=r, op=nl.exp, data=a)", "float32", "sbuf"),
    "scalar_psum": ("nisa.activation(dst=r, op=nl.copy, data=a)", "float32", "psum"),
    "gpsimd_add": (
        "nisa.tensor_tensor(dst=r, data1=a, data2=b, op=nl.add, engine=nki.isa.gpsimd_engine)",
        "float32",
        "sbuf",
    ),
}
"""Instructions over tiles `a` and `b` to `r`: the text, the type, and the memory of `a`."""


def _elementwise() -> Iterator[_Micro]:
    """Independent instructions of each engine, by number of elements."""
    for family, (text, dtype, buffer) in _INSTRUCTIONS.items():
        for columns, count in ((32, 64), (512, 16), (512, 64)):
            body = (
                _tile("a", f"(128, {columns})", dtype=dtype, buffer=buffer),
                _tile("b", f"(128, {columns})", dtype=dtype),
                "nisa.memset(dst=a, value=1.0)",
                "nisa.memset(dst=b, value=1.0)",
                *_loop(count, _tile("r", f"(128, {columns})", dtype=dtype), text),
            )
            yield family, f"{columns}x{count}", body, (128, 512)


def _chains() -> Iterator[_Micro]:
    """Instructions that each read the result of the one before: on one engine, and in turns on two."""
    first = "nisa.tensor_scalar(dst=r, data=r, op0=nl.add, operand0=1.0)"
    second = "nisa.activation(dst=r, op=nl.exp, data=r)"
    for family, texts in (("chain_one", (first,)), ("chain_two", (first, second))):
        for count in (8, 48):
            body = (
                _tile("r", "(128, 64)"),
                "nisa.memset(dst=r, value=0.0)",
                f"for i in nl.sequential_range({count}):",
                *(f"    {text}" for text in texts),
            )
            yield family, str(count), body, (128, 512)


def _reused_tiles() -> Iterator[_Micro]:
    """A loop of load, arithmetic and store whose tile is declared inside the loop, and outside it."""
    steps = (
        "nisa.dma_copy(dst=t, src=x[0:128, i * 2048 : (i + 1) * 2048])",
        "nisa.activation(dst=t, op=nl.exp, data=t)",
        "nisa.dma_copy(dst=spare[0:128, i * 2048 : (i + 1) * 2048], src=t)",
    )
    for count in (4, 12):
        spare = f"spare = nl.ndarray((128, {2048 * count}), dtype=nl.float32, buffer=nl.private_hbm)"
        tile = _tile("t", "(128, 2048)")
        shape = (128, 2048 * count)
        yield "tile_inside", str(count), (spare, *_loop(count, tile, *steps)), shape
        yield "tile_outside", str(count), (spare, tile, *_loop(count, *steps)), shape
