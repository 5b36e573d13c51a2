"""What a tile takes of SBUF and PSUM, and how much of each there is."""

from __future__ import annotations

from nki_sim.forms import Site
from nki_sim.operators.rules.shapes import start_step
from nki_sim.targets import Target

MEMORIES = ("sbuf", "psum")


def memory_capacity(memory: str, target: Target) -> int:
    """Bytes per partition of SBUF, banks of PSUM."""
    return target.sbuf_usable_bytes if memory == "sbuf" else target.psum_banks


def tile_footprint(site: Site, target: Target) -> int:
    """What one tile takes, in the unit of `memory_capacity`: of SBUF its share, by where tiles so high may
    start."""
    if site.buffer == "sbuf":
        fits = site.partition_bytes <= target.sbuf_usable_bytes
        return site.partition_bytes // (target.partitions // start_step(site.shape[0]) if fits else 1)
    return -(-site.partition_bytes // target.psum_bank_bytes)
