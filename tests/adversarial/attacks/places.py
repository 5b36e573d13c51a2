"""Kernels that are wrong only where they expect nobody to look; for an output that is compared in tiles."""

from __future__ import annotations

import seeds
from remote.judge import tiles
from seeds import Problem
from tests.adversarial.model import edit

SIZE = "reduced"
ROWS, COLUMNS = 64, 256

_SMALLER_TILES = (
    ("TILE_M = 128", f"TILE_M = {ROWS}"),
    ("TILE_N = 1024", f"TILE_N = {COLUMNS}"),
)


def large() -> Problem:
    """Return silu with a reduced size that is too large to be one tile."""
    files = dict(seeds.load_problem("silu").files)
    spec = files["problem.toml"].decode()
    assert "M = 256\n" in spec
    files["problem.toml"] = spec.replace("M = 256\n", "M = 1024\n").encode()
    return seeds.build_problem(files)


def find_sampled_tiles(secret: str) -> list[tuple[int, int]]:
    """Return which of the kernel's tiles the judge's pool touches, were it drawn with this secret."""
    found = set()
    for tile in tiles.make_tile_pool(large().spec, SIZE, secret):
        (top, bottom), (left, right) = tile.box
        rows, columns = range(top // ROWS, -(-bottom // ROWS)), range(left // COLUMNS, -(-right // COLUMNS))
        found |= {(row, column) for row in rows for column in columns}
    return sorted(found)


def _where(condition: str, *lines: str) -> str:
    return _edit_source(
        f"            if {condition}:\n" + "".join(f"                {line}\n" for line in lines)
    )


def _edit_source(text: str) -> str:
    return edit("silu", *_SMALLER_TILES, ("            exp_neg = nl", text + "            exp_neg = nl"))


ZERO = "nisa.memset(dst=x_tile, value=0.0)"
CAPPED = "nisa.tensor_scalar(dst=x_tile, data=x_tile, op0=nl.minimum, operand0=6.0)"
"""Normal numbers are hardly ever above six."""


def zero_outside(secret: str) -> str:
    """Return a kernel that computes what a pool drawn with this secret shows, and nothing else."""
    return _where(f"(i_m, i_n) not in {find_sampled_tiles(secret)!r}", ZERO)


def capped_outside(secret: str) -> str:
    """Return a kernel that is right for the seeds, and for other sets where such a pool shows it."""
    return _where(f"(i_m, i_n) not in {find_sampled_tiles(secret)!r}", CAPPED)


def capped_in_rows(which: int) -> str:
    """Return a kernel that is right for the seeds, and for other sets in seven of eight rows of tiles."""
    return _where(f"i_m % 8 == {which}", CAPPED)


def honest() -> str:
    """Return the kernel that they are made from."""
    return edit("silu", *_SMALLER_TILES)
