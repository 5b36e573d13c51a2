"""The steps of an evaluation on a host: each is one process that reads a job's folder and writes into it.

A step reads `job.json` and `inputs/`, writes `answer.json` and files under `out/`, and never talks to home.
Files that steps keep for later jobs lie in bounded caches (`folder_cache`). Code they need besides the
standard library comes with the job (`libraries`) or is the host's own. Open `compiling.py` first; a step's
job is in `task.py` of the folder above.
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
