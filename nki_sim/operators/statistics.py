"""Instructions for batch-norm statistics."""

from __future__ import annotations

from collections.abc import Iterator

from nki_sim.forms import Form
from nki_sim.operators import costs
from nki_sim.operators.model import Operator, out, tensor
from nki_sim.operators.rules.shapes import Breach
from nki_sim.targets import Target

STATISTICS = 6
TUPLE = 3
RESULTS = 2


def _same_partitions(form: Form, columns: int) -> Iterator[Breach]:
    dst, data = form["dst"], form["data"]
    found, wanted = f"{dst.partitions}x{dst.free}", f"{data.partitions}x{columns}"
    if found != wanted:
        yield Breach(
            "shape_mismatch", f"dst is {found}, the result is {wanted}", "dst", wanted, found,
            f"declare dst [P, {columns}]",
        )  # fmt: skip


def stats_size(form: Form, target: Target) -> Iterator[Breach]:
    """Six statistics of at most 512 elements per partition."""
    yield from _same_partitions(form, STATISTICS)
    size, limit = form["data"].free, target.bn_stats_max
    if size > limit:
        yield Breach(
            "bn_stats_size", f"data has {size} elements per partition, the limit is {limit}", "data", limit,
            size, "take the statistics of parts into one tile, and aggregate them with nisa.bn_aggr",
        )  # fmt: skip


def aggregate_size(form: Form, target: Target) -> Iterator[Breach]:
    """Mean and variance of whole (count, mean, variance * count) tuples."""
    del target
    yield from _same_partitions(form, RESULTS)
    size = form["data"].free
    if size % TUPLE:
        yield Breach(
            "bn_aggr_size", f"data has {size} elements per partition, not a multiple of {TUPLE}", "data",
            f"multiple of {TUPLE}", size, "pass whole results of nisa.bn_stats",
        )  # fmt: skip


ENTRIES = (
    Operator(
        "bn_stats", ("vector",), (out(), tensor("data")), costs.elementwise, (stats_size,),
        "(count, mean, variance * count) of the even and of the odd elements",
    ),
    Operator(
        "bn_aggr", ("vector",), (out(), tensor("data")), costs.bn_aggr, (aggregate_size,),
        "mean and variance from results of bn_stats",
    ),
)  # fmt: skip
