"""Tracks the loop iteration of each instruction, where iterations may run in any order."""

from __future__ import annotations

from array import array

from nki_sim.errors import LimitError
from nki_sim.forms import MAX_DEPTH


class IterationTracker:
    """The iterations being executed, and a table of the iterations with recorded instructions."""

    def __init__(self) -> None:
        self._node_table = (array("I"), array("I"), array("I"))
        # The iterations being executed, outermost first: loop, index, number (0 until it is recorded).
        self._iterating: list[list[int]] = []
        self._node = 0
        self._loops = 0

    def new_loop(self) -> int:
        """Number one execution of a loop whose iterations may run in any order (`affine_range`)."""
        self._loops += 1
        return self._loops - 1

    def enter_iteration(self, loop: int, index: int) -> None:
        """Assign what is recorded from here on to iteration `index` (not negative) of the loop."""
        if len(self._iterating) >= MAX_DEPTH:
            raise LimitError("limit_loops", f"more than {MAX_DEPTH} loops inside each other")
        self._iterating.append([loop, index, 0])
        self._node = -1

    @property
    def current_iteration(self) -> int:
        """The number of the iteration being executed, 0 outside."""
        return self._node if self._node >= 0 else self._record_iterations()

    def leave_iteration(self) -> None:
        """End the innermost iteration."""
        self._iterating.pop()
        self._node = self._iterating[-1][2] or -1 if self._iterating else 0

    def _record_iterations(self) -> int:
        """Add the open iterations to the table; return the number of the innermost one."""
        parents, loops, indices = self._node_table
        number = 0
        for entry in self._iterating:
            if not entry[2]:
                parents.append(number)
                loops.append(entry[0])
                indices.append(entry[1])
                entry[2] = len(parents)
            number = entry[2]
        self._node = number
        return number
