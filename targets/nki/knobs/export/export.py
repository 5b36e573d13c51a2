"""Writes a run's files under a workload's `CACHE_ROOT`, all from the log; repeating it is safe."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

import seeds
from state.errors import BadTarget
from state.output_files import check_output, translate_os_errors, write_output
from state.reader import LogReader
from targets.nki.knobs.export.figures import PeakScale
from targets.nki.knobs.export.files import BASELINE, IR, KERNEL, LOG, NOTES, RESULT, SUMMARY, RunLayout
from targets.nki.knobs.export.gather import gather_run

_FOLDERS = re.compile(r"batch_\d+/kernel_\d+|edit_\d+/kernel")
_NAMES = (KERNEL, IR, LOG, RESULT, NOTES)


@dataclass(frozen=True, slots=True)
class ExportedRun:
    """The folder of a run's files, the subfolder of the best kernel, and its share of the peak.

    `predicted` says whether a model gave that share, or a device.
    """

    root: Path
    files: int
    best: str | None
    mfu: float | None
    predicted: bool | None


def export_run(home: Path, run: str, root: Path) -> ExportedRun:
    """Write the files of a run under `root`; files of other runs there are removed.

    Raises:
        StreamUnknown: there is no such run.
        BlobMissing: the log has lost what a file is made of.
        BadTarget, StorageFull, StorageFailed: the folder cannot be written to.
    """
    with LogReader.open(home) as reader:
        layout = _build_layout(reader, run)
        made, last = layout.build_files(), layout.latest_best()
    for path, data in made.items():
        _write_file(home, root, path, data)
    _remove_stale(root, made)
    return ExportedRun(root, len(made), last["running_best_kernel"], last["mfu"], last["predicted"])


def check_root(home: Path, root: Path) -> None:
    """Create the folder; fail now, not after a run, if its files cannot be written there.

    Raises:
        BadTarget, StorageFull, StorageFailed: as for `export_run`.
    """
    with translate_os_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=root):
            pass
    check_output(home, root / SUMMARY, replace=True)


def _build_layout(reader: LogReader, run: str) -> RunLayout:
    found = gather_run(reader, run)
    config, problem = found.created.config, found.created.problem
    spec = seeds.build_problem({path: reader.get_blob(digest) for path, digest in problem.files.items()}).spec
    scale = PeakScale(spec.minimal_work(config.size), config.target)
    state = reader.run_state(run)
    target_ms = state.config.search.target_ms
    target_mfu = scale.mfu(target_ms)
    return RunLayout(
        run=run,
        found=found,
        scale=scale,
        target_mfu=None if target_mfu is None else round(target_mfu, 12),
        blob=reader.get_blob,
    )


def _write_file(home: Path, root: Path, name: str, data: bytes) -> None:
    """Write a file, unless it is already there with the same content.

    Raises:
        BadTarget: it cannot be written, or a link below the root leads elsewhere.
    """
    path = root / name
    if _has_link_below(root, name):
        raise BadTarget(f"{path}: a link is in the way, and it may lead to files of somebody else")
    with translate_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.read_bytes() == data:
            return
    write_output(home, path, data)


def _remove_stale(root: Path, made: Collection[str]) -> None:
    """Remove the files of kernels that are not of this run; leave everything else."""
    folders = [BASELINE, *(path.relative_to(root).as_posix() for path in sorted(root.glob("*/kernel*")))]
    for folder in folders:
        if not (folder == BASELINE or _FOLDERS.fullmatch(folder)) or _has_link_below(root, folder):
            continue
        with translate_os_errors(root / folder):
            _remove_stale_files(root, folder, made)


def _remove_stale_files(root: Path, folder: str, made: Collection[str]) -> None:
    if not (root / folder).is_dir():
        return
    for name in _NAMES:
        if f"{folder}/{name}" not in made:
            (root / folder / name).unlink(missing_ok=True)
    for path in (root / folder, (root / folder).parent):
        if path != root and not any(path.iterdir()):
            path.rmdir()


def _has_link_below(root: Path, name: str) -> bool:
    """Whether a part of the path below the root is a link; the root itself may be one."""
    path = Path(name)
    return any((root / part).is_symlink() for part in (path, *path.parents) if part != Path())
