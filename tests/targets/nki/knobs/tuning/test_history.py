"""What attempts tell of points."""

from __future__ import annotations

from state.model import Attempt, ErrorInfo, Verdict
from targets.nki.knobs.tuning.history import commonest_failure, judged_points, origin_point
from tests.support.tuning_jobs import kernel

CODE = "0" * 64


def attempt(name: str, parent: str, speedup: float | None, site: str = "", *, error: str = "") -> Attempt:
    return Attempt(
        candidate=name,
        parent=parent,
        technique="knob_joint" if site else "engine",
        site=site,
        code=CODE,
        verdict=Verdict.INCORRECT if error else Verdict.CORRECT,
        error=ErrorInfo(code=error, message="why") if error else None,
        speedup=speedup,
        round=1,
    )


LINE = (
    attempt("a", "initial", 2.0, "point a"),
    attempt("b", "a", 1.25, "point b"),
    attempt("c", "a", 2.0),
    attempt("d", "c", None, "point d", error="wrong_result"),
    attempt("x", "elsewhere", 3.0, "point x"),
)


def test_latencies_follow_up_and_down_the_line_of_descent() -> None:
    found = {one.text: one.ms for one in judged_points(LINE, kernel("b", 4.0))}
    assert found == {"point a": 5.0, "point b": 4.0, "point d": None, "point x": None}
    found = {one.text: one.ms for one in judged_points(LINE, kernel("initial", 10.0))}
    assert (found["point a"], found["point b"]) == (5.0, 4.0)


def test_what_was_refused_says_for_what() -> None:
    assert {one.text: one.failure for one in judged_points(LINE, kernel("b", 4.0))}[
        "point d"
    ] == "wrong_result"
    assert commonest_failure(LINE) == "wrong_result (1 of 4 attempts)"
    assert commonest_failure(LINE[:3]) == ""


def test_an_edited_kernel_comes_from_the_point_that_it_was_made_from() -> None:
    assert origin_point(LINE, kernel("b", 4.0)) == "point b"
    assert origin_point(LINE, kernel("c", 4.0)) == "point a"
    assert origin_point(LINE, kernel("initial", 4.0)) is None
    assert origin_point((), kernel("c", 4.0)) is None
