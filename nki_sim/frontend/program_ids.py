"""Where in the launch a program is: `nl.program_id` and its like."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from nki_sim.frontend.context import current_recorder
from nki_sim.frontend.storage import fail


def program_id(axis: int = 0) -> int:
    """The place of the program in the launch grid."""
    grid, program = current_recorder().grid, current_recorder().program
    if not grid:
        return 0
    if not -len(grid) <= axis < len(grid):
        fail("axis", f"nl.program_id({axis}): the launch grid has {len(grid)} axes")
    return program[axis]


def num_programs(axes: int | Sequence[int] | None = 0) -> int:
    """Programs of the launch along some axes of its grid, along all of them with None."""
    grid = current_recorder().grid
    if axes is None or not grid:
        return prod(grid)
    chosen = [axes] if isinstance(axes, int) else list(axes)
    if any(not -len(grid) <= axis < len(grid) for axis in chosen):
        fail("axis", f"nl.num_programs({axes}): the launch grid has {len(grid)} axes")
    return prod(grid[axis] for axis in chosen)


def program_ndim() -> int:
    """Axes of the launch grid, 0 without one."""
    return len(current_recorder().grid)
