"""Step `profile`: runs a compiled kernel once under the vendor's profiler.

Payload: `artefact`. Answer: `tool`; leaves `out/summary.json` as the tool printed it. Home parses it, because
releases print different fields.
"""

from __future__ import annotations

from pathlib import Path

from remote.hostside import devices
from remote.hostside.steps import compiling, libraries
from remote.hostside.task import StepTask

_MAX_CHARS = 4 << 20


def run(folder: Path) -> None:
    """Profile the kernel."""
    task = StepTask(folder)
    libraries.import_archives(task)
    tool, summary = devices.profile_kernel(task, compiling.find_artefact(task))
    (task.out / "summary.json").write_text(summary[:_MAX_CHARS], encoding="utf-8")
    task.write_answer({"tool": tool})
