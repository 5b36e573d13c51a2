"""The header of a problem: its dimensions as constants, its types, and the prototype of the kernel.

It is included before the first line of every kernel. For `silu` at 256 x 2048:

    enum { M = 256, N = 2048 };
    void kernel(const float *restrict x, float *restrict out);

Inputs come in the order of the specification with the scalars among them, then the outputs. Arrays are dense,
row-major and aligned to 64 bytes. They do not overlap. Inputs are read-only.
"""

from __future__ import annotations

from seeds.spec import ProblemSpec, ScalarValue

C_TYPES = {"float32": "float", "int32": "int32_t", "float16": "_Float16", "bfloat16": "__bf16"}

_PREAMBLE = """#ifndef KERNEL_PROBLEM_H
#define KERNEL_PROBLEM_H
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __cplusplus
#define restrict __restrict__
extern "C" {{
#endif
enum {{ {dims} }};
void kernel({arguments});
#ifdef __cplusplus
}}
#endif
#endif
"""


def render_header(spec: ProblemSpec, size: str) -> str:
    """Return the text of the header at a size.

    Raises:
        UnknownSizeError: the spec has no such size.
    """
    dims = ", ".join(f"{name} = {value}" for name, value in sorted(spec.dims(size).items()))
    return _PREAMBLE.format(dims=dims, arguments=", ".join(_arguments(spec)))


def _arguments(spec: ProblemSpec) -> list[str]:
    arrays = [f"const {C_TYPES[item.dtype]} *restrict {item.name}" for item in spec.inputs]
    scalars = iter(spec.scalars)
    # `call_arguments` puts the scalars where the problem wants them, but hands over their values only.
    ordered = iter(sorted(scalars, key=lambda item: _place(item.position)))
    told = spec.call_arguments(arrays, lambda value: _declare_scalar(next(ordered).name, value))
    return [*told, *(f"{C_TYPES[item.dtype]} *restrict {item.name}" for item in spec.outputs)]


def _place(position: int | None) -> int:
    return 1 << 30 if position is None else position


def _declare_scalar(name: str, value: ScalarValue) -> str:
    return f"{scalar_type(value)} {name}"


def scalar_type(value: ScalarValue) -> str:
    """Return the C type in which kernels get a scalar."""
    return "int" if isinstance(value, bool | int) else "double"
