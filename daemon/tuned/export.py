"""Writes a run's files under a workload's `CACHE_ROOT`, all of them from the log, as often as one likes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import seeds
from daemon.tuned.figures import Scale
from daemon.tuned.files import IR, KERNEL, LOG, NOTES, RESULT, Layout
from daemon.tuned.gather import gathered
from state.errors import BadTarget
from state.output import write_output
from state.reader import LogReader

_FOLDERS = re.compile(r"batch_\d+/kernel_\d+|edit_\d+/kernel")
_NAMES = (KERNEL, IR, LOG, RESULT, NOTES)


@dataclass(frozen=True, slots=True)
class Exported:
    """Where a run's files are, and the folder among them that has the best kernel."""

    root: Path
    files: int
    best: str | None
    mfu: float | None


def export(home: Path, run: str, root: Path) -> Exported:
    """Write the files of a run under `root`; what lies there of another run, or of none, goes.

    Raises:
        StreamUnknown: there is no such run.
        BlobMissing: the log has lost what a file is made of.
        BadTarget, StorageFull, StorageFailed: the folder cannot be written to.
    """
    with LogReader.open(home) as reader:
        layout = _layout(reader, run)
        made, last = layout.files(), layout.latest()
    for path, data in made.items():
        _write(home, root / path, data)
    _clear(root, {path.rpartition("/")[0] for path in made})
    return Exported(root, len(made), last["running_best_kernel"], last["mfu"])


def _layout(reader: LogReader, run: str) -> Layout:
    found = gathered(reader, run)
    config, problem = found.created.config, found.created.problem
    spec = seeds.from_files({path: reader.blob(digest) for path, digest in problem.files.items()}).spec
    scale = Scale(spec.work_at(config.size), config.target)
    state = reader.state(run)
    target_ms = state.config.search.target_ms
    target_mfu = scale.mfu(target_ms)
    return Layout(
        run=run,
        found=found,
        scale=scale,
        target_mfu=None if target_mfu is None else round(target_mfu, 12),
        blob=reader.blob,
    )


def _write(home: Path, path: Path, data: bytes) -> None:
    """Put a file where it goes, unless it is there as it should be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadTarget(f"{path.parent}: {error.strerror}") from error
    if not (path.is_file() and path.read_bytes() == data):
        write_output(home, path, data)


def _clear(root: Path, folders: set[str]) -> None:
    """Take away the kernels' folders that are not of this run; of what else lies there, nothing."""
    for path in sorted(root.glob("*/kernel*")):
        name = path.relative_to(root).as_posix()
        if name in folders or not _FOLDERS.fullmatch(name) or not path.is_dir():
            continue
        for file in _NAMES:
            (path / file).unlink(missing_ok=True)
        for folder in (path, path.parent):
            if not any(folder.iterdir()):
                folder.rmdir()
