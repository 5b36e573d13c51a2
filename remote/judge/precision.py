"""Precision below the problem's, found in the program: inputs that reach an output only through coarse types.

A kernel may hold an input as a sum of narrow parts, each what the ones before left over: somewhere it then
subtracts a narrow value from a wide one. Whether such parts are accurate enough is for the numbers to say.
"""

from __future__ import annotations

from nki_sim.flow import provenance
from nki_sim.flow.provenance import BITS
from nki_sim.program.ir import Program

_FLOATS = frozenset(name for name in BITS if "float" in name)


def lowered(program: Program) -> tuple[str, int] | None:
    """Return the first input that reaches an output in less precision than both have, and the line of it.

    None when there is none, or the kernel splits numbers into narrow parts.
    """
    floats = {item.dtype for form in program.forms for item in form.operands} & _FLOATS
    if len(floats) < 2 or _splits(program):  # with one type there is nothing coarser than the arguments
        return None
    types = {program.site(number).name: program.site(number).dtype for number in program.inputs}
    outputs = {program.site(number).name: program.site(number).dtype for number in program.outputs}
    for tile in provenance.depends(program):
        for name, way in tile.precision.items():
            due = min(BITS[types[name]], BITS[outputs[tile.output.tensor]])
            if way in _FLOATS and BITS[way] < due:
                return f"input {name} reaches {tile.output.tensor} only as {way}", tile.line
    return None


def _splits(program: Program) -> bool:
    """Whether some subtraction has a narrower and a wider float for its operands."""
    for form in program.forms:
        if "subtract" in {value for _, value in form.params if isinstance(value, str)}:
            read = {
                BITS[item.dtype] for item in form.operands if item.role != "dst" and item.dtype in _FLOATS
            }
            if len(read) > 1:
                return True
    return False
