"""`agentctl bench search`: what a run's events come to, what is kept and added up, and one small run."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentctl.bench import lessons, results, runs, tables
from agentctl.bench.runs import ARMS, BenchJob, JobBudget
from agentctl.verbs.bench import search
from daemon import exits
from nki_sim.timing.residuals import load_residuals
from seeds import load_problem
from state.events import SequenceLearnt
from state.log import EventLog
from state.model import SYSTEM_STREAM, SearchConfig, digest_of
from state.reader import LogReader
from state.records import NewEvent
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from targets.registry import load_target
from tests.support.learnt_sequences import SOURCE, learnt_sequence


def judged(key: str, latency_ms: float | None, code: str = "") -> dict[str, Any]:
    verdict = "incorrect" if latency_ms is None else "correct"
    benchmark = None if latency_ms is None else {"latency_ms": latency_ms}
    evaluation = {"verdict": verdict, "benchmark": benchmark, "code": code or key}
    return {"type": "EvaluationCompleted", "event": {"key": key, "evaluation": evaluation}}


def kept(name: str, parent: str | None) -> dict[str, Any]:
    return {"type": "KernelKept", "event": {"candidate": {"id": name, "parent": parent}}}


def planned(key: str, technique: str, *steps: str) -> dict[str, Any]:
    plan = {"technique": technique, "steps": [{"technique": step} for step in steps]}
    return {"type": "PlanProposed", "event": {"key": key, "plan": plan}}


FIRST, SECOND, THIRD = "r0.b0.p0.k0.f0", "r1.b0.p1.k0.f0", "r2.b0.p0.k0.f0"


def test_kernels_are_counted_in_the_order_of_their_places():
    events = [
        judged("r0.b0.p0.k0.f0.evaluator", 10.0),
        judged("r1.b0.p2.k0.f0.evaluator", 6.0),
        judged("r1.b0.p0.k0.f0.evaluator", 8.0),
        judged("r1.b0.p1.k0.f0.evaluator", None),
        judged("r1.b0.p0.k0.f0.verifier", 8.0),
        judged("r2.b0.p0.k0.f0.evaluator", 7.0),
    ]
    assert runs.latency_curve(events) == [(1, 10.0), (2, 8.0), (4, 6.0)]


def test_who_was_refuted_later_was_never_fast():
    events = [
        judged("r0.b0.p0.k0.f0.evaluator", 10.0),
        judged("r1.b0.p0.k0.f0.evaluator", 1.0, code="wrong"),
        judged("r1.b0.p0.k0.f0.verifier", None, code="wrong"),
        judged("r1.b0.p1.k0.f0.evaluator", 9.0),
    ]
    assert runs.latency_curve(events) == [(1, 10.0), (3, 9.0)]


def test_the_rewrites_of_a_line_of_descent_are_told_in_order():
    events = [
        planned("r1.b0.p1.k0.f0.planner", "hoist", "hoist", "block"),
        planned("r1.b0.p0.k0.f0.planner", "fuse"),
        planned("r2.b0.p0.k0.f0.planner", "engine"),
        kept(FIRST, None),
        kept(SECOND, FIRST),
        kept(THIRD, SECOND),
    ]
    assert runs.winning_techniques(events, THIRD) == ["hoist", "block", "engine"]
    assert runs.winning_techniques(events, FIRST) == []


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_is_settings_of_a_run(arm: str):
    made = runs.arm_settings(arm, JobBudget(candidates=100, minutes=1, whole=True))
    search_ = SearchConfig.model_validate(made)
    assert arm.startswith(search_.strategy)
    assert (search_.lookahead_predictions == 0) == arm.endswith("-blind")
    assert search_.plateau_rounds == search_.rounds > 1
    assert "plateau_rounds" not in runs.arm_settings(arm, JobBudget(candidates=100, minutes=1))


def row(problem: str = "p", arm: str = "beam", size: str = "full", **changes: Any) -> dict[str, Any]:
    found = {
        "reason": "rounds", "initial_ms": 4.0, "initial_lo_ms": 3.0, "initial_hi_ms": 5.0, "best_ms": 2.0,
        "best_lo_ms": 1.5, "best_hi_ms": 2.5, "best_level": "whole", "speedup": 2.0,
        "best_wins_percent": 90.0,
        "plain_bound_ms": 1.0, "tight_bound_ms": 1.5, "percent_of_peak": 50.0, "percent_of_tight_bound": 75.0,
        "evaluated": 79, "looked_at": 300, "decision_digest": "0", "seconds": 12.0, "in_time": True,
        "techniques": ["engine", "engine", "hoist"], "curve": [(1, 4.0), (9, 2.0)],
    }  # fmt: skip
    return results.result_row(BenchJob(problem, size, "trn2", 0, arm), found | changes)


def _found_fields() -> dict[str, Any]:
    which = ("problem", "size", "target", "seed", "arm", "starts", "own_kernel")
    return {name: value for name, value in row().items() if name not in which}


def test_means_are_of_the_beam_at_full_size():
    rows = [
        row("p"),
        row("q", percent_of_peak=32.0),
        row("p", arm="random", percent_of_peak=1.0),
        row("p", size="reduced", percent_of_peak=1.0),
    ]
    found = results.summarize_results(rows)
    assert found["trn2_percent_of_peak"] == pytest.approx(40.0)
    assert found["trn2_percent_of_tight_bound"] == pytest.approx(75.0)
    assert found["trn2_percent_of_model_bound"] == found["trn2_percent_of_tight_bound"]
    assert found["trn2_initial_percent_of_peak"] == pytest.approx(25.0)
    assert found["trn2_problems"] == 2
    assert found["trn1_percent_of_peak"] is None


def test_problems_that_are_no_built_in_ones_are_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[BenchJob] = []
    monkeypatch.setattr(runs, "run_job", lambda job, budget, offered: asked.append(job) or _found_fields())
    folder = load_problem("silu")
    (mine := tmp_path / "mine" / "silu").mkdir(parents=True)
    for name, data in folder.files.items():
        (mine / name).write_bytes(data)
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out.json"
    done = CliRunner().invoke(search, ("--problems", "mine/silu,silu", "--out", str(out)))
    assert done.exit_code == 0, done.output
    assert [one.problem for one in asked] == [str(mine), "silu"]  # absolute: runs are started elsewhere
    made = results.read_results(out)
    assert [one["problem"] for one in made.values()] == ["mine/silu", "silu"]
    assert json.loads(out.read_text())["overall"]["trn2_problems"] == 1


def test_techniques_count_once_a_winner_and_those_never_used_are_named():
    counts = results.count_rewrites([row("p"), row("q", techniques=["hoist"]), row("q", arm="random")])
    assert (counts["hoist"], counts["engine"]) == (2, 1)
    assert set(counts) == set(TRANSFORMS) | set(load_target("x86").rewrites())
    assert 0 in counts.values()


def test_the_file_is_read_back_and_holds_what_it_adds_up_to(tmp_path: Path):
    out = tmp_path / "out.json"
    made = {"a": row("p"), "b": row("p", arm="random", curve=[(1, 4.0), (3, 2.0)])}
    results.write_results(out, made)
    assert list(results.read_results(out)) == ["a", "b"]
    kept_ = json.loads(out.read_text())
    assert kept_["predicted"] is True
    assert kept_["overall"]["trn2_percent_of_peak"] == pytest.approx(50.0)
    assert [one["arm"] for one in kept_["arms"]] == ["beam", "random"]
    assert [one.name for one in tmp_path.iterdir()] == ["out.json"]


def test_errors_are_those_on_families_that_the_model_was_not_fitted_to():
    found = results.describe_errors({"trn2", "trn3", "x86"})
    assert found["trn3"] is found["x86"] is None
    errors = [one.log_error for one in load_residuals().rows if one.traits.target == "trn2"]
    assert found["trn2"] is not None
    assert found["trn2"]["kernels"] == len(errors) > 50
    assert found["trn2"]["worst"] == pytest.approx(100 * max(abs(math.exp(-one) - 1) for one in errors))
    assert 0 < found["trn2"]["median"] < found["trn2"]["worst"]


def test_the_tables_say_predicted_and_compare_arms():
    made = {"a": row("p"), "b": row("p", arm="random-blind", in_time=False), "c": row("q", speedup=1.5)}
    made["d"] = row("q", arm="random-blind")
    made["e"] = row("r", in_time=False, reason=None)
    text = "\n".join(tables.render_lines(made))
    assert text.startswith("Latencies are predicted")
    for words in (
        "full size, trn2",
        "(time up)",
        "(cut off before its audit)",
        "1.50x",
        "AccelOpt",
        "9 (9 to 9)",
        "random-blind",
        "2/2",
    ):
        assert words in text


def ask(*arguments: str) -> Any:
    return CliRunner().invoke(search, arguments, standalone_mode=False)


def test_what_the_file_holds_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = []

    def pretend(job: BenchJob, budget: JobBudget, offered: Any) -> dict[str, Any]:
        asked.append(job.key)
        if job.seed == 1:
            raise RuntimeError(f"{job.key}: lost")
        return row(job.problem)

    monkeypatch.setattr(runs, "run_job", pretend)
    flags = ("--problems", "silu", "--seeds", "0,1", "--out", str(tmp_path / "out.json"))
    first = ask(*flags)
    assert first.return_value == 1
    assert "silu full trn2 seed 1: lost" in first.stderr
    ask(*flags)
    assert asked == ["silu full trn2 seed 0", "silu full trn2 seed 1", "silu full trn2 seed 1"]


def test_who_reuses_is_offered_what_was_learnt_on_other_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: dict[str, list[str]] = {}

    def pretend(job: BenchJob, budget: JobBudget, offered: Any) -> dict[str, Any]:
        asked[job.key] = [one["of"] for one in offered]
        learnt = None if job.problem == "bmm" else {"of": f"{job.problem} {job.seed}"}
        return row(job.problem, curve=[(1, 4.0), (9, 2.0)], lesson=learnt) | {"arm": job.arm}

    monkeypatch.setattr(runs, "run_job", pretend)
    flags = ("--problems", "silu,matmul", "--donors", "matmul,bmm,silu,lora", "--seeds", "4,5")
    ask(*flags, "--strategies", "beam-reuse,beam", "--out", str(tmp_path / "out.json"))
    order = list(asked)
    assert {key.split()[0] for key in order if "reuse" not in key} == {"silu", "matmul", "bmm", "lora"}
    assert [key for key in order if "bmm" in key] == ["bmm full trn2 seed 4"], "one run for each donor"
    assert all("reuse" in key for key in order[-4:]), "after those that they learn from"
    for seed in (4, 5):
        assert asked[f"silu full trn2 seed {seed} beam-reuse"] == ["matmul 4", "lora 4"]
        assert asked[f"matmul full trn2 seed {seed} beam-reuse"] == ["silu 4", "lora 4"]
        assert asked[f"silu full trn2 seed {seed}"] == []


def test_other_kernels_of_problems_are_begun_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[BenchJob] = []

    def pretend(job: BenchJob, budget: JobBudget, offered: Any) -> dict[str, Any]:
        asked.append(job)
        return {name: value for name, value in row().items() if name not in {"problem", "own_kernel"}}

    monkeypatch.setattr(runs, "run_job", pretend)
    for name in ("silu-slow", "silu-odd", "bmm-slow"):
        (tmp_path / f"{name}.py").write_text("")
    out = tmp_path / "out.json"
    ask("--kernels", str(tmp_path), "--problems", "silu,lora", "--out", str(out))
    assert [(job.problem, job.name) for job in asked] == [("silu", "silu-odd"), ("silu", "silu-slow")]
    assert [job.kernel for job in asked] == [str(tmp_path / f"{job.name}.py") for job in asked]
    kept_ = json.loads(out.read_text())
    assert list(kept_["runs"]) == ["silu-odd full trn2 seed 0", "silu-slow full trn2 seed 0"]
    assert kept_["overall"]["trn2_percent_of_peak"] is None, "they are no problem's own kernels"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("silu.py", "silu.py is not called PROBLEM-WHAT.py"),
        ("sulu-slow.py", "'sulu' is unknown"),
        ("", "no kernels"),
    ],
)
def test_kernels_are_called_after_their_problem(tmp_path: Path, name: str, words: str):
    if name:
        (tmp_path / name).write_text("")
    assert words in str(ask("--kernels", str(tmp_path)).exception)


def test_only_who_reuses_may(tmp_path: Path):
    for arm in ARMS:
        assert (runs.arm_settings(arm, JobBudget(9, 1))["reuse"] == "true") == (arm == "beam-reuse")


def test_lessons_are_what_a_home_has_learnt_and_begin_another(tmp_path: Path):
    with EventLog.open(tmp_path / "first") as log:
        learnt = NewEvent(SYSTEM_STREAM, SequenceLearnt(sequence=learnt_sequence("taught")))
        log.append_now([learnt], blobs=[SOURCE])
    lesson = lessons.read_lesson(tmp_path / "first", "taught")
    assert lesson is not None
    assert lessons.read_lesson(tmp_path / "first", "another") is None
    lessons.store_lessons(tmp_path / "second", [json.loads(json.dumps(lesson))])
    with LogReader.open(tmp_path / "second") as reader:
        assert reader.system_state().sequences == (learnt_sequence("taught"),)
        assert reader.get_blob(digest_of(SOURCE)) == SOURCE
        assert reader.run_ids() == ()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--donors", "nothing"), "'nothing' is unknown"),
        (("--strategies", "beem"), "'beem' is unknown; there are beam"),
        (("--problems", "nothing"), "unknown problem 'nothing'"),
        (("--seeds", "a"), "numbers with commas"),
        (("--candidates", "0"), "x>=1"),
        (("--arms", "--starts", "both"), "both: --arms compares searches from the kernel alone"),
        (("--kernels", ".", "--starts", "translation"), "no kernel of --kernels would be used"),
        (("--target", "x86", "--starts", "both"), "references are not translated for x86"),
    ],
)
def test_wrong_options_are_named(flags: tuple[str, ...], words: str):
    assert words in str(ask(*flags).exception)


@pytest.mark.slow
def test_a_run_is_one_of_agentctl():
    found = runs.run_job(
        BenchJob("silu", "reduced", "trn2", 0, "greedy-blind"), JobBudget(candidates=2, minutes=5)
    )
    assert found["curve"][0] == (1, found["initial_ms"])
    assert found["curve"][-1][1] == found["best_ms"] < found["initial_ms"]
    assert found["evaluated"] <= 7
    assert found["techniques"]
    assert (found["in_time"], found["looked_at"]) == (True, 0)


def _run_that_exits_with(status: int, monkeypatch, tmp_path: Path) -> bool:
    child = [sys.executable, "-c", f"import sys; print('why', file=sys.stderr); sys.exit({status})"]
    monkeypatch.setattr(runs, "_start_command", lambda _, errors: subprocess.Popen(child, stderr=errors))
    budget = JobBudget(candidates=2, minutes=5)
    return runs._run_to_end(BenchJob("silu", "reduced", "trn2", 0), str(tmp_path), budget)


@pytest.mark.parametrize(("starts", "key"), [("kernel", ""), ("both", " from both")])
def test_a_run_begins_with_what_is_asked(starts: str, key: str, monkeypatch, tmp_path):
    asked: list[Sequence[str]] = []

    def start(command: Sequence[str], errors: Any) -> Any:
        asked.append(command)
        return subprocess.Popen([sys.executable, "-c", ""], stderr=errors)

    monkeypatch.setattr(runs, "_start_command", start)
    job = BenchJob("silu", "reduced", "trn2", 0, starts=starts)
    assert runs._run_to_end(job, str(tmp_path), JobBudget(candidates=2, minutes=5))
    assert f"run.starts={starts}" in asked[0]
    assert job.key == f"silu reduced trn2 seed 0{key}"
    made = results.result_row(job, _found_fields())
    assert made["own_kernel"] == (starts == "kernel")
    assert tables.run_line(made).startswith(f"silu{key} ")


@pytest.mark.parametrize(("seconds", "ends"), [(1.0, True), (60.0, False)])
def test_a_run_gets_more_time_for_its_audit(seconds: float, ends: bool, monkeypatch, tmp_path):
    child = [sys.executable, "-c", f"import time; time.sleep({seconds})"]
    monkeypatch.setattr(runs, "_start_command", lambda _, errors: subprocess.Popen(child, stderr=errors))
    monkeypatch.setattr(runs, "AUDIT_SHARE", 10_000.0 if ends else 1.0)
    budget = JobBudget(candidates=2, minutes=0.001)
    assert runs._run_to_end(BenchJob("silu", "reduced", "trn2", 0), str(tmp_path), budget) is ends


def test_a_run_that_finds_nothing_faster_counts_as_one_that_ended(monkeypatch, tmp_path):
    assert _run_that_exits_with(exits.FAILURE, monkeypatch, tmp_path)


def test_a_run_that_does_not_begin_is_an_error(monkeypatch, tmp_path):
    with pytest.raises(RuntimeError, match="silu reduced trn2 seed 0: why"):
        _run_that_exits_with(exits.USAGE, monkeypatch, tmp_path)


@pytest.mark.parametrize(
    ("ended", "reason", "in_time"),
    [(True, "rounds", True), (True, "budget", False), (False, None, False)],
)
def test_a_run_that_its_cap_ended_was_not_in_time(
    monkeypatch, ended: bool, reason: str | None, in_time: bool
):
    status = {**dict.fromkeys(runs.KEPT_FIELDS), "id": "a", "best": "b", "best_ms": 1.0, "reason": reason}
    monkeypatch.setattr(runs, "_run_to_end", lambda *_: ended)
    monkeypatch.setattr(
        runs, "_run_agentctl", lambda verb, *_: json.dumps({"runs": [status]}) if verb == "status" else ""
    )
    monkeypatch.setattr(runs.lessons, "read_lesson", lambda *_: None)
    found = runs.run_job(BenchJob("silu", "reduced", "trn2", 0), JobBudget(candidates=2, minutes=5))
    assert (found["in_time"], found["reason"]) == (in_time, reason)
