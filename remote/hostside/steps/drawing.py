"""Step `draw`: the judge's input sets, drawn here from the specification, so that they need not be sent.

Payload: `key` (under which they are kept), `spec` (see `Spec`), `sets` (names). Answer: per set the sha256 of
each array's bytes, for home to compare with its own, and NumPy's version, on which they may depend.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from remote.hostside.steps import libraries
from remote.hostside.steps.shelf import Shelf
from remote.hostside.task import Task

MAX_BYTES = 64 << 30
_DIGESTS = "digests.json"
_SEEN = "seen.json"


class Spec:
    """A problem's inputs as the modules that draw them see a specification, with shapes already resolved."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.inputs = [_Input(item) for item in fields["inputs"]]
        self.seeds = tuple(fields["seeds"])

    def dims(self, _size: str) -> dict[str, int]:
        return {}


class _Input:
    def __init__(self, fields: dict[str, Any]) -> None:
        self.name: str = fields["name"]
        self.dtype: str = fields["dtype"]
        self.distribution: str = fields["distribution"]
        self.scale: float = fields["scale"]
        self.shape = tuple(fields["shape"])

    def resolve(self, _dims: dict[str, int]) -> tuple[int, ...]:
        return self.shape


def shelf(task: Task) -> Shelf:
    """Return where drawn inputs are kept: a folder per problem, size and set."""
    return Shelf(task.shelves / "drawn", MAX_BYTES)


def run(folder: Path) -> None:
    """Draw what is not here yet."""
    task = Task(folder)
    libraries.use(task)
    import numpy as np

    spec, found = Spec(task.payload["spec"]), {}
    for name in task.payload["sets"]:
        found[name] = json.loads((drawn(task, spec, name) / _DIGESTS).read_text(encoding="utf-8"))
    task.answer({"digests": found, "numpy": np.__version__})


def drawn(task: Task, spec: Spec, name: str) -> Path:
    """Return the folder of a set's arrays, `<position>.npy`; drawn now if they are not here."""
    shelves, key = shelf(task), "%s-%s" % (task.payload["key"], name)
    found = shelves.find(key)
    if found is not None:
        if _as_drawn(found, spec):
            return found
        shelves.drop(key)
    import numpy as np

    from remote.judge import suite

    with shelves.draft() as draft:
        digests = []
        for number, array in enumerate(suite.inputs(spec, "", name)):  # type: ignore[arg-type]
            np.save(draft / ("%d.npy" % number), array, allow_pickle=False)
            digests.append(hashlib.sha256(array.tobytes()).hexdigest())
        (draft / _DIGESTS).write_text(json.dumps(digests), encoding="utf-8")
        _note(draft, spec)
    return shelves.put(key, draft)


def _as_drawn(folder: Path, spec: Spec) -> bool:
    """Whether a set's files are what was drawn: not touched since that was seen, or of the same digests."""
    try:
        stamps = _stamps(folder, spec)
        with contextlib.suppress(OSError, ValueError):
            if json.loads((folder / _SEEN).read_text(encoding="utf-8")) == stamps:
                return True
        told = json.loads((folder / _DIGESTS).read_text(encoding="utf-8"))
        if [_digest(array) for array in load(folder, spec)] != told:
            return False
        _note(folder, spec)
    except (OSError, ValueError, TypeError, EOFError):
        return False
    return True


def _stamps(folder: Path, spec: Spec) -> list[list[int]]:
    """What changes with a file: its place on the disk, its size, and when the system last saw it change."""
    names = [_DIGESTS, *("%d.npy" % number for number in range(len(spec.inputs)))]
    found = [(folder / name).lstat() for name in names]
    return [[one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns] for one in found]


def _note(folder: Path, spec: Spec) -> None:
    part = folder / ("%s.%d" % (_SEEN, os.getpid()))
    part.write_text(json.dumps(_stamps(folder, spec)), encoding="utf-8")
    part.replace(folder / _SEEN)


def _digest(array: Any) -> str:
    import numpy as np

    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


def load(folder: Path, spec: Spec) -> list[Any]:
    """Return a set's arrays, mapped into memory, each with its type."""
    import numpy as np

    from seeds.inputs import dtype_of

    return [
        np.load(folder / ("%d.npy" % number), mmap_mode="r", allow_pickle=False).view(dtype_of(item.dtype))
        for number, item in enumerate(spec.inputs)
    ]
