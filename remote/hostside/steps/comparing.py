"""Step `compare`: shows home parts of outputs that an earlier job left, whole or as sketches.

Home names the parts and the seed only now, after the kernel has ended and the digests of all outputs are
known. Payload: `seed`, `outputs` (sha256 by set and position, as the earlier job answered them), `dtypes` by
position, `shapes` by position, `pieces`: each `set`, `output`, `box` ([[first, end], ...], null for the whole
output), `bins` (0: the bytes themselves). Leaves `out/pieces.bin`, the pieces one after the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from remote.hostside.steps import libraries
from remote.hostside.steps.executing import find_output
from remote.hostside.task import StepTask


def run(folder: Path) -> None:
    """Write the pieces."""
    task = StepTask(folder)
    libraries.import_archives(task)
    with (task.out / "pieces.bin").open("wb") as file:
        for piece in task.payload["pieces"]:
            file.write(_read_piece(task, piece))
    task.write_answer({})


def _read_piece(task: StepTask, piece: dict[str, Any]) -> bytes:
    import numpy as np

    from remote.judge import sketch
    from seeds.inputs import dtype_of

    number = piece["output"]
    path = find_output(task, task.payload["outputs"][piece["set"]][number])
    array = np.load(path, mmap_mode="r", allow_pickle=False).view(dtype_of(task.payload["dtypes"][number]))
    array = array.reshape(task.payload["shapes"][number])
    if piece["box"] is not None:
        array = array[tuple(slice(first, end) for first, end in piece["box"])]
    if piece["bins"]:
        return sketch.pack_sketch(np.ascontiguousarray(array), task.payload["seed"], piece["bins"])
    return np.ascontiguousarray(array).tobytes()
