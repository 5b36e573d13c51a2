"""What a report says of hosts and of the pre-filter."""

from __future__ import annotations

import pytest

from agentctl.views.host_usage import HostUsage, hit_percent
from state.events import EvaluationCompleted, RunForked
from state.model import PREFILTERED, ErrorInfo, EvaluationHost, Rebase, RunConfig
from state.records import RecordedEvent
from tests.agentctl.stats.history import BOUNDS, problem
from tests.support.world import correct_evaluation


def judged(name: str, *, predicted_ms: float | None = None, ms: float | None = None, host: str | None = None):
    found = correct_evaluation(name, ms or 1.0, noise=0.01)
    if ms is None:
        error = ErrorInfo(code=PREFILTERED, message="not run on a host")
        found = found.model_copy(update={"benchmark": None, "error": error})
    where = None if host is None else EvaluationHost(host=host, device="trn2")
    return EvaluationCompleted(
        key="r1.b0.p0.k0.f0.evaluator",
        evaluation=found,
        cache_key="c" * 64,
        predicted_ms=predicted_ms,
        where=where,
    )


def test_hosts_are_counted_and_kernels_judged_here_are_not():
    found = HostUsage()
    for host in ("a", "b", "a", None):
        found.add_verdict(judged("x", ms=1.0, host=host))
    assert (dict(found.hosts), dict(found.devices), found.prefilter_result) == (
        {"a": 2, "b": 1},
        {"trn2": 3},
        None,
    )


def test_times_from_before_a_fork_that_judges_by_something_else_do_not_compare():
    found = HostUsage()
    taken = [judged(f"k{number}", predicted_ms=number, ms=number) for number in range(1, 5)]
    rebase = Rebase(config=RunConfig(problem="toy"), problem=problem("toy"), bounds=BOUNDS, toolchain="other")
    plain = RunForked(parent="a", parent_seq=1, parent_hash="0" * 64)
    for event in (*taken, plain):
        found.add_event(RecordedEvent(1, "run", 1, 0, event, None, "", None))
    assert found.prefilter_result is not None
    assert found.prefilter_result.timed == 4
    other = plain.model_copy(update={"rebase": rebase})
    found.add_event(RecordedEvent(1, "run", 1, 0, other, None, "", None))
    assert found.prefilter_result is None


def test_the_hit_rate_is_of_the_better_half_by_prediction():
    assert hit_percent([(1, 1), (2, 2), (3, 3), (4, 4)]) == 100.0
    assert hit_percent([(1, 4), (2, 3), (3, 2), (4, 1)]) == 0.0
    assert hit_percent([(1, 1), (2, 4), (3, 2), (4, 3)]) == 50.0


@pytest.mark.parametrize(("timed_", "rate"), [(3, None), (4, 100.0)])
def test_of_few_timed_kernels_no_rate_is_told(timed_, rate):
    found = HostUsage()
    found.add_verdict(judged("held", predicted_ms=9.0))
    for number in range(1, timed_ + 1):
        found.add_verdict(judged(f"k{number}", predicted_ms=number, ms=number, host="a"))
    assert found.prefilter_result is not None
    assert (found.prefilter_result.held_back, found.prefilter_result.timed) == (1, timed_)
    assert (found.prefilter_result.hit_percent, found.prefilter_result.predicted) == (rate, False)
