"""`agentctl` on forks and histories: fork, resume RUN@SEQ, lineage, replay, rescore, set and approve."""

from __future__ import annotations

import re
import shutil

import pytest

from agentctl.command_answers import queued_runs, wait_for_answer
from agentctl.run_summary import summary_text
from agentctl.run_tracker import RunTracker
from agentctl.verbs import rescore
from daemon import exits
from daemon.command_models import Fork, run_id
from daemon.home_paths import waiting_commands
from daemon.inbox import put_command
from state.events import KernelKept
from state.log import EventLog
from state.model import Benchmark, LatencyBounds
from state.reader import LogReader
from state.verify import verify_log
from tests.support import fakes

BOUNDS = LatencyBounds(plain_ms=0.1, tight_ms=0.5)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    home = tmp_path_factory.mktemp("finished") / "home"
    run = fakes.submit_run(home)
    fakes.finish_runs(home, run)
    return home, run


@pytest.fixture
def finished(home, template) -> str:
    shutil.copytree(template[0], home)
    return template[1]


@pytest.fixture
def at_once(monkeypatch):
    """Nobody owns the home, and nobody waits for that to change."""
    monkeypatch.setattr("agentctl.command_answers.QUEUED_AFTER_SECONDS", 0.0)


def forked(home, run: str, **how) -> str:
    child = run_id(put_command(home, Fork(run=run, **how)), "silu")
    fakes.finish_runs(home, child)
    return child


# --- fork and resume -------------------------------------------------------------------------------


def test_without_an_owner_a_fork_is_queued_and_can_be_taken_up(ctl, home, finished, at_once):
    called = ctl("fork", f"{finished}@20", "--set", "search.plans=1", "--json")
    assert called.status == exits.OK
    child = called.json["run"]
    assert [run for run, _ in queued_runs(home)] == [child]
    assert ctl("resume", child).status == exits.FAILURE, "it finds nothing better"
    assert ctl("status", child, "--json").json["runs"][0]["parent"] == finished


def test_a_fork_is_answered_by_the_owner(ctl, home, finished, monkeypatch):
    wait = fakes.take_commands
    monkeypatch.setattr("agentctl.verbs.fork.wait_for_answer", lambda home, sent: _owned(home, sent, wait))
    called = ctl("fork", f"{finished}@20", "--set", "target=trn1")
    assert called.status == exits.OK
    assert f"from {finished}@20" in called.out
    assert "judged anew first" in called.out
    assert "follow it with: " in called.out


def _owned(home, sent, take_commands):
    take_commands(home)
    return wait_for_answer(home, sent)


def test_resume_at_an_event_rewinds_by_forking(ctl, home, finished):
    with LogReader.open(home) as reader:
        before = reader.read(stream=finished, limit=10_000)
    called = ctl("resume", f"{finished}@25", "--set", "search.rounds=3")
    assert called.status == exits.OK, called.err
    with LogReader.open(home) as reader:
        assert reader.read(stream=finished, limit=10_000) == before
        child, parent = reader.run_summaries()
    assert (child["parent"], child["parent_seq"], parent["run"]) == (finished, 25, finished)
    lines = called.out.splitlines()
    assert lines[0] == f"run {child['run']} continues {finished} from its event 25"
    assert lines[1].startswith(f"run {child['run']}: silu (reduced) on trn2, seed 25, at most 2 rounds; ")
    assert lines[2].startswith("  so far: 1 round, in all ")
    assert "round 1 of" not in called.out
    assert "initial kernel:" not in called.out
    assert re.search(r"3 rounds \(1 before the fork\), \d+:\d\d since it began", called.out)
    assert verify_log(home).is_ok


def test_a_report_goes_by_what_was_judged_since_another_target(home, finished):
    child = forked(home, finished, settings={"target": "trn1"})
    tracker = RunTracker(child)
    with LogReader.open(home) as reader:
        items = reader.read(stream=child, limit=10_000)
    for item in items:
        tracker.add(item)
    own = [item for item in items if item.stream == child]
    kept = [item.event.candidate.id for item in own if isinstance(item.event, KernelKept)]
    assert list(tracker.kept) == kept
    assert tracker.started_us == own[0].ts_us
    best = tracker.state.best
    tracker.kept = {best.id: best}
    assert "The best is a kernel of before the fork, judged anew." in summary_text(tracker, None)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("fork", "RUN@9999"), exits.NOT_THERE, "has no event 9999 (its last is "),
        (("fork", "RUNx@3"), exits.NOT_THERE, "did you mean RUN?"),
        (("fork", "RUN@3", "--set", "search.beem=3"), exits.USAGE, "did you mean run.search.beam?"),
        (("fork", "RUN@3", "--set", "search.beam"), exits.USAGE, "expected KEY=VALUE"),
        (("fork", "RUN@three"), exits.USAGE, "expected RUN@SEQ"),
        (("fork", "RUN@0"), exits.USAGE, "expected RUN@SEQ"),
        (("fork", "RUN@3", "--set", "problem=sliu"), exits.USAGE, "silu"),
        (("resume", "RUN@9999"), exits.NOT_THERE, "has no event 9999"),
        (("resume", "RUN", "--set", "search.beam=3"), exits.USAGE, "agentctl set"),
        (("replay", "RUN@9999"), exits.NOT_THERE, "its last is"),
        (("replay", "RUNx"), exits.NOT_THERE, "did you mean RUN?"),
        (("replay", "RUN@3", "--to", "4"), exits.USAGE, "not both"),
        (("lineage", "RUNx"), exits.NOT_THERE, "did you mean RUN?"),
        (("rescore", "RUNx"), exits.NOT_THERE, "did you mean RUN?"),
        (("rescore", "RUN", "--objective", "latncy"), exits.USAGE, "did you mean latency?"),
        (("rescore", "RUN", "--objective", "p101"), exits.USAGE, "unknown objective 'p101'"),
        (
            ("rescore", "RUN", "--objective", "counter:dma_active"),
            exits.USAGE,
            "counter:dma_active_time_percent",
        ),
        (("set", "RUN", "search.beam=3"), exits.FAILURE, "is completed"),
        (("set", "RUNx", "search.beam=3"), exits.NOT_THERE, "did you mean RUN?"),
        (("approve", "RUN"), exits.FAILURE, "is completed"),
        (("pause", "RUNx"), exits.NOT_THERE, "did you mean RUN?"),
    ],
)
def test_bad_input_is_named_with_the_nearest_and_has_its_status(ctl, home, finished, words, status, said):  # noqa: PLR0917
    called = ctl(*(word.replace("RUN", finished) for word in words))
    assert called.status == status, called.err
    assert said.replace("RUN?", f"{finished}?") in called.err
    assert waiting_commands(home) == []


# --- set and approve -------------------------------------------------------------------------------


def test_settings_are_checked_before_they_are_queued(ctl, home, at_once):
    run = fakes.submit_run(home)
    fakes.take_commands(home)
    assert ctl("set", run, "search.beam=0").status == exits.USAGE
    assert ctl("set", run, "run.target=trn1").status == exits.USAGE
    assert waiting_commands(home) == []
    for settings in (("search.beam=3", "search.beam=4"), ("search.beam=3", "run.search.beam=4")):
        twice = ctl("set", run, *settings)
        assert (twice.status, waiting_commands(home)) == (exits.USAGE, [])
        assert "search.beam has a value already" in twice.err
    called = ctl("set", run, "search.beam=3", "search.plans=1")
    assert (called.status, len(waiting_commands(home))) == (exits.OK, 1)
    fakes.take_commands(home)
    with EventLog.open(home) as log:
        assert log.run_state(run).pending_config.search.beam == 3


def test_what_waits_to_be_taken_up_can_be_steered(ctl, home, at_once):
    """The submit is still a file; what concerns its run is queued behind it."""
    run = fakes.submit_run(home)
    assert ctl("pause", run).status == exits.OK
    assert ctl("set", run, "search.beam=3").status == exits.OK
    fakes.take_commands(home)
    with LogReader.open(home) as reader:
        assert reader.run_state(run).status == "paused"
        assert reader.run_state(run).pending_config.search.beam == 3


def test_status_says_that_a_run_waits_for_a_person(ctl, home):
    config = fakes.CONFIG.model_copy(update={"approval": ("before_round",)})
    run = fakes.submit_run(home, config)
    other = fakes.submit_run(home)
    fakes.finish_runs(home, other)
    (row,) = ctl("status", run, "--json").json["runs"]
    assert (row["state"], row["reason"]) == ("paused", "needs approval: before_round 1")
    assert f"{run} needs approval: before_round 1; let it go on with: " in fakes.join_wrapped_lines(
        ctl("status").out
    )
    called = ctl("tail", "--run", run)
    assert "needs approval: before_round 1" in called.out


# --- lineage, replay, rescore ----------------------------------------------------------------------


def test_lineage_draws_the_tree_with_what_changed(ctl, home, finished):
    child = forked(home, finished, seq=25, settings={"search.rounds": 3})
    grandchild = forked(home, child, seq=30)
    other = forked(home, finished, seq=40, settings={"target": "trn1"})
    lines = ctl("lineage").out.splitlines()
    assert lines[0].startswith(f"{finished}  completed  round 2/2  best ")
    assert lines[1].startswith(f"├─ {child} from @25  completed  round 3/3")
    assert lines[1].endswith("run.search.rounds 2 -> 3")
    assert lines[2].startswith(f"│  └─ {grandchild} from @30")
    assert lines[3].startswith(f"└─ {other} from @40  completed")
    assert "run.target trn2 -> trn1" in lines[3]
    (tree,) = ctl("lineage", grandchild, "--json").json["runs"]
    assert tree["forks"][0]["forks"][0]["run"] == grandchild


def test_lineage_of_an_empty_home_says_so(ctl, home):
    EventLog.open(home).close()
    assert ctl("lineage").out == "no runs\n"


def test_replay_shows_a_run_as_it_stood(ctl, home, finished):
    whole = ctl("replay", finished, "--json").json
    status = ctl("status", finished, "--json").json["runs"][0]
    assert whole["state_hash"] == status["state_hash"]
    assert whole["state_hashes"] > 0
    early = ctl("replay", f"{finished}@12", "--json").json
    assert (early["run_seq"], early["events"]) == (12, 12)
    assert early["state_hash"] != whole["state_hash"]
    text = ctl("replay", finished, "--to", 12).out
    assert f"{finished}@12: 12 events folded" in text
    assert "state hash" in text


@pytest.mark.parametrize("number", ["1_0", "+1", "\uff11\uff12", " 1", "0", "9" * 30])
def test_the_number_of_an_event_is_digits(ctl, finished, number):
    for words in (("replay", finished, "--to", number), ("replay", f"{finished}@{number}")):
        assert ctl(*words).status == exits.USAGE
    wanted = exits.NOT_THERE if number == "0" else exits.USAGE
    assert ctl("show", f"{finished}@{number}").status == wanted


def test_rescore_ranks_by_another_number_of_the_same_verdicts(ctl, home, finished):
    with LogReader.open(home) as reader:
        before = reader.head
        correct = [row for row in reader.candidate_rows(finished) if row["duplicate_of"] is None]
    found = ctl("rescore", finished, "--objective", "percent_of_peak", "--json").json
    assert [row["candidate"] for row in found["kernels"]] == [row["candidate"] for row in correct]
    values = [row["value"] for row in found["kernels"]]
    assert values == sorted(values, reverse=True)
    assert [row["rank_by_latency"] for row in found["kernels"]] == list(range(1, len(values) + 1))
    text = ctl("rescore", finished, "--objective", "p50", "-n", 1).out
    assert "latencies predicted" in text
    assert len(text.splitlines()) == 2
    with LogReader.open(home) as reader:
        assert reader.head == before


def kernel(
    name: str, latency: float, draws: tuple[float, ...] = (), **counters: float
) -> rescore.ScoredKernel:
    timed = Benchmark(
        latency_ms=latency, lo_ms=latency / 2, hi_ms=3 / latency, predicted=True, samples=1, draws_ms=draws
    )
    return rescore.ScoredKernel(f"r1.b0.p{name}.k0.f0", name, timed, counters)


@pytest.mark.parametrize(
    ("objective", "order"),
    [
        ("latency", "012"),
        ("hi", "210"),
        ("p0", "210"),
        ("p100", "012"),
        ("p50", "021"),
        ("counter:spills", "201"),
        ("percent_of_tight_bound", "012"),
    ],
)
def test_each_objective_orders_kernels_its_way(objective, order):
    kernels = [
        kernel("0", 1.0, (0.9, 1.0, 1.1), spills=5),
        kernel("1", 1.5, (0.8, 1.6, 1.9), spills=5),
        kernel("2", 2.0, (0.7, 1.2, 2.9), spills=0),
    ]
    chosen = rescore.parse_objective(objective, BOUNDS, kernels)
    assert "".join(one.title for one, _ in rescore.rank_kernels(kernels, chosen)) == order


@pytest.mark.parametrize(
    ("name", "spelt"),
    [
        ("dma_active_time", "0.5 s"),
        ("dma_active_time_percent", "0.5 %"),
        ("hbm_read_bytes", "0.5 B"),
        ("neuroncore_cycle_count", "0.5 cycles"),
        ("dma_transfer_count", "0.5"),
    ],
)
def test_a_counter_is_told_with_its_unit(name, spelt):
    chosen = rescore.parse_objective(f"counter:{name}", BOUNDS, [kernel("0", 1.0, **{name: 0.5})])
    assert chosen.spell(0.5) == spelt


def test_a_kernel_without_the_number_is_not_ranked():
    kernels = [kernel("0", 1.0), kernel("1", 2.0, (1.0, 2.0))]
    chosen = rescore.parse_objective("p90", BOUNDS, kernels)
    assert [(one.title, value) for one, value in rescore.rank_kernels(kernels, chosen)] == [
        ("1", pytest.approx(1.9))
    ]
