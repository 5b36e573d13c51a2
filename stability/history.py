"""Attempt history: what was tried, what it brought, and whether a thing was tried already.

Attempts are kept for the last H; credit per technique is kept for the whole run. Both are facts of
completed rounds only, so that proposals within a round cannot depend on the order of its results.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from state.model import Attempt, Credit, Digest


def credited(
    credits_: Mapping[str, Credit], attempts: Iterable[Attempt], gained: Collection[str]
) -> dict[str, Credit]:
    """Return the credits after a round, by technique in alphabetical order.

    `gained` are the candidate ids that beat their parent beyond noise and were not duplicates: only these
    add to `gains` and, with ln(speed-up), to `log_gain`. Every attempt is a try.
    """
    ledger = dict(credits_)
    for attempt in attempts:
        before = ledger.get(attempt.technique, Credit())
        gain = attempt.speedup if attempt.candidate in gained else None
        ledger[attempt.technique] = Credit(
            tries=before.tries + 1,
            gains=before.gains + (gain is not None),
            log_gain=before.log_gain + (math.log(gain) if gain is not None else 0.0),
        )
    return dict(sorted(ledger.items()))


def tried_codes(attempts: Iterable[Attempt]) -> frozenset[Digest]:
    """Return the digests of all kernels that the remembered attempts came to."""
    return frozenset(attempt.code for attempt in attempts if attempt.code is not None)
