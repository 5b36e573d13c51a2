"""The numerics stage for kernels that ran on a host: compares the pieces it showed with the reference.

Sets, tiles and tolerances are those of `trials`. A sketch estimates an error up to a factor (`sketch`). Where
that factor decides, the piece is `unsure`, and home asks for its bytes before it gives a verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, sqrt
from pathlib import Path

import numpy as np

from remote.judge import sketch, tiles
from remote.judge.comparison import (
    assess_stability,
    describe_set,
    load_reference_tiles,
    load_whole_output,
    refuse_outputs,
    refusing_tolerance,
    set_tolerance,
)
from remote.judge.job import HostOutputs, JudgeJob, OutputPiece
from remote.judge.numerics import Array, BadReferenceError, is_comparable
from remote.judge.rejection import RejectedError
from remote.judge.suite import SHIFTED_SET
from seeds.inputs import dtype_of
from state.model import NumericalStability

DOUBT_FACTOR = 1 + 6 * sqrt(2 / sketch.BINS)
"""Six standard deviations of a sketch: errors within this factor of the tolerance are computed exactly."""


class UnsureError(Exception):
    """Sketches cannot decide: the host must show the pieces at these positions in full."""

    def __init__(self, places: Sequence[int]) -> None:
        super().__init__(f"{len(places)} pieces are within a factor {DOUBT_FACTOR:.2g} of their tolerance")
        self.places = tuple(places)


class BadPiecesError(Exception):
    """What a host showed is not what home asked for."""


@dataclass(frozen=True)
class _PieceDifference:
    """A piece's distance from the reference (an L2 norm) and its non-finite elements; exact or estimated."""

    norm: float
    bad: int
    estimated: bool


@dataclass
class ReturnedOutputs:
    """The pieces that a host showed, for a job that has `shown`, and the errors found by seed."""

    job: JudgeJob
    errors: dict[int, float]
    tolerance: float = 0.0
    """The largest tolerance that a seed was judged with; at least the problem's own."""
    by_set: dict[str, float] = field(default_factory=dict)
    """The tolerance of each set whose tiles were judged."""
    unsure: list[int] = field(default_factory=list)
    stability: NumericalStability | None = None

    def __post_init__(self) -> None:
        self.tolerance = self.job.spec.rel_l2

    def compare(self) -> None:
        """Judge what was shown: tiles, then whole outputs.

        Raises:
            RejectedError: the kernel is wrong.
            UnsureError: sketches cannot decide.
            BadReferenceError: the reference, or a file of it, is at fault.
            BadPiecesError: what the host showed is not what home asked for.
        """
        shown = self._host_outputs()
        data = _read_pieces(shown)
        self._judge_shown_tiles(shown, data)
        for name, paths in self._whole_references().items():
            if name in self.by_set or name.isdecimal():
                self._judge_shown_whole(shown, data, name, paths=paths)
        if self.unsure:
            raise UnsureError(self.unsure)

    def _host_outputs(self) -> HostOutputs:
        assert self.job.shown is not None
        return self.job.shown

    def _whole_references(self) -> dict[str, tuple[str, ...]]:
        return {**{str(seed): paths for seed, paths in self.job.references.items()}, **self.job.whole_sets}

    def _judge_shown_tiles(self, shown: HostOutputs, data: Sequence[bytes]) -> None:
        pool = tiles.make_tile_pool(self.job.spec, self.job.size, self.job.secret)
        for name, path in self.job.excerpts.items():
            excerpt = load_reference_tiles(path, pool)
            tolerance = set_tolerance(name, excerpt.honest, self.job.spec.rel_l2)
            if tolerance is None:
                continue
            self.by_set[name] = tolerance
            self._refuse_failed_set(name)
            floors = tiles.norm_floors(pool, excerpt.truth)
            places = {(tile.output, tile.box): at for at, tile in enumerate(pool)}
            worst: list[tuple[float, int, int]] = []
            for at, piece in enumerate(shown.pieces):
                if piece.set != name or piece.box is None:
                    continue
                number = places[piece.output, piece.box]
                truth = excerpt.truth[number]
                found = self._measure_difference(piece, data[at], truth)
                worst.append(self._relative_error(found, _l2_norm(truth) or floors[number], tolerance, at))
            self._judge_errors(name, worst, refusing_tolerance(name, tolerance), which=describe_set(name))
            if name == SHIFTED_SET:
                self.stability = assess_stability(max(item[0] for item in worst), tolerance)

    def _judge_shown_whole(
        self, shown: HostOutputs, data: Sequence[bytes], name: str, *, paths: Sequence[str]
    ) -> None:
        self._refuse_failed_set(name)
        seed = name.isdecimal()
        tolerance = self.job.spec.rel_l2 if seed else self.by_set[name]
        truths = [load_whole_output(path) for path in paths]
        if not all(is_comparable(truth) for truth in truths):
            if seed:
                raise BadReferenceError("the reference is not finite, or zero everywhere")
            return
        worst = []
        for at, piece in enumerate(shown.pieces):
            if piece.set == name and piece.box is None:
                found = self._measure_difference(piece, data[at], truths[piece.output])
                worst.append(self._relative_error(found, _l2_norm(truths[piece.output]), tolerance, at))
        self._judge_errors(
            name,
            worst,
            tolerance,
            which=describe_set(name) if seed else f"{describe_set(name)}, all of the outputs",
        )

    def _refuse_failed_set(self, name: str) -> None:
        """Reject a kernel that failed on this set."""
        if name in self._host_outputs().ended:
            verdict, error = self._host_outputs().ended[name]
            raise RejectedError(verdict, error.code, error.message, error.line or 0, error.hint or "")

    def _measure_difference(self, piece: OutputPiece, data: bytes, truth: Array) -> _PieceDifference:
        dtype = dtype_of(self.job.spec.outputs[piece.output].dtype)
        if not piece.bins:
            found = np.frombuffer(data, dtype).astype(np.float64).reshape(-1)
            expected = truth.astype(np.float64).reshape(-1)
            if found.size != expected.size:
                raise BadPiecesError(f"{piece.set}: output {piece.output} has {found.size} elements")
            bad = int(found.size - np.count_nonzero(np.isfinite(found)))
            with np.errstate(all="ignore"):
                return _PieceDifference(float(np.linalg.norm(found - expected)), bad, estimated=False)
        try:
            sums, bad = sketch.unpack_sketch(data)
        except ValueError as error:
            raise BadPiecesError(f"{piece.set}: output {piece.output}: {error}") from error
        expected, _ = sketch.sketch_sums(truth, self._host_outputs().seed, piece.bins)
        return _PieceDifference(float(np.linalg.norm(sums - expected)), bad, estimated=True)

    def _relative_error(
        self, found: _PieceDifference, scale: float, tolerance: float, at: int
    ) -> tuple[float, int, int]:
        """Return the relative error, the number of non-finite elements, and the piece's position."""
        error = inf if found.bad or not scale or not isfinite(found.norm) else found.norm / scale
        if found.estimated and tolerance / DOUBT_FACTOR <= error <= tolerance * DOUBT_FACTOR:
            self.unsure.append(at)
        return error, found.bad, at

    def _judge_errors(
        self, name: str, worst: list[tuple[float, int, int]], tolerance: float, *, which: str
    ) -> None:
        if not worst:
            raise BadPiecesError(f"nothing was shown of {which}")
        error = max(item[0] for item in worst)
        if name.isdecimal():
            self.errors[int(name)] = error
            self.tolerance = max(self.tolerance, tolerance)
        if error < tolerance or any(at in self.unsure for _, _, at in worst):
            return
        if self.unsure:
            raise UnsureError(self.unsure)  # an earlier piece decides first
        refuse_outputs(sum(item[1] for item in worst), error, tolerance, which)


def _read_pieces(shown: HostOutputs) -> list[bytes]:
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


def _l2_norm(array: Array) -> float:
    flat = array.reshape(-1)
    total = 0.0
    for start in range(0, flat.size, 1 << 20):
        part = flat[start : start + (1 << 20)].astype(np.float64)
        total += float(part @ part)
    return sqrt(total)
