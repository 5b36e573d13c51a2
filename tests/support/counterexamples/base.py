"""Kernels that were built to be rewritten wrongly, each of which once was or might have been."""

from __future__ import annotations

from typing import NamedTuple

from tests.support.kernels import HEADER

TILE = "nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)"


class Counterexample(NamedTuple):
    """The body of a kernel of `x` (and `w`), in which TILE is a tile, and the shapes of its arguments."""

    body: str
    shapes: tuple[tuple[int, ...], ...] = ((256, 256),)

    @property
    def source(self) -> str:
        """The module."""
        lines = self.body.strip().replace("TILE", TILE).splitlines()
        inside = "\n".join(f"    {line}" if line else line for line in lines)
        return f"{HEADER}\n\n@nki.jit\ndef kernel({', '.join('xw'[: len(self.shapes)])}):\n{inside}\n"
