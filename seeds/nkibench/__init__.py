"""Imports problems in NKIBench's file layout: `convert_path` turns them into ordinary problems.

    summary.json                                  problems, their sizes, their files
    reference/<problem>_<sizes>_numpy_<n>.py      sizes, `get_inputs`, `forward`, what kernels get
    kernels/<problem>_<sizes>_<n>.py              an initial kernel

Only the text of the files is read; no code runs here. `layout` finds the files, `conversion` reads them, and
`shape_inference` finds the shapes of what `forward` returns.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from seeds.nkibench import layout
from seeds.nkibench.conversion import convert_entry

if TYPE_CHECKING:
    from seeds.spec import ProblemSpec


def convert_path(path: Path, known: Callable[[str], ProblemSpec | None]) -> dict[str, bytes] | None:
    """Return the files of a problem converted from NKIBench's files at `path`, or None if there are none.

    `path` is a kernel, a reference, or the folder followed by a problem's name. `known` returns the spec of a
    problem that comes with the program.

    Raises:
        UnknownProblemError: the folder is NKIBench's, but has no such problem.
        SpecError: the files cannot be read; the error lists every fault.
    """
    found = layout.find_entry(path)
    return None if found is None else convert_entry(found, known(found.name))
