"""The outputs a problem's reference gives, computed once per problem, size and seed, kept on disk.

They lie under `<home>/cache/references/<problem digest>-<size>/` as `<seed>-<output>.npy`, appear by atomic
rename and are mapped into memory by the workers. It is a cache: deleting any of it costs only time.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

from remote.errors import InfrastructureError
from remote.sandbox import JailResult, run_jailed
from remote.walls import JailedProgram, JailStrength, Limits
from seeds import Problem

_LIMITS = Limits(
    cpu_s=36_000,
    wall_s=7_200,
    memory_bytes=16 << 30,
    file_bytes=8 << 30,
    open_files=512,
    processes=1 << 15,  # where namespaces are missing this counts all of the user's threads
    answer_bytes=0,
)
_ROOM = Path(__file__).parent


class ReferenceStore:
    """Finds reference outputs on disk and has them computed, in a jail, when they are not there."""

    def __init__(self, home: Path, *, strength: JailStrength) -> None:
        self._cache = home / "cache"
        self._strength = strength
        self._locks: dict[str, asyncio.Lock] = {}

    async def outputs(self, problem: Problem, size: str) -> dict[int, tuple[Path, ...]]:
        """Return per seed the files of the outputs, in the order of the spec.

        Raises:
            InfrastructureError: reference_failed, or the jail's.
        """
        folder = self._folder(problem, size)
        async with self._locks.setdefault(folder.name, asyncio.Lock()):
            files = {seed: self._files(folder, problem, seed) for seed in problem.spec.seeds}
            missing = {seed: paths for seed, paths in files.items() if not all(p.exists() for p in paths)}
            if missing:
                await self._compute(problem, size, missing)
            return files

    def forget(self, problem: Problem, size: str) -> None:
        """Delete the outputs of a problem at a size; they are computed anew when next asked for."""
        shutil.rmtree(self._folder(problem, size), ignore_errors=True)

    def _folder(self, problem: Problem, size: str) -> Path:
        return self._cache / "references" / f"{problem.digest}-{size}"

    def _files(self, folder: Path, problem: Problem, seed: int) -> tuple[Path, ...]:
        return tuple(folder / f"{seed}-{output.name}.npy" for output in problem.spec.outputs)

    async def _compute(self, problem: Problem, size: str, missing: dict[int, tuple[Path, ...]]) -> None:
        folder = self._folder(problem, size)
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            staging = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".new-", dir=folder)))
            source = staging / "problem"
            _write_files(problem, source)
            files = {
                seed: [stack.enter_context((staging / path.name).open("wb")).fileno() for path in paths]
                for seed, paths in missing.items()
            }
            request = {"folder": str(source), "size": size, "files": files}
            descriptors = [number for numbers in files.values() for number in numbers]
            result = await run_jailed(
                _program(source), json.dumps(request).encode(), strength=self._strength, files=descriptors
            )
            _succeeded(result, problem)
            for paths in missing.values():
                for path in paths:
                    (staging / path.name).replace(path)


def _program(source: Path) -> JailedProgram:
    packages = (_ROOM, _ROOM.parent / "seeds", _ROOM.parent / "state", source)
    return JailedProgram(
        "remote.reference_main", packages=packages, site_packages=True, threads=True, limits=_LIMITS
    )


def _succeeded(result: JailResult, problem: Problem) -> None:
    if result.exit_status == 0:
        return
    last = (result.stderr.strip().splitlines() or [f"ended with status {result.exit_status}"])[-1]
    text = f"the reference of {problem.name} failed: {last[:500]}"
    raise InfrastructureError("reference_failed", text, retryable=False)


def _write_files(problem: Problem, folder: Path) -> None:
    for name, data in problem.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
