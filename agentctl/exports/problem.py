"""Exports a run's problem from the log: its folder, and the kernel that the run started from."""

from __future__ import annotations

from pathlib import Path

from agentctl.exports.folder import write_folder
from state.errors import BadTarget
from state.output_files import check_output, write_output
from state.reader import LogReader


def export_problem(
    home: Path, reader: LogReader, run: str, *, folder: Path | None, kernel: Path | None, force: bool
) -> tuple[str, ...]:
    """Write the files of a run's problem to `folder`, and its initial kernel to `kernel`; return the
    files.

    Raises:
        StreamUnknown: there is no such run.
        BlobMissing: the log has lost one of them.
        BadTarget, StorageFull, StorageFailed: they cannot be written there; nothing was.
    """
    state = reader.run_state(run)
    files = {path: reader.get_blob(digest) for path, digest in state.problem.files.items()}
    if kernel is not None and state.kernel is None:
        raise BadTarget(f"{run} began from the translation of its reference alone; it had no kernel")
    start = b"" if state.kernel is None else reader.get_blob(state.kernel)
    if kernel is not None:
        check_output(home, kernel, replace=True)
        if kernel.exists() and kernel.read_bytes() != start and not force:
            raise BadTarget(f"{kernel} holds something else; name another file, or replace it with --force")
    if folder is not None:
        write_folder(home, folder, files, force=force)
    if kernel is not None:
        write_output(home, kernel, start)
    return tuple(sorted(files))
