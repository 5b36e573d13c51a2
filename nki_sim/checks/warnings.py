"""Warns about what a target runs, but not as the kernel reads: undefined, ignored, or reported to fail.

Warnings break no rule. `nki-sim` reports them, and a simulated call emits each as a `KernelWarning`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from nki_sim.checks.program import find_overflows
from nki_sim.checks.violations import Violation
from nki_sim.compiler.tile_values import rename_program
from nki_sim.forms import PRODUCTS, Form
from nki_sim.program.ir import Program
from nki_sim.targets import Target

_V3 = 3
_TRANSPOSED_BYTES = 2


class KernelWarning(UserWarning):
    """A kernel that runs here may do something else on the device."""


def find_warnings(program: Program, target: Target) -> list[Violation]:
    """Return the warnings about a program, one for each code and tensor."""
    found = [*_overwritten_fills(program), *_form_warnings(program, target)]
    return found if program.dialect == "neuronxcc" else [*found, *_spilled_tiles(program, target)]


def emit_warning(found: Violation, filename: str) -> None:
    """Emit a warning at the kernel's line."""
    text = f"{found.code}: {found.message} ({found.hint})"
    warnings.warn_explicit(text, KernelWarning, filename, found.line)


def bracketed_launch(kernel: str, cores: int, line: int) -> Violation:
    """The warning about a launch in brackets, which NKI 0.7 deprecates."""
    return Violation(
        "launch_brackets", f"{kernel}[{cores}] names the cores of a launch, which is deprecated", "",
        "no brackets", f"[{cores}]", line,
        f"call {kernel}(...) with NEURON_LOGICAL_NC_CONFIG={cores} in the environment",
    )  # fmt: skip


def _overwritten_fills(program: Program) -> Iterator[Violation]:
    """PSUM tiles that a memset fills before products: the first product overwrites what it wrote."""
    cells = program.cells
    kinds = np.array([form.op for form in program.forms])[program.form_ids]
    writes = np.flatnonzero(cells.writes)
    filled: dict[int, int] = {}
    seen: set[int] = set()
    for cell in writes.tolist():
        number, tensor = int(cells.instruction[cell]), int(cells.tensor[cell])
        if program.site(tensor).buffer != "psum":
            continue
        if kinds[number] == "memset":
            filled[tensor] = number
        elif kinds[number] in PRODUCTS and tensor in filled:
            site, first = int(program.tensor_sites[tensor]), filled.pop(tensor)
            if site not in seen:
                seen.add(site)
                yield _warning(
                    program, first, tensor, code="psum_fill_overwritten",
                    text="a memset fills {name} before products: the first one overwrites it, and to "
                    "accumulate onto it is undefined", hint="leave the memset out",
                )  # fmt: skip


def _spilled_tiles(program: Program, target: Target) -> Iterator[Violation]:
    """SBUF that holds too little: kernels that need 224 and 322 KiB of a partition ran on Trainium 2 [M].

    Each value of a tile counts, as in what is predicted.
    """
    if not any(found.code == "sbuf_capacity" for found in find_overflows(program, target)):
        return  # values need no more room than tiles
    for found in find_overflows(rename_program(program, target), target):
        if found.code == "sbuf_capacity":
            text = f"{found.message}; the compiler spills tiles or loads them again"
            yield replace(found, code="sbuf_spill", message=text)


def _is_wide_transpose(form: Form, target: Target) -> bool:
    del target
    return form.op == "dma_transpose" and form["src"].itemsize > _TRANSPOSED_BYTES


def _drops_bias(form: Form, target: Target) -> bool:
    copies = form.op in {"activation", "activation_reduce"} and form.param("op") in {"copy", "identity"}
    return copies and form.operand("bias") is not None and target.generation < _V3


_FORM_WARNINGS: tuple[tuple[Callable[[Form, Target], bool], str, str, str], ...] = (
    (
        _is_wide_transpose, "dma_transpose_dtype",
        "dma_transpose of {name}, whose elements have more than 2 bytes, has crashed a compiler",
        "transpose on the tensor engine, with nisa.nc_transpose",
    ),
    (
        _drops_bias, "activation_bias_dropped", "activation(op=nl.copy) into {name} may drop its bias here",
        "add the bias with nisa.tensor_scalar",
    ),
)  # fmt: skip


def _form_warnings(program: Program, target: Target) -> Iterator[Violation]:
    used, firsts = np.unique(program.form_ids, return_index=True)
    seen: set[tuple[str, int]] = set()
    for form_id, number in zip(used.tolist(), firsts.tolist(), strict=True):
        form = program.forms[form_id]
        for applies, code, text, hint in _FORM_WARNINGS:
            if form.operands and applies(form, target):
                tensor = int(program.tensors[int(program.cells.first[number])])
                key = code, int(program.tensor_sites[tensor])
                if key not in seen:
                    seen.add(key)
                    yield _warning(program, number, tensor, code=code, text=text, hint=hint)


def _warning(program: Program, number: int, tensor: int, *, code: str, text: str, hint: str) -> Violation:
    name = program.site(tensor).name
    return Violation(code, text.format(name=name), name, 0, 0, int(program.lines[number]), hint)
