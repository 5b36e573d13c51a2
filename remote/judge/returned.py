"""The stage of numerics where a host ran the kernel: what it showed of the outputs, against the reference.

The same sets, tiles and tolerances as in `trials`. A sketch tells an error up to a factor (`sketch`); where
that factor decides, the piece is `unsure`, and home asks for its bytes before it says anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, sqrt
from pathlib import Path

import numpy as np

from remote.judge import sketch, tiles
from remote.judge.comparison import allowed, called, excerpt_of, refuse, whole_of
from remote.judge.job import Job, Piece, Shown
from remote.judge.numerics import Array, BadReferenceError, comparable
from remote.judge.rejection import RejectedError
from seeds.inputs import dtype_of

DOUBT = 1 + 6 * sqrt(2 / sketch.BINS)
"""Six standard deviations of a sketch: errors within this factor of the tolerance are looked at exactly."""


class UnsureError(Exception):
    """Sketches do not tell: the pieces at these positions have to be shown in full."""

    def __init__(self, places: Sequence[int]) -> None:
        super().__init__(f"{len(places)} pieces are within a factor {DOUBT:.2g} of their tolerance")
        self.places = tuple(places)


class BadPiecesError(Exception):
    """What a host showed is not what it was asked for."""


@dataclass(frozen=True)
class _Difference:
    """How far a piece is from the truth (an L2 norm), how many elements are not finite; estimated or not."""

    norm: float
    bad: int
    estimated: bool


@dataclass
class ReturnedOutputs:
    """What a host showed of a kernel's outputs, for a job that has `shown`, and the errors found by seed."""

    job: Job
    errors: dict[int, float]
    tolerance: float = 0.0
    """The largest that a seed has been judged with; the problem's own at least."""
    by_set: dict[str, float] = field(default_factory=dict)
    """The tolerance of each set whose tiles were judged."""
    unsure: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tolerance = self.job.spec.rel_l2

    def compare(self) -> None:
        """Judge what was shown: tiles, then whole outputs.

        Raises:
            RejectedError: the kernel is wrong.
            UnsureError: sketches do not tell.
            BadReferenceError: the reference, or a file of it, is at fault.
            BadPiecesError: what the host showed is not what it was asked for.
        """
        shown = self._shown()
        data = _read(shown)
        self._tiles_shown(shown, data)
        for name, paths in self._wholes().items():
            if name in self.by_set or name.isdecimal():
                self._whole_shown(shown, data, name, paths)
        if self.unsure:
            raise UnsureError(self.unsure)

    def _shown(self) -> Shown:
        assert self.job.shown is not None
        return self.job.shown

    def _wholes(self) -> dict[str, tuple[str, ...]]:
        return {**{str(seed): paths for seed, paths in self.job.references.items()}, **self.job.whole_sets}

    def _tiles_shown(self, shown: Shown, data: Sequence[bytes]) -> None:
        pool = tiles.pool(self.job.spec, self.job.size, self.job.secret)
        for name, path in self.job.excerpts.items():
            excerpt = excerpt_of(path, pool)
            tolerance = allowed(name, excerpt.honest, self.job.spec.rel_l2)
            if tolerance is None:
                continue
            self.by_set[name] = tolerance
            self._ended(name)
            floors = tiles.floors(pool, excerpt.truth)
            places = {(tile.output, tile.box): at for at, tile in enumerate(pool)}
            worst: list[tuple[float, int, int]] = []
            for at, piece in enumerate(shown.pieces):
                if piece.set != name or piece.box is None:
                    continue
                number = places[piece.output, piece.box]
                truth = excerpt.truth[number]
                found = self._difference(piece, data[at], truth)
                worst.append(self._relative(found, _norm(truth) or floors[number], tolerance, at))
            self._judged(name, worst, tolerance, called(name))

    def _whole_shown(self, shown: Shown, data: Sequence[bytes], name: str, paths: Sequence[str]) -> None:
        self._ended(name)
        seed = name.isdecimal()
        tolerance = self.job.spec.rel_l2 if seed else self.by_set[name]
        truths = [whole_of(path) for path in paths]
        if not all(comparable(truth) for truth in truths):
            if seed:
                raise BadReferenceError("the reference is not finite, or zero everywhere")
            return
        worst = []
        for at, piece in enumerate(shown.pieces):
            if piece.set == name and piece.box is None:
                found = self._difference(piece, data[at], truths[piece.output])
                worst.append(self._relative(found, _norm(truths[piece.output]), tolerance, at))
        self._judged(name, worst, tolerance, called(name) if seed else f"{called(name)}, all of the outputs")

    def _ended(self, name: str) -> None:
        """Refuse a kernel that failed on this set."""
        if name in self._shown().ended:
            verdict, error = self._shown().ended[name]
            raise RejectedError(verdict, error.code, error.message, error.line or 0, error.hint or "")

    def _difference(self, piece: Piece, data: bytes, truth: Array) -> _Difference:
        dtype = dtype_of(self.job.spec.outputs[piece.output].dtype)
        if not piece.bins:
            found = np.frombuffer(data, dtype).astype(np.float64).reshape(-1)
            expected = truth.astype(np.float64).reshape(-1)
            if found.size != expected.size:
                raise BadPiecesError(f"{piece.set}: output {piece.output} has {found.size} elements")
            bad = int(found.size - np.count_nonzero(np.isfinite(found)))
            with np.errstate(all="ignore"):
                return _Difference(float(np.linalg.norm(found - expected)), bad, estimated=False)
        try:
            sums, bad = sketch.unpack(data)
        except ValueError as error:
            raise BadPiecesError(f"{piece.set}: output {piece.output}: {error}") from error
        expected, _ = sketch.sums(truth, self._shown().seed, piece.bins)
        return _Difference(float(np.linalg.norm(sums - expected)), bad, estimated=True)

    def _relative(
        self, found: _Difference, scale: float, tolerance: float, at: int
    ) -> tuple[float, int, int]:
        """The relative error, the elements that are not finite, and the piece's place."""
        error = inf if found.bad or not scale or not isfinite(found.norm) else found.norm / scale
        if found.estimated and tolerance / DOUBT <= error <= tolerance * DOUBT:
            self.unsure.append(at)
        return error, found.bad, at

    def _judged(self, name: str, worst: list[tuple[float, int, int]], tolerance: float, which: str) -> None:
        if not worst:
            raise BadPiecesError(f"nothing was shown of {which}")
        error = max(item[0] for item in worst)
        if name.isdecimal():
            self.errors[int(name)] = error
            self.tolerance = max(self.tolerance, tolerance)
        if error < tolerance or any(at in self.unsure for _, _, at in worst):
            return
        if self.unsure:
            raise UnsureError(self.unsure)  # what comes before this one decides first
        refuse(sum(item[1] for item in worst), error, tolerance, which)


def _read(shown: Shown) -> list[bytes]:
    """The pieces' bytes."""
    data = Path(shown.file).read_bytes()
    wanted = sum(piece.nbytes for piece in shown.pieces)
    if len(data) != wanted:
        raise BadPiecesError(f"the host showed {len(data)} bytes, it was asked for {wanted}")
    found, start = [], 0
    for piece in shown.pieces:
        found.append(data[start : start + piece.nbytes])
        start += piece.nbytes
    return found


def _norm(array: Array) -> float:
    flat = array.reshape(-1)
    total = 0.0
    for start in range(0, flat.size, 1 << 20):
        part = flat[start : start + (1 << 20)].astype(np.float64)
        total += float(part @ part)
    return sqrt(total)
