"""A job's folder as a step sees it: the payload, the inputs, and where the answer goes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

WORKDIR_VARIABLE = "NKI_KERNEL_AGENT_WORKDIR"


class StepTask:
    """One job of one step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
        self.payload: dict[str, Any] = self._job["payload"]
        self.out = folder / "out"
        self.out.mkdir(exist_ok=True)

    @property
    def key(self) -> str:
        """The job's key."""
        return str(self._job["key"])

    @property
    def core(self) -> int:
        """The device core that this job has leased; 0 if it has none."""
        return int(self._job.get("core") or 0)

    @property
    def caches_folder(self) -> Path:
        """The folder of the caches that steps keep, created if it is missing."""
        # A job's folder is <workdir>/jobs/<key>/work.
        root = Path(os.environ.get(WORKDIR_VARIABLE) or self.folder.resolve().parents[2]) / "steps"
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return root

    def list_inputs(self, suffix: str) -> list[Path]:
        """Return the paths of the inputs whose names end like this, by name."""
        return sorted((self.folder / "inputs").glob("*" + suffix))

    def write_answer(self, value: Any) -> None:
        """Write the answer; it appears as a whole or not at all."""
        part = self.folder / "answer.part"
        part.write_text(json.dumps(value, allow_nan=False), encoding="utf-8")
        part.replace(self.folder / "answer.json")
