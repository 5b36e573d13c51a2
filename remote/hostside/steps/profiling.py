"""Step `profile`: one profiled run of a compiled kernel, by the vendor's profiler.

Payload: `artefact`. Answer: `tool`; leaves `out/summary.json` as the tool printed it. Home reads it: releases
differ in what they print.
"""

from __future__ import annotations

from pathlib import Path

from remote.hostside.devices import neuron
from remote.hostside.steps import compiling, libraries
from remote.hostside.task import StepTask

_MAX_CHARS = 4 << 20


def run(folder: Path) -> None:
    """Have it profiled."""
    task = StepTask(folder)
    libraries.import_archives(task)
    tool, summary = neuron.profile_kernel(task, compiling.find_artefact(task))
    (task.out / "summary.json").write_text(summary[:_MAX_CHARS], encoding="utf-8")
    task.write_answer({"tool": tool})
