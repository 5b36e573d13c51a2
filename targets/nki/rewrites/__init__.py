"""The built-in proposer: improves kernels by source rewrites, with no model, no key and no network.

The reader understands a kernel without running it (`reader.py`, `kernel_ir.py`, `values.py`). The
transformations are in `transforms/`, one file each, listed in `transforms/catalogue.py`; `../menu.toml` holds
their shared vocabulary. `estimate.py` is the static estimate, `rank.py` ranks single rewrites, and
`lookahead.py` searches sequences of them (`lookahead_role.py` and `prediction_scale.py` turn a request into a
search; `random_baseline.py` draws where a strategy does not search). `proposer.py` answers requests, with the
work done in a process pool by `worker.py`. Judging, timing and the beam live elsewhere. Open `proposer.py`
first, then `transform.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_core.roles import Proposer


def create(*, workers: int | None = None) -> Proposer:
    """The proposer; it starts at most `workers` processes (default: one per CPU, up to four) on demand."""
    from targets.nki.rewrites.proposer import BuiltinProposer

    return BuiltinProposer(workers=workers)


def answer_in_worker(request: str) -> str:
    """Runs in a worker, which then imports what does the work and nothing of what sends requests.

    An empty request only imports it.
    """
    from targets.nki.rewrites.worker import answer_request

    return answer_request(request) if request else ""
