"""Chooses the parts of a kernel's outputs that a host must show, after the kernel has ended.

Outputs stay on the host. Home asks for the judge's tiles, and for whole outputs, as sketches where these are
smaller than the bytes. The choice of tiles and sketches follows from the installation's secret, the artefact
and the digests of all outputs. So nobody on the host knows it before the outputs exist, and verdicts are
repeatable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from math import prod

from remote.judge import sketch, tiles
from remote.judge.job import Box, OutputPiece
from seeds.inputs import dtype_of
from seeds.spec import ProblemSpec


def derive_sketch_seed(secret: str, artefact: str, outputs: Mapping[str, Sequence[str]]) -> str:
    """Return the seed of the sketches for these outputs, given by digest."""
    told = "\n".join(f"{name} {' '.join(digests)}" for name, digests in sorted(outputs.items()))
    return hashlib.sha256(f"{secret}\n{artefact}\n{told}".encode()).hexdigest()


def request_pieces(
    spec: ProblemSpec, size: str, *, secret: str, artefact: bytes, sets: Iterable[str], wholes: Iterable[str]
) -> list[OutputPiece]:
    """Return the pieces for a judgement: tiles of `sets`, and all outputs of `wholes`."""
    pool = tiles.make_tile_pool(spec, size, secret)
    chosen = [pool[number] for number in tiles.choose_tiles(pool, artefact)]
    found = [
        _make_piece(spec, size, name, output=tile.output, box=tile.box) for name in sets for tile in chosen
    ]
    numbers = range(len(spec.outputs))
    return found + [
        _make_piece(spec, size, name, output=number, box=None) for name in wholes for number in numbers
    ]


def request_full_pieces(spec: ProblemSpec, size: str, pieces: Sequence[OutputPiece]) -> list[OutputPiece]:
    """Return the same pieces with their bytes instead of sketches."""
    return [
        piece.model_copy(update={"bins": 0, "nbytes": _piece_bytes(spec, size, piece.output, box=piece.box)})
        for piece in pieces
    ]


def _make_piece(spec: ProblemSpec, size: str, name: str, *, output: int, box: Box | None) -> OutputPiece:
    nbytes, brief = _piece_bytes(spec, size, output, box=box), sketch.sketch_bytes(sketch.BINS)
    bins = sketch.BINS if brief < nbytes else 0
    return OutputPiece(set=name, output=output, box=box, bins=bins, nbytes=brief if bins else nbytes)


def _piece_bytes(spec: ProblemSpec, size: str, output: int, *, box: Box | None) -> int:
    item = spec.outputs[output]
    shape = item.resolve_shape(spec.dims(size)) if box is None else tuple(end - first for first, end in box)
    return prod(shape) * dtype_of(item.dtype).itemsize
