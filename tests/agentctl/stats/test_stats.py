"""`agentctl stats`, on homes whose every event is written out: what it prints, and what it does not."""

from __future__ import annotations

import pytest

from state.log import EventLog
from tests.agentctl.stats.history import BIG, SMALL, History, one_round

SECOND = "r2.b0.p0.k0.f0"


def second(told: History, latency_ms: float) -> None:
    told.round(2, BIG)
    told.plan(SECOND, "hoist")
    told.kernel(SECOND, latency_ms)
    told.close(2, {SECOND: latency_ms}, gained=[SECOND])


@pytest.fixture
def one(home) -> None:
    """A home with one run after its first round."""
    with EventLog.open(home) as log:
        one_round(log)


@pytest.fixture
def forked(home) -> None:
    """Two runs on a problem, of which one continues the other, and a third on another problem."""
    with EventLog.open(home) as log:
        parent = one_round(log)
        child = History(log, "child").fork("first")
        second(parent, 6.0)
        second(child, 4.0)
        one_round(log, "other", "silu")


ONE = """\
first: matmul (full) on trn2
  best        1.50x, predicted
  kernels     3 proposed, 1 attempt gave no kernel
  valid       2 of 3 judged (66.7 %)
  kept        1, 1 improvement among them
  repairs     1 of 1 succeeded (100.0 %), in 1 round
  calls       12: 10 answered, 6 of these usable
  failed      1 server; 1 lost
  tokens      1000 in, 400 of them cached; 100 out; 500 more charged
  took        0:20 in all, 2.0 s in the median
  cost        $3.50
  each        $3.50 for a kept improvement

FAST@P          1  1.2  1.5
3 attempts  66.7%  33.3%  0.0%

MODEL    KERNELS  VALID      %  KEPT  GAINS  CALLS   COST
x/big          3      2  66.7%     1      1      7  $1.50
y/small        0      0      -     0      0      5  $2.00

ROLE      CALLS  ANSWERED  USABLE       %  FAILED  LOST  MEDIAN   COST
executor      5         4       2   40.0%       0     1   2.0 s  $2.00
planner       6         5       3   50.0%       1     0   2.0 s  $1.25
repairer      1         1       1  100.0%       0     0   2.0 s  $0.25

TECHNIQUE  TRIED  VALID  KEPT  GAINS  MEDIAN
blocks         1      1     0      0   1.20x
hoist          2      1     1      1   1.50x
"""


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


@pytest.mark.usefixtures("one")
def test_one_run_is_told_in_full(ctl):
    called = ctl("stats", "--fast-at", "1,1.2,1.5")
    assert called.status == 0
    parts = called.out.split("\n\n")
    timeless = [part for part in parts if not part.startswith("TIME, OF ")]  # it went by while this ran
    assert len(timeless) == len(parts) - 1
    assert words("\n\n".join(timeless)) == words(ONE)
    assert max(map(len, called.out.splitlines())) <= 80
    tables = parts[1:]
    assert all(len({len(line) for line in table.splitlines()}) == 1 for table in tables)


@pytest.mark.usefixtures("one")
def test_the_json_has_the_same_figures(ctl):
    found = ctl("stats", "--json", "first").json
    (run,) = found["runs"]
    assert (run["run"], run["best_speedup"], run["predicted"]) == ("first", 1.5, True)
    assert [(one["p"], one["count"], one["of"]) for one in run["fast"]] == [
        (1.0, 2, 3), (1.01, 2, 3), (1.05, 2, 3), (1.1, 2, 3), (1.2, 1, 3), (1.4, 1, 3),
    ]  # fmt: skip
    assert run["calls"]["failed"] == {"server": 1}
    assert (run["cost_usd"], run["cost_per_improvement_usd"]) == (3.5, 3.5)
    shared = run.keys() & found["all"].keys()
    assert {name: run[name] for name in shared} == {name: found["all"][name] for name in shared}


@pytest.mark.usefixtures("forked")
def test_several_runs_have_a_line_each_and_what_they_share_counts_once(ctl):
    """The fork and its parent have 4 dollars each, of which 3.5 are the same."""
    found = ctl("stats", "--json").json
    each = {run["run"]: (run["best_speedup"], run["cost_usd"], run["calls"]["made"]) for run in found["runs"]}
    assert each == {"first": (2.0, 4.0, 14), "child": (3.0, 4.0, 14), "other": (1.5, 3.5, 12)}
    all_ = found["all"]
    assert (all_["cost_usd"], all_["calls"]["made"]) == (8.0, 28)
    assert (all_["kernels"]["proposed"], all_["kernels"]["improvements"]) == (8, 4)
    assert all_["cost_per_improvement_usd"] == 2.0
    assert all_["geomean_speedup"] == pytest.approx((3.0 * 1.5) ** 0.5)
    assert all_["fast"][-1]["count"] == 4  # of 1.5, 2, 3, and of the other run 1.5
    assert all_["fast"][-1]["of"] == 8
    text = ctl("stats").out
    assert words(text)[:4] == [
        ["RUN", "SPEEDUP", "FAST", "VALID", "KEPT", "GAINS", "CALLS", "COST", "EACH"],
        ["first", "2.00x", "75.0%", "75.0%", "2", "2", "14", "$4.00", "$2.00"],
        ["child", "3.00x", "75.0%", "75.0%", "2", "2", "14", "$4.00", "$2.00"],
        ["other", "1.50x", "66.7%", "66.7%", "1", "1", "12", "$3.50", "$3.50"],
    ]
    assert "all 3 runs, with what they share counted once" in text
    assert "latencies are predicted" in text
    fast = [line for line in words(text) if line[1:2] in (["attempts"], ["problems"])]
    assert fast == [
        ["8", "attempts", *["75.0%"] * 4, "50.0%", "50.0%"],
        ["2", "problems", *["100.0%"] * 6],
    ]


@pytest.mark.usefixtures("forked")
def test_a_run_of_several_rounds_has_a_line_for_each(ctl):
    text = ctl("stats", "child").out
    fast = [line for line in words(text) if line[1:3] == ["of", "round"]]
    assert fast == [
        ["3", "of", "round", "1", *["66.7%"] * 4, "33.3%", "33.3%"],
        ["1", "of", "round", "2", *["100.0%"] * 6],
    ]


@pytest.mark.usefixtures("forked")
def test_no_line_of_several_runs_is_wider_than_a_terminal(ctl):
    text = ctl("stats").out
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.usefixtures("forked")
def test_runs_are_chosen_by_name_each_once_the_oldest_first(ctl):
    found = ctl("stats", "--json", "other", "child", "other").json
    assert [run["run"] for run in found["runs"]] == ["child", "other"]
    assert found["all"]["cost_usd"] == 7.5


def test_a_cost_is_unknown_where_a_price_is(ctl, home):
    with EventLog.open(home) as log:
        told = History(log, "first")
        told.prices = {SMALL: None}
        told.begin()
        told.round(1, BIG, SMALL)
        for slot, model in enumerate((BIG, SMALL)):
            told.plan(f"r1.b{slot}.p0.k0.f0", "hoist", model=model)
            told.kernel(f"r1.b{slot}.p0.k0.f0", 8.0 + slot, model=model)
        told.close(1, {"r1.b0.p0.k0.f0": 8.0}, gained=["r1.b0.p0.k0.f0"])
    (run,) = ctl("stats", "--json").json["runs"]
    assert (run["cost_usd"], run["cost_per_improvement_usd"]) == (None, None)
    assert (run["priced_usd"], run["unpriced"]) == (0.5, 2)
    text = ctl("stats").out
    assert "cost        unknown; 2 at no known price, others $0.50" in text
    assert "each        unknown for a kept improvement: a price is unknown" in text


def test_a_run_without_models_costs_nothing(ctl, finished):
    text = ctl("stats").out
    assert "cost        $0.00" in text
    assert "calls  " not in text
    assert "ROLE" not in text
    (run,) = ctl("stats", "--json", finished).json["runs"]
    (model,) = run["models"]
    assert model["model"] == "scripted"
    assert run["kernels"]["proposed"] == model["proposed"] > 0


def test_statistics_can_be_read_while_a_run_has_nothing_yet(ctl, home):
    with EventLog.open(home) as log:
        History(log, "first").begin(correct=False)
    called = ctl("stats", "first")
    assert called.status == 0
    assert "best        -" in called.out
    assert "valid       0 of 0 judged (-)" in called.out
    assert "each        - for a kept improvement: there is none" in called.out


@pytest.mark.usefixtures("one")
@pytest.mark.parametrize("fast_at", ["", "a", "1,,2", "0", "-1", "inf", "nan", "1;2"])
def test_thresholds_that_are_no_numbers_are_refused(ctl, fast_at):
    called = ctl("stats", "--fast-at", fast_at)
    assert called.status == 2
    assert "--fast-at" in called.err


def test_a_pre_filter_s_hits_are_told_of_each_run(ctl, home):
    predicted = {"0": 5.0, "1": 6.0, "2": 7.0, "3": 8.0}  # of kernels of 9, 11, 10 and 12 ms
    times = {"0": 9.0, "1": 11.0, "2": 10.0, "3": 12.0}
    with EventLog.open(home) as log:
        told = History(log, "first").begin()
        told.round(1, BIG)
        for place, predicted_ms in predicted.items():
            candidate = f"r1.b0.p{place}.k0.f0"
            told.plan(candidate, "hoist")
            told.kernel(candidate, times[place], predicted_ms=predicted_ms)
        told.plan("r1.b0.p4.k0.f0", "blocks")
        told.kernel("r1.b0.p4.k0.f0", None, predicted_ms=20.0)
        one_round(log, "other", "silu")
    expected = "held back 1 kernel; of its better half 50.0 % were in the better half of the 4 timed, by a"
    assert f"  pre-filter  {expected} simulator too\n" in ctl("stats", "first").out
    first, other = ctl("stats", "--json").json["runs"]
    assert first["prefilter"] == {"held_back": 1, "timed": 4, "hit_percent": 50.0, "predicted": True}
    assert other["prefilter"] is None
    assert "pre-filter" not in ctl("stats", "other").out


@pytest.mark.usefixtures("one")
def test_an_unknown_run_is_refused_and_the_nearest_named(ctl):
    called = ctl("stats", "frist")
    assert called.status == 3
    assert "did you mean first?" in called.err


def test_where_nothing_was_recorded_there_is_nothing_to_count(ctl):
    assert ctl("stats").status == 3


@pytest.mark.usefixtures("one")
def test_the_log_is_left_as_it_was(ctl, home):
    def content() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in home.iterdir() if path.suffix == ".db"}

    before = content()
    assert ctl("stats").status == 0
    assert content() == before


def test_the_definition_and_its_source_are_in_the_help(ctl):
    told = " ".join(ctl("stats", "--help").out.split())
    assert "more than p times as fast as the one that the run started from" in told
    assert "AccelOpt" in told
    assert "KernelBench" in told
