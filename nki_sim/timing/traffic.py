"""Counts the bytes that a program moves and its flops, in one of the profiler's two conventions.

DMA counts its bytes on both sides. Engines count what their instructions read and write: over all partitions,
or for one partition in the legacy profiler, which also leaves out some operands.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nki_sim.compiler.compiled_program import RELOAD, SAVE, CompiledProgram
from nki_sim.dtypes import PACKED_ELEMENTS
from nki_sim.forms import PRODUCTS, Form, Operand
from nki_sim.operators import OPERATORS
from nki_sim.operators.rules.matrix import rows_per_partition
from nki_sim.program.ir import Program

MEMORIES = ("hbm", "sbuf", "psum")

Counters = dict[str, float | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountingConvention:
    """How a profiler counts. `percent` is the value that stands for 100 %.

    `per_partition`: engines' bytes are those of one partition. `uncounted` are instructions whose operands do
    not count; `scalar_operands` says whether [P, 1] operands beside data count. A float32 product is
    `fp32_instructions` instructions on the tensor engine, each with its flops and bytes. `scratch_spills`:
    tensors in HBM that the kernel declares and does not return count as spills too.
    """

    per_partition: bool = False
    uncounted: frozenset[str] = frozenset()
    scalar_operands: bool = True
    fp32_instructions: int = 1
    scratch_spills: bool = False
    percent: float = 100.0


def profiled_instructions(form: Form, convention: CountingConvention) -> int:
    """How many instructions the profiler sees for one of this form."""
    moving = form.operand("moving" if form.op == "nc_matmul" else "data")
    if form.engine != "tensor" or moving is None or moving.dtype != "float32":
        return 1
    # A product over one partition copies a row to all partitions, which takes one instruction.
    return convention.fp32_instructions if moving.partitions > 1 else 1


def count_traffic(program: Program, convention: CountingConvention) -> Counters:
    """`{memory}_{read|write}_bytes`, and bytes that engines move from PSUM to SBUF."""
    found: Counters = {f"{name}_{way}_bytes": 0 for name in MEMORIES for way in ("read", "write")}
    moved = {"psum_read_sbuf_write_count": 0, "psum_read_sbuf_write_bytes": 0}
    for form, count in zip(program.forms, count_forms(program), strict=True):
        sizes = form_bytes(form, convention)
        for name, size in sizes.items():
            found[name] += size * count
        if form.engine != "dma" and sizes.get("psum_read_bytes") and "sbuf_write_bytes" in sizes:
            moved["psum_read_sbuf_write_count"] += count * profiled_instructions(form, convention)
            moved["psum_read_sbuf_write_bytes"] += sizes["psum_read_bytes"] * count
    return {**found, **moved}


def count_forms(program: Program) -> list[int]:
    """How many instructions each form has."""
    found: list[int] = np.bincount(program.form_ids, minlength=len(program.forms)).tolist()
    return found


def form_bytes(form: Form, convention: CountingConvention) -> dict[str, int]:
    """What one instruction of a form moves, by counter."""
    found: dict[str, int] = {}
    if form.op in convention.uncounted:
        return found
    outputs, times = OPERATORS[form.op].outputs, profiled_instructions(form, convention)
    single = convention.per_partition and form.engine != "dma"
    for item in form.operands:
        if item.buffer == "register" or not (convention.scalar_operands or _is_data(form, item)):
            continue
        memory = "hbm" if item.in_hbm else item.buffer
        name = f"{memory}_{'write' if item.role in outputs else 'read'}_bytes"
        found[name] = found.get(name, 0) + times * (item.nbytes // item.partitions if single else item.nbytes)
    if form.op == "nc_transpose" and form.engine == "tensor":
        # A PE transpose is a product with an identity, which also lies in SBUF.
        row = form["data"].partitions * form["data"].itemsize
        found["sbuf_read_bytes"] += times * row * (1 if single else form["data"].partitions)
    return found


def form_flops(form: Form) -> int:
    """2 * rows * columns * moving elements; a PE transpose multiplies by an identity. 0 on other engines.

    With double rows both operands hold two rows of the contraction in a partition, MX operands hold four.
    """
    if form.engine != "tensor" or not form.operands:  # a barrier multiplies nothing
        return 0
    if form.op in PRODUCTS:
        moving = form["moving"]
        products = moving.partitions * form["stationary"].free * moving.free
        return (
            2 * products * (PACKED_ELEMENTS if form.op == "nc_matmul_mx" else 1) // rows_per_partition(form)
        )
    data = form["data"]
    return 2 * data.partitions * data.partitions * data.free


def is_transpose(form: Form) -> bool:
    """Whether the tensor engine only moves data."""
    return form.op == "nc_transpose" or bool(form.param("is_transpose"))


def _is_data(form: Form, item: Operand) -> bool:
    """Whether an operand is data, not just one number per partition."""
    return item.free > 1 or all(other.free == 1 for other in form.tiles)


def count_spills(compiled: CompiledProgram, convention: CountingConvention) -> Counters:
    """Bytes of tiles that the compiler saves to HBM and reads back."""
    program, cells = compiled.program, compiled.program.cells
    sizes = np.array([item.nbytes * item.in_hbm for item in program.operands], dtype=np.int64)[cells.operand]
    origins = compiled.origins[cells.instruction]
    saved, reloaded = origins == SAVE, origins == RELOAD
    if convention.scratch_spills:
        internal = np.ones(len(program.tensor_sites), dtype=bool)
        internal[[*program.inputs, *program.outputs, *program.constants]] = False
        chosen = internal[cells.tensor]
        saved, reloaded = chosen & cells.writes, chosen & ~cells.writes
    return {"spill_save_bytes": int(sizes[saved].sum()), "spill_reload_bytes": int(sizes[reloaded].sum())}
