"""The attempt history: credits by technique, and look-ups of what was tried."""

from __future__ import annotations

import math

from stability.history import credited, tried_codes
from state.model import Attempt, Credit, Verdict, digest_of


def attempt(candidate: str, technique: str = "a", *, speedup: float | None = None) -> Attempt:
    return Attempt(
        candidate=candidate,
        parent="p",
        technique=technique,
        site="here",
        code=digest_of(candidate.encode()) if speedup else None,
        verdict=Verdict.CORRECT if speedup else None,
        error=None,
        speedup=speedup,
        round=1,
    )


def test_every_attempt_is_a_try_and_only_gains_are_credited():
    tries = [
        attempt("c1", speedup=1.5),
        attempt("c2", speedup=1.2),
        attempt("c3"),
        attempt("c4", "b", speedup=0.5),
    ]
    credits_ = credited({"a": Credit(tries=2, gains=1, log_gain=0.5)}, tries, gained={"c1"})
    assert credits_["a"] == Credit(tries=5, gains=2, log_gain=0.5 + math.log(1.5))
    assert credits_["b"] == Credit(tries=1)


def test_credits_of_techniques_not_tried_stay_and_all_are_in_order():
    before = {"z": Credit(tries=1), "m": Credit(tries=3)}
    after = credited(before, [attempt("c", "k")], gained=())
    assert list(after) == ["k", "m", "z"]
    assert after["m"] == Credit(tries=3)
    assert before == {"z": Credit(tries=1), "m": Credit(tries=3)}


def test_tried_codes_leaves_out_attempts_without_a_kernel():
    assert tried_codes([attempt("c1", speedup=1.0), attempt("c2")]) == {digest_of(b"c1")}
