"""Finds the tiles that the legacy compiler moves between SBUF and HBM, and the lines that declare them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nki_sim.compiler.compiled_program import LOAD_AGAIN, RELOAD, SAVE, CompiledProgram
from nki_sim.forms import HBM_BUFFERS, Site

ADDED = (SAVE, RELOAD, LOAD_AGAIN)


@dataclass(frozen=True, slots=True)
class SpilledTile:
    """Tiles of one declaration: bytes saved to HBM, read back, and loaded again from their source.

    `line` declares them; `needed_at` is the line for which most bytes come back, 0 if none do.
    """

    name: str
    line: int
    save_bytes: int
    reload_bytes: int
    load_again_bytes: int
    needed_at: int

    @property
    def total_bytes(self) -> int:
        """Traffic in both directions."""
        return self.save_bytes + self.reload_bytes + self.load_again_bytes


def find_spilled_tiles(compiled: CompiledProgram) -> list[SpilledTile]:
    """Return the traffic that the kernel does not ask for, by declaration, most bytes first."""
    per_tile: dict[tuple[int, str], Counter[int]] = defaultdict(Counter)
    needed: dict[tuple[int, str], Counter[int]] = defaultdict(Counter)
    for site, origin, line, nbytes in _added_transfers(compiled):
        key = site.line, site.name
        per_tile[key][origin] += nbytes
        needed[key][line] += nbytes if origin != SAVE else 0
    found = [
        SpilledTile(
            name, line, moved[SAVE], moved[RELOAD], moved[LOAD_AGAIN], _most_needed_line(needed[line, name])
        )
        for (line, name), moved in per_tile.items()
    ]
    return sorted(found, key=lambda entry: (-entry.total_bytes, entry.line))


def _most_needed_line(needed: Counter[int]) -> int:
    line, nbytes = needed.most_common(1)[0]
    return line if nbytes else 0


def _added_transfers(compiled: CompiledProgram) -> Iterator[tuple[Site, int, int, int]]:
    """Each transfer that the compiler adds: the tile on chip, the reason, the line it serves, bytes."""
    program, cells = compiled.program, compiled.program.cells
    for number in np.flatnonzero(np.isin(compiled.origins, ADDED)).tolist():
        for cell in range(int(cells.first[number]), int(cells.first[number + 1])):
            item = program.operands[int(cells.operand[cell])]
            if item.buffer not in HBM_BUFFERS:
                site = program.site(int(cells.tensor[cell]))
                yield site, int(compiled.origins[number]), int(program.lines[number]), item.nbytes
                break
