"""What DMA spends its time on: bytes, or the fixed cost of each transfer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from nki_sim.operators import OPERATORS
from nki_sim.program.ir import Program
from nki_sim.targets import Target
from nki_sim.timing.traffic import count_forms


@dataclass(frozen=True, slots=True)
class TransferSummary:
    """`small` of `count` transfers are on the DMA engines no longer than the time `fixed_us` to issue one.

    `limited_by` is what takes most of the DMA engines' time: "fixed cost" or "bytes"; None if there are no
    transfers.
    """

    count: int
    small: int
    fixed_us: float
    average_bytes: float
    limited_by: Literal["bytes", "fixed cost"] | None


def summarize_transfers(program: Program, target: Target) -> TransferSummary:
    """Summarise the predicted costs of a program's transfers."""
    times = count_forms(program)
    moves = [index for index, form in enumerate(program.forms) if form.engine == "dma" and form.operands]
    forms = [program.forms[index] for index in moves]
    costs = [OPERATORS[form.op].cost(form, target) for form in forms]
    counts = np.array([times[index] for index in moves], dtype=np.int64)
    nbytes = np.array([max(item.nbytes for item in form.tiles) for form in forms], dtype=np.int64)
    took = counts * np.array([cost.busy_ns * max(1, cost.channels) for cost in costs])
    small = np.array([cost.busy_ns <= target.dma_issue_ns for cost in costs], dtype=bool)
    count = int(counts.sum())
    fixed = float(took[small].sum()) > float(took.sum()) / 2
    return TransferSummary(
        count=count,
        small=int(counts[small].sum()),
        fixed_us=target.dma_issue_ns / 1e3,
        average_bytes=float((counts * nbytes).sum()) / count if count else 0.0,
        limited_by=("fixed cost" if fixed else "bytes") if count else None,
    )
