"""Checks that the inputs a host draws for itself are those that home judges by.

Home draws each set once per problem and size, stores the digests under `<home>/cache/draws/`, and compares
them with the host's. Another NumPy there may draw other numbers, and that must not lead to a verdict.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from remote.judge.comparison import describe_set
from remote.judge.job import DigestJob
from remote.pool import WorkerPool
from remote.ssh.errors import HostInputsError
from remote.ssh.steps import LONG_S, EvaluationSteps, drawing_payload
from seeds.spec import ProblemSpec

InputDigests = dict[str, tuple[str, ...]]


class HostInputs:
    """Knows the right digests of inputs; `workers` draw the inputs here."""

    def __init__(self, home: Path, workers: WorkerPool) -> None:
        self._folder = home / "cache" / "draws"
        self._workers = workers
        self._agreed: set[tuple[str, str, str]] = set()

    async def verify_inputs(
        self, steps: EvaluationSteps, spec: ProblemSpec, *, size: str, sets: Sequence[str]
    ) -> None:
        """Have the host draw these sets, unless it did already, and compare their digests.

        Raises:
            HostInputsError: it draws other inputs.
            InfrastructureError: the host could not be reached.
        """
        drawing = drawing_payload(spec, size)
        fresh = [name for name in sets if (steps.address, drawing["key"], name) not in self._agreed]
        if not fresh:
            return
        own = await self._own_digests(spec, size, key=drawing["key"], sets=fresh)
        answer = await steps.run_step("draw", {**drawing, "sets": fresh}, deadline_s=LONG_S)
        told = answer.fields.get("digests")
        wrong = [name for name in fresh if _answered_digests(told, name) != list(own[name])]
        if wrong:
            theirs = str(answer.fields.get("numpy"))[:40]
            text = (
                f"{steps.address}: NumPy {theirs} there draws other inputs than the one here ("
                f"{', '.join(map(describe_set, wrong[:3]))}); install the same version there"
            )
            raise HostInputsError(text)
        self._agreed |= {(steps.address, drawing["key"], name) for name in fresh}

    async def _own_digests(
        self, spec: ProblemSpec, size: str, *, key: str, sets: Sequence[str]
    ) -> InputDigests:
        path = self._folder / f"{key}.json"
        known = _read_digests(path)
        missing = tuple(name for name in sets if name not in known)
        if missing:
            known |= await self._workers.draw_digests(DigestJob(spec=spec, size=size, sets=missing))
            _write_digests(path, known)
        return known


def _answered_digests(told: Any, name: str) -> Any:
    return told.get(name) if isinstance(told, Mapping) else None


def _read_digests(path: Path) -> InputDigests:
    """The stored digests; empty where they cannot be read: this is a cache."""
    try:
        found = json.loads(path.read_text(encoding="ascii"))
        return {str(name): tuple(map(str, digests)) for name, digests in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _write_digests(path: Path, known: InputDigests) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="ascii") as file:
        json.dump(known, file)
    os.replace(file.name, path)  # noqa: PTH105  both are text
