"""The steps of an evaluation on a host: each is one process that reads a job's folder and writes into it.

A step reads `job.json` and `inputs/`, writes `answer.json` and files under `out/`, and never talks to home.
What steps keep for later jobs lies on bounded shelves (`shelf`). What they need beside the standard library
comes with the job (`libraries`) or is the host's own. Open `task.py` first.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Callable, Dict


def _step(module: str) -> Callable[[Path], None]:
    """A step by its module, which is imported only when the step runs: NumPy takes long to load."""

    def run(folder: Path) -> None:
        importlib.import_module(f"remote.hostside.steps.{module}").run(folder)

    return run


STEPS: Dict[str, Callable[[Path], None]] = {
    "probe": _step("probing"),
    "draw": _step("drawing"),
    "compile": _step("compiling"),
    "execute": _step("executing"),
    "compare": _step("comparing"),
    "benchmark": _step("timing"),
    "profile": _step("profiling"),
    "score": _step("scoring"),
}
