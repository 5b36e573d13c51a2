"""Tunes by knobs: from a workload's file to a problem, and the proposer that searches its space.

The loader: `workload.py` starts it, `workload_reader.py` runs the file in a process of its own,
`workload_module.py` reports what is wrong with it, `excerpt.py` cuts out the reference. `problem.py` turns a
workload into a problem. The proposer `knobs`: points as text (`points.py`), what a run has tried
(`history.py`), one search by predictions (`look_ahead.py`), its work in a process pool (`worker.py`), and the
roles (`proposer.py`). Judging, and files for people (`targets/nki/knobs/export`), live elsewhere. Open
`workload.py` first, then `proposer.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_core.roles import Proposer


def create(*, workers: int | None = None) -> Proposer:
    """The proposer `knobs`, with at most `workers` processes, started when needed."""
    from targets.nki.knobs.tuning.proposer import KnobProposer

    return KnobProposer(workers=workers)


def answer_in_worker(request: str) -> str:
    """Runs in a worker, which then imports what does the work and nothing of what sends requests.

    An empty request only imports it.
    """
    from targets.nki.knobs.tuning.worker import answer_request

    return answer_request(request) if request else ""
