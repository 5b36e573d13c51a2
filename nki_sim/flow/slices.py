"""Extracts parts of a program: the instructions that some output tiles need, at the full problem size.

Which writes reach a read is exact element by element (`trace_data_flow`), so running a slice gives the same
wanted elements as running the whole program. An instruction belongs to a slice as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from nki_sim.dtypes import DTYPES
from nki_sim.errors import InputError
from nki_sim.flow.graph import DataFlow, needed_instructions, trace_data_flow, uncertain_writes
from nki_sim.flow.regions import make_element_marks, pattern_in_bytes
from nki_sim.forms import Dims
from nki_sim.program.ir import Bools, Program

ElementBox = tuple[tuple[int, int], ...]
"""(first, end) along each dimension of an output."""


def slice_backward(program: Program, wanted: Mapping[int, Sequence[ElementBox]]) -> Program:
    """Return the program with only the instructions that the wanted parts of its outputs need.

    `wanted` gives boxes of elements by output position; outputs that are missing need nothing.

    Raises:
        InputError: there is no such output, or a box is not inside it.
    """
    traced = trace_data_flow(program)
    cells = [
        cell for at, boxes in wanted.items() for cell in _final_writers(program, traced, at, boxes=boxes)
    ]
    return select_instructions(program, needed_instructions(program, traced, cells))


def select_instructions(program: Program, chosen: Bools) -> Program:
    """The same program with only the chosen instructions."""
    kept = chosen[program.cells.instruction]
    nodes = program.iterations.nodes
    return replace(
        program,
        form_ids=program.form_ids[chosen],
        lines=program.lines[chosen],
        cores=program.cores[chosen],
        tensors=program.tensors[kept],
        offsets=program.offsets[kept],
        iterations=replace(program.iterations, nodes=nodes[chosen] if len(nodes) else nodes),
    )


def _final_writers(program: Program, traced: DataFlow, at: int, *, boxes: Sequence[ElementBox]) -> list[int]:
    """The writes of which some element is in the boxes at the end."""
    if not 0 <= at < len(program.outputs):
        raise InputError(f"{program.kernel} has {len(program.outputs)} outputs, there is no number {at}")
    tensor = program.outputs[at]
    bits = _mark_boxes(program, tensor, boxes)
    mixed = tensor in program.reinterpreted_tensors
    if mixed:
        bits = np.repeat(bits, DTYPES[program.site(tensor).dtype].itemsize)
    soft, cells = uncertain_writes(program), program.cells
    found = []
    for cell in reversed(traced.finals[tensor]):
        item, offset = program.operands[cells.operand[cell]], int(cells.offset[cell])
        part = (
            _touched_bits(bits, offset * item.itemsize, pattern_in_bytes(item))
            if mixed
            else _touched_bits(bits, offset, item.dims)
        )
        if soft[cell] or part.any():
            found.append(cell)
            part[...] = part & soft[cell]
    return found


def _mark_boxes(program: Program, tensor: int, boxes: Sequence[ElementBox]) -> Bools:
    site = program.site(tensor)
    bits = make_element_marks(site.size).reshape(site.shape)
    for box in boxes:
        inside = [0 <= first < end <= size for (first, end), size in zip(box, site.shape, strict=False)]
        if len(box) != len(site.shape) or not all(inside):
            raise InputError(f"{box} is not a box of elements in output {site.name} {site.shape}")
        bits[tuple(slice(first, end) for first, end in box)] = True
    return bits.reshape(-1)


def _touched_bits(bits: Bools, offset: int, dims: Dims) -> Bools:
    """The bits of the elements that a pattern touches."""
    shape = tuple(count for _, count in dims)
    return np.ndarray(shape, np.bool_, bits, offset, tuple(step for step, _ in dims))
