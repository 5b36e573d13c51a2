"""How much of SBUF and PSUM a tile takes, and how much of each there is."""

from __future__ import annotations

from nki_sim.forms import Site
from nki_sim.operators.rules.shapes import start_step
from nki_sim.targets import Target

MEMORIES = ("sbuf", "psum")


def memory_capacity(memory: str, target: Target) -> int:
    """Capacity in bytes per partition of SBUF, or banks of PSUM."""
    return target.sbuf_usable_bytes if memory == "sbuf" else target.psum_banks


def tile_footprint(site: Site, target: Target) -> int:
    """Room of one tile in the unit of `memory_capacity`.

    In SBUF a low tile counts as a share of a partition, by where tiles of its height may start.
    """
    if site.buffer == "sbuf":
        fits = site.partition_bytes <= target.sbuf_usable_bytes
        return site.partition_bytes // (target.partitions // start_step(site.shape[0]) if fits else 1)
    return -(-site.partition_bytes // target.psum_bank_bytes)
