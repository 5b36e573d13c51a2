"""The built-in proposer: kernels improved by source rewrites, with no model, no key and no network.

Here live the reader that understands a kernel without running it (`reader.py`, `kernel_ir.py`, `values.py`),
the transformations (`transforms/`, one file each, listed in `catalogue.py`; `menu.toml` holds their shared
vocabulary), the static estimate (`estimate.py`), the ranking of single rewrites (`rank.py`), the search over
sequences of them (`lookahead.py`; `lookahead_role.py` and `prediction_scale.py` put a request to it,
`random_baseline.py` draws where a strategy does not search) and the proposer that answers requests
(`proposer.py`, through the processes of `pool.py`). What does not live here: judging, timing, the beam. Open
`proposer.py` first, then `transform.py`.
"""

from __future__ import annotations

from agent_core.roles import Proposer


def create(*, workers: int | None = None) -> Proposer:
    """The proposer; `workers` processes at most (default: one per CPU, up to four), started when needed."""
    from targets.nki.rewrites.proposer import BuiltinProposer

    return BuiltinProposer(workers=workers)
