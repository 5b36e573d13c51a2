"""Problems in the file layout of NKIBench, taken as they are: `convert_path` makes ordinary problems of them.

    summary.json                                  problems, their sizes, their files
    reference/<problem>_<sizes>_numpy_<n>.py      sizes, `get_inputs`, `forward`, what kernels get
    kernels/<problem>_<sizes>_<n>.py              an initial kernel

Everything is read off the files' text; what runs, runs later and elsewhere, as with any problem. `layout`
finds the files, `conversion` reads them, `shape_inference` finds the shapes of what `forward` returns.
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
    """Return the files of a problem made of NKIBench's at `path`; None where none are there.

    `path` is a kernel, a reference, or the folder with a problem's name after it. `known` gives the
    specification of a problem that comes with the program.

    Raises:
        UnknownProblemError: the folder is one of NKIBench's, but there is no such problem in it.
        SpecError: the files are there and cannot be read; the error lists every fault.
    """
    found = layout.find_entry(path)
    return None if found is None else convert_entry(found, known(found.name))
