"""Step `score`: runs a user's command with each kernel in turn; judges nothing.

Payload: `command` (arguments; `{kernel}` stands for a kernel's file), `folder` (null: the job's), `kernels`
(sources), `runs`, `timeout_s`. Answer: per kernel its runs, each the command's `status` (null: timeout), the
end of its `output`, the end of its `errors`, and `wall_s`. The command runs with the rights of this user.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from remote.hostside.task import StepTask

_OUTPUT_BYTES = 64 << 10
_ERROR_BYTES = 2 << 10


def run(folder: Path) -> None:
    """Run the command once per kernel in each round."""
    task = StepTask(folder)
    kernels = task.payload["kernels"]
    found: list[list[dict[str, Any]]] = [[] for _ in kernels]
    for _ in range(task.payload["runs"]):
        for number, (source, runs) in enumerate(zip(kernels, found)):
            runs.append(_run_command(task, _write_kernel(task, number, source)))
    task.write_answer({"runs": found})


def _write_kernel(task: StepTask, number: int, source: str) -> Path:
    """Write a kernel's file again, in a folder of its own, because the command ran another kernel before.

    The file name is always the same, since programs may import it.
    """
    place = task.folder / ("kernel-%d" % number)
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        with contextlib.suppress(FileNotFoundError):
            place.unlink()
    place.mkdir()
    (place / "kernel.py").write_text(source, encoding="utf-8")
    return place / "kernel.py"


def _run_command(task: StepTask, kernel: Path) -> dict[str, Any]:
    command = [argument.replace("{kernel}", str(kernel)) for argument in task.payload["command"]]
    cwd = Path(task.payload["folder"] or task.folder).expanduser()
    outputs = [task.folder / "score.out", task.folder / "score.err"]
    started = time.monotonic()
    with outputs[0].open("wb") as out, outputs[1].open("wb") as err:
        try:
            process = subprocess.Popen(
                command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                env={**os.environ, "NKI_KERNEL": str(kernel)},
            )  # fmt: skip
        except OSError as error:
            said = "%s: %s" % (command[0], error.strerror)
            return {"status": 127, "output": "", "errors": said, "wall_s": 0.0}
        status = _wait_for_status(process, task.payload["timeout_s"])
    wall_s = time.monotonic() - started
    told, said = _read_tail(outputs[0], _OUTPUT_BYTES), _read_tail(outputs[1], _ERROR_BYTES)
    return {"status": status, "output": told, "errors": said, "wall_s": wall_s}


def _wait_for_status(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    """The command's status; None if it timed out and was killed with all its processes."""
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def _read_tail(path: Path, most: int) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - most))
        return file.read(most).decode("utf-8", "replace")
