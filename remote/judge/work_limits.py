"""How much running a kernel may cost the judge: counted work, so that it depends on no clock.

The limits leave an honest kernel of any of NKIBench's problems room, and grow with problems that are larger.
"""

from __future__ import annotations

from math import prod

from remote.judge import tiles
from seeds.spec import ProblemSpec

LEAST_LIMIT = 1 << 34
"""Units of `nki_sim.running.work` that a kernel of any problem may take, twice what the largest need."""

SLACK = 4
"""How many times the least work of a problem a kernel may take."""

_FLOPS_PER_UNIT = 2 * 128 * 512 * 128 / (128 * 512 + 128 * 128 + 128 * 512)
"""Of products: what an nc_matmul of the largest size computes, over the elements of its operands."""

_UNITS_PER_ELEMENT = 4
"""Units per element of inputs and outputs: into a tile, out of it, and once each way in between."""


def work_limit(spec: ProblemSpec, size: str) -> int:
    """Return what one run of the whole kernel may take."""
    return max(LEAST_LIMIT, SLACK * _least_work(spec, size))


def tile_work_limit(spec: ProblemSpec, size: str, sets: int) -> int:
    """Return what the runs for tiles of all input sets may take together."""
    pool, dims = (
        tiles.make_tile_pool(spec, size, secret=""),
        spec.dims(size),
    )  # only how large they are counts
    shown = sum(prod(end - first for first, end in pool[at].box) for at in tiles.choose_tiles(pool, b""))
    share = shown / sum(prod(output.resolve_shape(dims)) for output in spec.outputs)
    return max(LEAST_LIMIT, int(SLACK * _least_work(spec, size) * share * sets))


def _least_work(spec: ProblemSpec, size: str) -> int:
    work = spec.minimal_work(size)
    computed = work.activation_elements + work.elementwise_elements
    return int(work.matmul_flops / _FLOPS_PER_UNIT) + _UNITS_PER_ELEMENT * (work.total_bytes // 4 + computed)
