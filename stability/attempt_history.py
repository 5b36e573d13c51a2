"""The attempt history: what was tried, what it gained, and whether a kernel was tried already.

The last H attempts are kept; credit per technique is kept for the whole run. Both cover completed rounds
only, so that proposals within a round cannot depend on the order of its results.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from state.model import Attempt, Digest, ErrorInfo, Evaluation, TechniqueCredit


def update_credits(
    credits_: Mapping[str, TechniqueCredit], attempts: Iterable[Attempt]
) -> dict[str, TechniqueCredit]:
    """Return the credits after a round, by technique in alphabetical order.

    Every attempt is a try; only those that gained add to `gains` and, with ln(speed-up), to `log_gain`. An
    attempt with several techniques is a try of each, and each gets its share of the gain. Kernels that a
    session only tried on its way count for nothing: its last one stands for them.
    """
    ledger = dict(credits_)
    for attempt in attempts:
        if attempt.in_session:
            continue
        for technique, share in _technique_shares(attempt).items():
            before = ledger.get(technique, TechniqueCredit())
            ledger[technique] = TechniqueCredit(
                tries=before.tries + 1,
                gains=before.gains + attempt.gained,
                log_gain=before.log_gain + share * _log_gain(attempt),
            )
    return dict(sorted(ledger.items()))


def retract_attempts(
    attempts: Iterable[Attempt],
    credits_: Mapping[str, TechniqueCredit],
    evaluation: Evaluation,
    error: ErrorInfo,
) -> tuple[tuple[Attempt, ...], dict[str, TechniqueCredit]]:
    """Return the history and the credits after a kernel turned out to be wrong.

    `evaluation` and `error` replace the result of its attempts, and of those of all kernels with its code.
    Attempts that are no longer remembered keep their credit.
    """
    ledger = dict(credits_)
    amended = []
    for attempt in attempts:
        if attempt.code != evaluation.code:
            amended.append(attempt)
            continue
        amended.append(
            attempt.model_copy(
                update={"verdict": evaluation.verdict, "error": error, "speedup": None, "gained": False}
            )
        )
        for technique, share in _technique_shares(attempt).items() if attempt.gained else ():
            before = ledger[technique]
            ledger[technique] = before.model_copy(
                update={"gains": before.gains - 1, "log_gain": before.log_gain - share * _log_gain(attempt)}
            )
    return tuple(amended), ledger


def _technique_shares(attempt: Attempt) -> Mapping[str, float]:
    return attempt.shares or {attempt.technique: 1.0}


def _log_gain(attempt: Attempt) -> float:
    return math.log(attempt.speedup) if attempt.gained and attempt.speedup is not None else 0.0


def tried_codes(attempts: Iterable[Attempt]) -> frozenset[Digest]:
    """Return the code digests of all kernels of the remembered attempts."""
    return frozenset(attempt.code for attempt in attempts if attempt.code is not None)
