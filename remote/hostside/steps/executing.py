"""Step `execute`: runs a compiled kernel on input sets, on one device core, without the kernel's Python.

Payload: `artefact` (key of the compiled kernel), `key`, `spec` and `sets` as for `draw`, `shapes` (those
under which the kernel gets its inputs), `sizes` (bytes of each output), `work` (the simulator's limit of
work). Answer: per set, in order, the sha256 of each output, or the kernel's error, after which no set
follows; or that `error` alone if the kernel could not be loaded. Outputs stay here under their digest until
they are the oldest.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Sequence

from remote.hostside import devices
from remote.hostside.steps import compiling, drawing, libraries
from remote.hostside.steps.folder_cache import FolderCache
from remote.hostside.task import StepTask

MAX_BYTES = 32 << 30


class GoneError(Exception):
    """Something that an earlier job left is no longer here; home starts the evaluation again."""


def run(folder: Path) -> None:
    """Run the kernel on each set until one fails."""
    task = StepTask(folder)
    libraries.import_archives(task)
    artefact = compiling.find_artefact(task)
    try:
        with devices.open_kernel(task, artefact) as device:
            task.write_answer({"sets": _run_input_sets(task, device)})
    except devices.KernelFaultError as fault:  # it could not even be loaded
        task.write_answer({"error": fault.told})


def _run_input_sets(task: StepTask, device: devices.LoadedKernel) -> dict[str, Any]:
    """Return the result on each set, until one fails."""
    spec = drawing.ResolvedSpec(task.payload["spec"])
    found: dict[str, Any] = {}
    for name in task.payload["sets"]:
        inputs = drawing.load_inputs(drawing.draw_inputs(task, spec, name), spec)
        shaped = [array.reshape(shape) for array, shape in zip(inputs, task.payload["shapes"])]
        try:
            outputs = device.run(shaped)
            _check_output_sizes(outputs, task.payload["sizes"])
        except devices.KernelFaultError as fault:
            found[name] = {"error": fault.told}
            break
        found[name] = {"outputs": [_store_output(task, array) for array in outputs]}
    return found


def _check_output_sizes(outputs: Sequence[Any], sizes: Sequence[int]) -> None:
    """Check that outputs have the right number of bytes: later nobody could tell whose fault it is.

    Raises:
        devices.KernelFaultError: they have the wrong number of bytes.
    """
    found = [int(array.nbytes) for array in outputs]
    if found != list(sizes):
        message = "the kernel's outputs have %s bytes, they must have %s" % (found, list(sizes))
        raise devices.KernelFaultError(
            {"type": "RuntimeError", "code": "output_size", "message": message, "line": 0, "hint": ""}
        )


def find_output(task: StepTask, digest: str) -> Path:
    """Return the file of an output that an earlier job left.

    Raises:
        GoneError: it is no longer here.
    """
    found = _open_cache(task).find(digest)
    if found is None:
        raise GoneError("output %s is no longer here" % digest[:12])
    return found / "output.npy"


def _open_cache(task: StepTask) -> FolderCache:
    return FolderCache(task.caches_folder / "outputs", MAX_BYTES)


def _store_output(task: StepTask, array: Any) -> str:
    import numpy as np

    shelf = _open_cache(task)
    with shelf.create_draft() as draft:
        # Written as plain bytes, because NumPy files do not support every type.
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        digest = hashlib.sha256(raw.tobytes()).hexdigest()
        np.save(draft / "output.npy", raw, allow_pickle=False)
        (draft / "output.npy").chmod(0o400)
    shelf.put(digest, draft)
    return digest
