"""What a host is asked to show of a kernel's outputs, once the kernel has ended.

Outputs stay on the host. Home asks for the judge's tiles and for what is compared whole, as sketches where
these are smaller than the bytes. Which tiles, and which sketches, follows from the secret of the
installation, the artefact and the digests of all outputs, so nobody on the host knows it before the outputs
are there, and a verdict repeats.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from math import prod

from remote.judge import sketch, tiles
from remote.judge.job import Box, Piece
from seeds.inputs import dtype_of
from seeds.spec import ProblemSpec


def seed_of(secret: str, artefact: str, outputs: Mapping[str, Sequence[str]]) -> str:
    """Return the seed of the sketches for these outputs, by digest."""
    told = "\n".join(f"{name} {' '.join(digests)}" for name, digests in sorted(outputs.items()))
    return hashlib.sha256(f"{secret}\n{artefact}\n{told}".encode()).hexdigest()


def asked(
    spec: ProblemSpec, size: str, *, secret: str, artefact: bytes, sets: Iterable[str], wholes: Iterable[str]
) -> list[Piece]:
    """Return the pieces for a judgement: tiles of `sets`, and all outputs of `wholes`."""
    pool = tiles.pool(spec, size, secret)
    chosen = [pool[number] for number in tiles.chosen(pool, artefact)]
    found = [_piece(spec, size, name, tile.output, tile.box) for name in sets for tile in chosen]
    numbers = range(len(spec.outputs))
    return found + [_piece(spec, size, name, number, None) for name in wholes for number in numbers]


def in_full(spec: ProblemSpec, size: str, pieces: Sequence[Piece]) -> list[Piece]:
    """Return the same pieces, their bytes instead of sketches."""
    return [
        piece.model_copy(update={"bins": 0, "nbytes": _nbytes(spec, size, piece.output, piece.box)})
        for piece in pieces
    ]


def _piece(spec: ProblemSpec, size: str, name: str, output: int, box: Box | None) -> Piece:
    nbytes, brief = _nbytes(spec, size, output, box), sketch.nbytes(sketch.BINS)
    bins = sketch.BINS if brief < nbytes else 0
    return Piece(set=name, output=output, box=box, bins=bins, nbytes=brief if bins else nbytes)


def _nbytes(spec: ProblemSpec, size: str, output: int, box: Box | None) -> int:
    item = spec.outputs[output]
    shape = item.resolve(spec.dims(size)) if box is None else tuple(end - first for first, end in box)
    return prod(shape) * dtype_of(item.dtype).itemsize
