"""Limits what running a kernel may cost the judge, in counted work, so that no clock matters.

The limits leave room for an honest kernel of any built-in problem, and grow with larger problems.
"""

from __future__ import annotations

from math import prod

from remote.judge import tiles
from seeds.spec import ProblemSpec

LEAST_LIMIT = 1 << 34
"""Units of a simulator's work that a kernel of any problem may take: twice what the largest one needs."""

SLACK = 8
"""A kernel may take this many times the least work of its problem.

Float32 products in parts are three for one, and making the parts for each product costs twice as much again.
"""

TILE_RUNS = 4
"""Whole runs whose work the tiles of all input sets may take together; whole outputs take more of them."""

_FLOPS_PER_UNIT = 2 * 128 * 512 * 128 / (128 * 512 + 128 * 128 + 128 * 512)
"""For matrix products: the FLOPs of the largest nc_matmul per element of its operands."""

_UNITS_PER_ELEMENT = 4
"""Units per element of inputs and outputs: into a tile, out of it, and once each way in between."""


def work_limit(spec: ProblemSpec, size: str) -> int:
    """Return the units that one run of the whole kernel may take."""
    return max(LEAST_LIMIT, SLACK * _least_work(spec, size))


def tile_work_limit(spec: ProblemSpec, size: str, sets: int) -> int:
    """Return the units that the runs for tiles of all input sets may take together.

    Four tiles of a product of products in blocks of 512 rows, or of a scan, need nearly everything. So a
    set's tiles may take what a whole run may, while all sets stay within `TILE_RUNS` whole runs.
    """
    whole = SLACK * _least_work(spec, size) * sets
    capped = min(whole, TILE_RUNS * work_limit(spec, size))
    return max(LEAST_LIMIT, capped, int(whole * _judged_share(spec, size)))


def _judged_share(spec: ProblemSpec, size: str) -> float:
    """Return the share of the outputs' elements that one candidate's tiles have."""
    pool, dims = tiles.make_tile_pool(spec, size, secret=""), spec.dims(size)  # only their size counts
    shown = sum(prod(end - first for first, end in pool[at].box) for at in tiles.choose_tiles(pool, b""))
    return shown / sum(prod(output.resolve_shape(dims)) for output in spec.outputs)


def _least_work(spec: ProblemSpec, size: str) -> int:
    work = spec.minimal_work(size)
    computed = work.activation_elements + work.elementwise_elements
    return int(work.matmul_flops / _FLOPS_PER_UNIT) + _UNITS_PER_ELEMENT * (work.total_bytes // 4 + computed)
