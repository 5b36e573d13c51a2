"""Step `draw`: draws the judge's input sets here from the specification, so they need not be sent.

Payload: `key` (under which they are kept), `spec` (see `ResolvedSpec`), `sets` (names). Answer: per set the
sha256 of each array's bytes, for home to compare with its own, and NumPy's version, because the draws may
depend on it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from remote.hostside.steps import libraries
from remote.hostside.steps.folder_cache import FolderCache
from remote.hostside.task import StepTask

MAX_BYTES = 64 << 30
_DIGESTS = "digests.json"
_SEEN = "seen.json"


class ResolvedSpec:
    """A problem's inputs in the form that the drawing modules expect, with shapes already resolved."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.inputs = [_ResolvedInput(item) for item in fields["inputs"]]
        self.seeds = tuple(fields["seeds"])

    def dims(self, _size: str) -> dict[str, int]:
        return {}


class _ResolvedInput:
    def __init__(self, fields: dict[str, Any]) -> None:
        self.name: str = fields["name"]
        self.dtype: str = fields["dtype"]
        self.distribution: str = fields["distribution"]
        self.scale: float = fields["scale"]
        self.shape = tuple(fields["shape"])

    def resolve_shape(self, _dims: dict[str, int]) -> tuple[int, ...]:
        return self.shape


def input_cache(task: StepTask) -> FolderCache:
    """Return the cache of drawn inputs: a folder per problem, size and set."""
    return FolderCache(task.caches_folder / "drawn", MAX_BYTES)


def run(folder: Path) -> None:
    """Draw the sets that are not here yet."""
    task = StepTask(folder)
    libraries.import_archives(task)
    import numpy as np

    spec, found = ResolvedSpec(task.payload["spec"]), {}
    for name in task.payload["sets"]:
        found[name] = json.loads((draw_inputs(task, spec, name) / _DIGESTS).read_text(encoding="utf-8"))
    task.write_answer({"digests": found, "numpy": np.__version__})


def draw_inputs(task: StepTask, spec: ResolvedSpec, name: str) -> Path:
    """Return the folder of a set's arrays, `<position>.npy`; draw them if they are missing."""
    shelves, key = input_cache(task), "%s-%s" % (task.payload["key"], name)
    found = shelves.find(key)
    if found is not None:
        if _is_unchanged(found, spec):
            return found
        shelves.drop(key)
    import numpy as np

    from remote.judge import suite

    with shelves.create_draft() as draft:
        digests = []
        for number, array in enumerate(suite.draw_set(spec, "", name)):  # type: ignore[arg-type]
            np.save(draft / ("%d.npy" % number), array, allow_pickle=False)
            digests.append(hashlib.sha256(array.tobytes()).hexdigest())
        (draft / _DIGESTS).write_text(json.dumps(digests), encoding="utf-8")
        _save_stamps(draft, spec)
    return shelves.put(key, draft)


def _is_unchanged(folder: Path, spec: ResolvedSpec) -> bool:
    """Whether a set's files are still as drawn: untouched since the last check, or with the same digests."""
    try:
        stamps = _file_stamps(folder, spec)
        with contextlib.suppress(OSError, ValueError):
            if json.loads((folder / _SEEN).read_text(encoding="utf-8")) == stamps:
                return True
        told = json.loads((folder / _DIGESTS).read_text(encoding="utf-8"))
        if [_digest_array(array) for array in load_inputs(folder, spec)] != told:
            return False
        _save_stamps(folder, spec)
    except (OSError, ValueError, TypeError, EOFError):
        return False
    return True


def _file_stamps(folder: Path, spec: ResolvedSpec) -> list[list[int]]:
    """What changes when a file changes: its inode, size and change time."""
    names = [_DIGESTS, *("%d.npy" % number for number in range(len(spec.inputs)))]
    found = [(folder / name).lstat() for name in names]
    return [[one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns] for one in found]


def _save_stamps(folder: Path, spec: ResolvedSpec) -> None:
    part = folder / ("%s.%d" % (_SEEN, os.getpid()))
    part.write_text(json.dumps(_file_stamps(folder, spec)), encoding="utf-8")
    part.replace(folder / _SEEN)


def _digest_array(array: Any) -> str:
    import numpy as np

    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


def load_inputs(folder: Path, spec: ResolvedSpec) -> list[Any]:
    """Return a set's arrays, mapped into memory, each with its type."""
    import numpy as np

    from seeds.inputs import dtype_of

    return [
        np.load(folder / ("%d.npy" % number), mmap_mode="r", allow_pickle=False).view(dtype_of(item.dtype))
        for number, item in enumerate(spec.inputs)
    ]
