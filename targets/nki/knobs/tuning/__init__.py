"""Tuning by knobs: from a workload's file to a problem, and the proposer that searches its space.

Here live the loader (`workload.py` asks, `workload_reader.py` runs the file in a process of its own,
`workload_module.py` says what is wrong with it, `excerpt.py` cuts the reference out), the problem that a
workload is (`problem.py`) and the proposer `knobs`: points as text (`points.py`), what a run has seen of them
(`history.py`), one batch of looking ahead (`worker.py`), and the roles (`proposer.py`). What does not live
here: judging, files for people (`targets/nki/knobs/export`). Open `workload.py` first, then `proposer.py`.
"""

from __future__ import annotations

from agent_core.roles import Proposer


def create(*, workers: int | None = None) -> Proposer:
    """The proposer `knobs`; `workers` processes at most, started when needed."""
    from targets.nki.knobs.tuning.proposer import KnobProposer

    return KnobProposer(workers=workers)
