"""The attempt history: credits by technique, and look-ups of what was tried."""

from __future__ import annotations

import math

import pytest

from stability.attempt_history import retract_attempts, tried_codes, update_credits
from state.model import Attempt, ErrorInfo, TechniqueCredit, Verdict, digest_of
from tests.support.world import refused_evaluation

WRONG = ErrorInfo(code="wrong_result", message="far off")


def attempt(
    candidate: str,
    technique: str = "a",
    *,
    speedup: float | None = None,
    gained: bool = False,
    code: str | None = None,
) -> Attempt:
    return Attempt(
        candidate=candidate,
        parent="p",
        technique=technique,
        site="here",
        code=digest_of((code or candidate).encode()) if speedup else None,
        verdict=Verdict.CORRECT if speedup else None,
        error=None,
        speedup=speedup,
        gained=gained,
        round=1,
    )


def test_every_attempt_is_a_try_and_only_gains_are_credited():
    tries = [
        attempt("c1", speedup=1.5, gained=True),
        attempt("c2", speedup=1.2),
        attempt("c3"),
        attempt("c4", "b", speedup=0.5),
    ]
    credits_ = update_credits({"a": TechniqueCredit(tries=2, gains=1, log_gain=0.5)}, tries)
    assert credits_["a"] == TechniqueCredit(tries=5, gains=2, log_gain=0.5 + math.log(1.5))
    assert credits_["b"] == TechniqueCredit(tries=1)


def test_credits_of_techniques_not_tried_stay_and_all_are_in_order():
    before = {"z": TechniqueCredit(tries=1), "m": TechniqueCredit(tries=3)}
    after = update_credits(before, [attempt("c", "k")])
    assert list(after) == ["k", "m", "z"]
    assert after["m"] == TechniqueCredit(tries=3)
    assert before == {"z": TechniqueCredit(tries=1), "m": TechniqueCredit(tries=3)}


def test_what_turns_out_wrong_is_an_attempt_that_failed_and_no_gain():
    tries = [attempt("c1", speedup=2.0, gained=True), attempt("c2", speedup=1.5, gained=True)]
    credits_ = update_credits({"b": TechniqueCredit(tries=1)}, tries)
    attempts, after = retract_attempts(
        tries, credits_, refused_evaluation("c1", Verdict.UNSTABLE, "x"), WRONG
    )
    first, second = attempts
    assert (first.verdict, first.error, first.speedup, first.gained) == (Verdict.UNSTABLE, WRONG, None, False)
    assert second == tries[1]
    assert (after["a"].tries, after["a"].gains) == (2, 1)
    assert after["a"].log_gain == pytest.approx(math.log(1.5))
    assert after["b"] == TechniqueCredit(tries=1)


def test_copies_of_what_is_wrong_are_wrong_and_had_no_gain_to_take_back():
    tries = [attempt("c1", speedup=2.0, gained=True), attempt("c2", "b", speedup=3.0, code="c1")]
    attempts, after = retract_attempts(
        tries, update_credits({}, tries), refused_evaluation("c1", Verdict.INCORRECT, "x"), WRONG
    )
    assert [one.speedup for one in attempts] == [None, None]
    assert (after["a"].gains, after["b"]) == (0, TechniqueCredit(tries=1))


def test_the_gain_of_a_forgotten_attempt_stays():
    before = {"a": TechniqueCredit(tries=3, gains=1, log_gain=0.7)}
    assert retract_attempts([], before, refused_evaluation("c1", Verdict.INCORRECT, "x"), WRONG) == (
        (),
        before,
    )


def test_tried_codes_leaves_out_attempts_without_a_kernel():
    assert tried_codes([attempt("c1", speedup=1.0), attempt("c2")]) == {digest_of(b"c1")}
