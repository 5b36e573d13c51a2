"""What a job can be asked to do, by name: a step reads `job.json` and `inputs/`, writes `answer.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

STEPS: dict[str, Callable[[Path], None]] = {}
