"""Resolves `accumulate=None` of a matmul, by tracking which elements of its PSUM tile have products.

A memset begins again: the next product overwrites.

The elements of a tile are the bits of one integer, so any two access patterns compare exactly, through
whatever view they were made.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from nki_sim.forms import Dims, make_ascending, reach_below
from nki_sim.frontend.recorder import current_recorder
from nki_sim.frontend.tensor import Tensor, fail


def infer_accumulate(given: dict[str, Any]) -> None:
    """Decide `accumulate=None` among the arguments of a matmul, and record what it starts.

    The first write to an element overwrites, later ones accumulate; an access with both kinds is refused.
    """
    dst = given.get("dst")
    if not isinstance(dst, Tensor) or not dst._storage.banked:
        return
    storage = dst._storage
    if not storage.started:
        _check_tile(dst)
    if dst._lookup is not None and dst._lookup.by_column:
        if given.get("accumulate") is None:
            fail(
                "accumulate_overlap", f"dst ({dst.name}) is scattered: what it adds to depends on data",
                "pass accumulate=True or False",
            )  # fmt: skip
        dst = dst._storage_rows()
    region = _element_bits(make_ascending(dst._dims)) << dst._offset - reach_below(dst._dims)
    covered = storage.started & region
    if given.get("accumulate") is None:
        if covered not in {0, region}:
            fail(
                "accumulate_overlap", f"part of dst ({dst.name}) was written by a matmul, part was not",
                "pass accumulate=True or False, or write the parts with matmuls of their own",
            )  # fmt: skip
        given["accumulate"] = covered != 0
    storage.started |= region


def begin_accumulation(dst: Any) -> None:
    """Let the next product overwrite what a memset fills in PSUM, as if no product had been there."""
    if isinstance(dst, Tensor) and dst._storage.banked and dst._storage.started:
        region = _element_bits(make_ascending(dst._dims)) << dst._offset - reach_below(dst._dims)
        dst._storage.started &= ~region


def _check_tile(dst: Tensor) -> None:
    """Check that the tile fits into PSUM and that products have the type it was declared in."""
    if dst._storage.root is not dst._storage:
        fail(
            "reinterpret", f"nisa.nc_matmul writes {dst.name} as {dst._storage.dtype}, it was declared "
            f"{dst._storage.site.dtype}", "declare the tile in the type that products are written in",
        )  # fmt: skip
    target = current_recorder().target
    limit = target.psum_banks * target.psum_bank_bytes
    nbytes = dst._storage.site.partition_bytes
    if nbytes > limit:
        fail(
            "psum_capacity", f"{dst.name} takes {nbytes} bytes per partition, PSUM has {limit}",
            "use smaller tiles",
        )  # fmt: skip


@lru_cache(maxsize=256)
def _element_bits(dims: Dims) -> int:
    """An integer with a bit for each element that an ascending pattern touches, counted from its first."""
    made = 1
    for step, count in dims:
        have = 1
        while have < count:
            more = min(have, count - have)
            made |= made << step * more
            have += more
    return made
