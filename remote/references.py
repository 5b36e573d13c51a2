"""Computes a problem's reference outputs once per problem, size and input set, and keeps them on disk.

Under `<home>/cache/references/<problem digest>-<size>/`, whole outputs of an input set are
`<set>-<inputs>-<output>.npy`, where `inputs` is the digest of the code that draws inputs. The judge's tiles
are `<set>-<tiles>.npz`, where `tiles` is the digest of that code, of the code that draws and evaluates tiles,
and of the secret by which they are drawn. The reference's formula is `expression-<code>.npz`, where `code` is
the digest of the code that traces it. Workers map these files into memory. As they decide verdicts, each
has its digest beside it (`state.sealed_files`); one that does not fit is computed again. This is a cache:
deleting any of it costs only time.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from remote.concurrency import gather_to_end
from remote.errors import InfrastructureError
from remote.jail_backends import JailedProgram, JailLimits, JailStrength
from remote.sandbox import JailResult, run_jailed
from remote.secret import load_secret
from seeds import Problem
from state.model import Digest, digest_of
from state.sealed_files import SealChecker, list_unsound, seal_file
from state.step_keeper import STEP_KEEPER

_LIMITS = JailLimits(
    cpu_s=36_000,
    wall_s=7_200,
    memory_bytes=16 << 30,
    file_bytes=8 << 30,
    open_files=512,
    processes=1 << 15,  # without namespaces this counts all of the user's threads
    answer_bytes=1 << 12,
)
_ROOM = Path(__file__).parent


def _digest_files(*paths: Path) -> str:
    return digest_of(b"".join(path.read_bytes() for path in paths))[:12]


_DRAWS = (
    *(_ROOM.parent / "seeds" / name for name in ("distributions.py", "inputs.py")),
    *(_ROOM / "judge" / name for name in ("input_cache.py", "spans.py", "seed_stream.py", "suite.py")),
)
_INPUTS = _digest_files(*_DRAWS)
"""The digest of the code that decides which inputs are drawn."""

_JUDGE = _digest_files(
    *_DRAWS,
    *(
        _ROOM / "judge" / name
        for name in ("tiled_reference.py", "rounding_noise.py", "relations.py", "tiles.py")
    ),
)
"""The digest of that code, and of the code that decides which tiles are kept and what is stored with them."""

_IDENTITY = _ROOM / "judge" / "identity"
_RECORDER = _digest_files(_IDENTITY / "expression.py", *sorted((_IDENTITY / "tracing").glob("*.py")))
"""The digest of the code that traces references."""


_JAILS = 4
"""Jails at a time, at most: each holds the inputs of a set, and finds the separable axes itself."""

_SMALL_BYTES = 1 << 25
"""For a set that reads and writes at most this many bytes, a second jail would cost more than it saves.

Files must not depend on what else is missing, because threads change the order of sums: this goes by the
problem and the size alone.
"""


@dataclass(frozen=True)
class ReferenceFiles:
    """Files: whole outputs, in the order of the spec, tiles by input set, and the reference's formula."""

    wholes: Mapping[str, tuple[Path, ...]]
    tiles: Mapping[str, Path]
    expression: Path | None = None

    def all_paths(self) -> list[Path]:
        """Return all paths."""
        outputs = (path for paths in self.wholes.values() for path in paths)
        return [*outputs, *self.tiles.values(), *([self.expression] if self.expression else [])]

    def select_missing(self, is_sound: Callable[[Path], bool]) -> ReferenceFiles:
        """Return the files that are missing or damaged; all whole outputs of a set if one of them is."""
        return ReferenceFiles(
            {name: paths for name, paths in self.wholes.items() if not all(map(is_sound, paths))},
            {name: path for name, path in self.tiles.items() if not is_sound(path)},
            self.expression if self.expression and not is_sound(self.expression) else None,
        )

    def list_steps(self) -> list[tuple[Path, ...]]:
        """Return the files in the order in which they are computed, those together that are done together."""
        last = [(self.expression,)] if self.expression else []
        return [*self.wholes.values(), *((path,) for path in self.tiles.values()), *last]

    def split_work(self, count: int) -> list[ReferenceFiles]:
        """Split the files into parts that are computed in parallel; the tiles into `count` parts."""
        tiles = list(self.tiles.items())
        parts = [
            ReferenceFiles(self.wholes, {}),
            *(ReferenceFiles({}, dict(tiles[at::count])) for at in range(count)),
            ReferenceFiles({}, {}, self.expression),
        ]
        return [part for part in parts if part.all_paths()]


class ReferenceStore:
    """Finds reference outputs on disk, and computes missing ones in a jail.

    `strength` is that of the jail, None for the strongest there is. Tiles are drawn by `secret`, by default
    that of the home. At most `jails` run at a time, by default one per CPU.
    """

    def __init__(
        self,
        home: Path,
        *,
        strength: JailStrength | None,
        secret: str | None = None,
        jails: int | None = None,
    ) -> None:
        self._home = home
        self._cache = home / "cache"
        self._strength = strength
        self._given = secret
        self._seals = SealChecker()
        self._locks: dict[str, asyncio.Lock] = {}
        self._count = min(_JAILS, jails or os.cpu_count() or 1)
        self._jails = asyncio.Semaphore(self._count)

    @cached_property
    def secret(self) -> str:
        """The secret that decides which tiles are drawn.

        Raises:
            InfrastructureError: bad_secret.
        """
        return load_secret(self._home) if self._given is None else self._given

    async def load_files(
        self,
        problem: Problem,
        size: str,
        *,
        wholes: Iterable[str] = (),
        tiles: Iterable[str] = (),
        expression: bool = False,
    ) -> ReferenceFiles:
        """Return the files of input sets, and of the reference's formula or the reason why there is none.

        Raises:
            InfrastructureError: reference_failed, bad_secret for tiles, or the jail's codes.
        """
        folder = self._cache_folder(problem, size)
        wanted = ReferenceFiles(
            {name: self._output_paths(folder, problem, name) for name in wholes},
            {name: folder / f"{name}-{self._tiles_digest}.npz" for name in tiles},
            folder / f"expression-{_RECORDER}.npz" if expression else None,
        )
        async with self._locks.setdefault(folder.name, asyncio.Lock()):
            missing = await asyncio.to_thread(wanted.select_missing, self._seals.is_sound)
            if not missing.all_paths():
                return wanted
            is_small = problem.spec.minimal_work(size).total_bytes <= _SMALL_BYTES
            shares = [missing] if is_small else missing.split_work(self._count)
            threads = not is_small
            await gather_to_end(
                [self._compute_files(problem, size, share, threads=threads) for share in shares]
            )
        return wanted

    def has_formula(self, problem: Digest, size: str) -> bool:
        """Whether a problem's formula was computed before, which is mostly the last of its files."""
        return (self._cache / "references" / f"{problem}-{size}" / f"expression-{_RECORDER}.npz").exists()

    def has_outputs(self, problem: Problem, size: str) -> bool:
        """Whether outputs of a problem were computed before; the first time may take a minute."""
        return self._cache_folder(problem, size).is_dir()

    async def find_output_shapes(self, problem: Problem, size: str) -> list[tuple[tuple[int, ...], str]]:
        """Run the reference once; return the shapes and types of what it returns, whatever the spec says.

        Raises:
            InfrastructureError: reference_failed, or the jail's codes.
        """
        self._cache.mkdir(parents=True, exist_ok=True)
        async with self._jails, AsyncExitStack() as stack:
            staging = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".new-", dir=self._cache)))
            source = staging / "problem"
            _write_files(problem, source)
            path = staging / "shapes.json"
            opened = stack.enter_context(path.open("wb")).fileno()
            request = {"folder": str(source), "size": size, "shapes": opened}
            program = _reference_program(source, threads=True)
            data = json.dumps(request).encode()
            result = await run_jailed(program, data, strength=self._strength, files=[opened])
            _check_succeeded(result, problem)
            return [(tuple(shape), dtype) for shape, dtype in json.loads(path.read_text())]

    @property
    def _tiles_digest(self) -> str:
        """Short digest of everything that decides which tiles a file has."""
        return digest_of(f"{_JUDGE} {self.secret}".encode())[:12]

    def delete_files(self, problem: Problem, size: str) -> None:
        """Delete the outputs of a problem at a size; they are computed again on the next request."""
        shutil.rmtree(self._cache_folder(problem, size), ignore_errors=True)

    def _cache_folder(self, problem: Problem, size: str) -> Path:
        return self._cache / "references" / f"{problem.digest}-{size}"

    def _output_paths(self, folder: Path, problem: Problem, name: str) -> tuple[Path, ...]:
        return tuple(folder / f"{name}-{_INPUTS}-{output.name}.npy" for output in problem.spec.outputs)

    async def _compute_files(
        self, problem: Problem, size: str, missing: ReferenceFiles, *, threads: bool
    ) -> None:
        """Compute files; each is kept as soon as it is whole, whatever becomes of the process."""
        folder, keeper = self._cache_folder(problem, size), STEP_KEEPER.get()
        folder.mkdir(parents=True, exist_ok=True)
        async with self._jails, AsyncExitStack() as stack:
            staging = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".new-", dir=folder)))
            source = staging / "problem"
            _write_files(problem, source)
            opened = {
                path: stack.enter_context((staging / path.name).open("wb")).fileno()
                for path in missing.all_paths()
            }
            request = {
                "folder": str(source),
                "size": size,
                "secret": self.secret if missing.tiles else "",
                "files": {name: [opened[path] for path in paths] for name, paths in missing.wholes.items()},
                "excerpts": {name: opened[path] for name, path in missing.tiles.items()},
                "expression": opened[missing.expression] if missing.expression else None,
            }
            waiting = deque(missing.list_steps())

            async def keep_finished(done: bytes) -> None:
                for _ in done:
                    if waiting:
                        await asyncio.to_thread(_seal_files, staging, waiting.popleft())
                        if keeper is not None:
                            await keeper.note_part()

            result = await run_jailed(
                _reference_program(source, threads=threads and bool(missing.wholes)),
                json.dumps(request).encode(),
                strength=self._strength,
                files=list(opened.values()),
                on_ready=None if keeper is None else keeper.note_begun,
                on_answer=keep_finished,
            )
            _check_succeeded(result, problem)
            await keep_finished(b"." * len(waiting))


def _seal_files(staging: Path, paths: Iterable[Path]) -> None:
    for path in paths:
        seal_file(staging / path.name, path)


def list_damaged_references(home: Path) -> list[Path]:
    """Return the files of the cache that are not as they were computed; they will be computed again."""
    return list(list_unsound(home / "cache" / "references"))


def _reference_program(source: Path, *, threads: bool) -> JailedProgram:
    # Matrix products for tiles are too small to gain from threads.
    packages = (_ROOM, _ROOM.parent / "seeds", _ROOM.parent / "state", source)
    return JailedProgram(
        "remote.reference_main",
        packages=packages,
        site_packages=True,
        threads=threads,
        keeps_memory=True,
        limits=_LIMITS,
    )


def _check_succeeded(result: JailResult, problem: Problem) -> None:
    if result.exit_status == 0:
        return
    if result.was_killed or result.was_starved or result.ran_out_of_memory:
        raise InfrastructureError(
            "reference_interrupted",
            f"the reference of {problem.name} was cut off: {result.describe_end()}",
            of_machine=True,
        )
    last = (result.stderr.strip().splitlines() or [f"ended with status {result.exit_status}"])[-1]
    text = f"the reference of {problem.name} failed: {last[:500]}"
    raise InfrastructureError("reference_failed", text, retryable=False)


def _write_files(problem: Problem, folder: Path) -> None:
    for name, data in problem.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
