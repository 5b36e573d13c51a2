"""The steps of an evaluation on a host: each is one process that reads a job's folder and writes into it.

A step reads `job.json` and `inputs/`, writes `answer.json` and files under `out/`, and never talks to home.
What steps keep for later jobs lies on bounded shelves (`folder_cache`). What they need beside the standard
library comes with the job (`libraries`) or is the host's own. Open `task.py` beside this folder first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Dict

from remote.hostside.steps import (
    comparing,
    compiling,
    drawing,
    executing,
    probing,
    profiling,
    scoring,
    timing,
)

STEPS: Dict[str, Callable[[Path], None]] = {
    "probe": probing.run,
    "draw": drawing.run,
    "compile": compiling.run,
    "execute": executing.run,
    "compare": comparing.run,
    "benchmark": timing.run,
    "profile": profiling.run,
    "score": scoring.run,
}
