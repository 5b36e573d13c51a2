"""`nl.program_id` and related functions: the position of a program in the launch."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from nki_sim.frontend.context import current_recorder
from nki_sim.frontend.storage import fail


def program_id(axis: int = 0) -> int:
    """Return the program's position in the launch grid."""
    grid, program = current_recorder().grid, current_recorder().program
    if not grid:
        return 0
    if not -len(grid) <= axis < len(grid):
        fail("axis", f"nl.program_id({axis}): the launch grid has {len(grid)} axes")
    return program[axis]


def num_programs(axes: int | Sequence[int] | None = 0) -> int:
    """Return the number of programs along some axes of the launch grid, or along all with None."""
    grid = current_recorder().grid
    if axes is None or not grid:
        return prod(grid)
    chosen = [axes] if isinstance(axes, int) else list(axes)
    if any(not -len(grid) <= axis < len(grid) for axis in chosen):
        fail("axis", f"nl.num_programs({axes}): the launch grid has {len(grid)} axes")
    return prod(grid[axis] for axis in chosen)


def program_ndim() -> int:
    """Return the number of axes of the launch grid, 0 without one."""
    return len(current_recorder().grid)
