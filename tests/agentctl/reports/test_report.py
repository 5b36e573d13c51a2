"""`agentctl report`: its forms by the file's ending, and commands in it that do again what the run did."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest

from agentctl.reports.reproduction import changed_settings
from agentctl.views import as_json
from remote.errors import InfrastructureError
from state.home import HomeLayout
from state.lock import HomeLock
from state.model import ErrorInfo, RunConfig, Verdict
from state.reader import LogReader
from tests.support import fakes
from tests.support.fakes import FAKE
from tests.support.simulated_logs import record, world_of


@pytest.mark.parametrize(
    ("name", "start"), [("r.html", "<!doctype html>"), ("r.md", "# silu"), ("r.json", "{")]
)
def test_the_ending_says_the_form(ctl, finished, tmp_path, name, start):
    called = ctl("report", finished, "-o", tmp_path / name, "--json")
    assert called.status == 0, called.err
    text = (tmp_path / name).read_text()
    assert text.startswith(start)
    assert called.json == {"run": finished, "output": str(tmp_path / name), "bytes": len(text.encode())}


def test_without_a_file_it_goes_to_stdout(ctl, finished):
    assert ctl("report", finished).out.startswith("# silu on trn2: ")
    told = ctl("report", finished, "--json").json
    assert told["run"]["id"] == finished
    assert set(told) == {
        "format", "run", "problem", "initial", "best", "path", "diff", "tried", "figures", "spending",
        "reproduction", "environment",
    }  # fmt: skip


def test_another_ending_or_place_is_refused_and_nothing_is_written(ctl, home, finished, tmp_path):
    called = ctl("report", finished, "-o", tmp_path / "r.pdf")
    assert called.status == 2
    assert ".html, .htm, .md, .json" in called.err
    assert not (tmp_path / "r.pdf").exists()
    assert ctl("report", finished, "-o", home / "events.db").status == 2
    assert ctl("report", finished, "-o", tmp_path / "none" / "r.md").status == 2
    assert ctl("report", "silu-none", "-o", tmp_path / "r.md").status == 3


def test_a_run_that_has_just_begun_can_be_reported_on(ctl, home, tmp_path):
    run = fakes.submit_run(home)
    fakes.take_commands(home)
    called = ctl("report", run, "-o", tmp_path / "r.html")
    assert called.status == 0, called.err
    assert "no correct kernel" in (tmp_path / "r.html").read_text()


def test_an_unfinished_run_of_a_home_without_owner_is_interrupted(ctl, home):
    run = fakes.submit_run(home)
    fakes.take_commands(home)
    left = ctl("report", run)
    assert f"interrupted (agentctl resume {run} carries on)" in left.out
    assert ctl("report", run, "--json").json["run"]["state"] == "interrupted"
    assert ctl("status", run, "--json").json["runs"][0]["state"] == "interrupted"
    owner = HomeLock(HomeLayout(home).lock)
    assert "interrupted" not in ctl("report", run).out
    assert ctl("report", run, "--json").json["run"]["state"] == "queued"
    owner.release()


def test_what_machines_are_called_is_in_no_report_and_no_export(ctl, home, monkeypatch, tmp_path):
    """A host's and a provider's troubles name them, and so may what a host prints: only codes leave."""
    secret = "ubuntu@10.0.0.7"
    run = fakes.submit_run(home)
    judging = fakes.FakeEvaluator()
    real = judging.evaluate
    asked: set[str] = set()
    printed = ErrorInfo(code="vendor_compiler", message=f"/home/{secret}/kernel.py: cannot be lowered")

    async def fails(request, blobs, /):
        asked.add(request.candidate)
        if request.candidate.startswith("r1") and len(asked) % 2:
            raise InfrastructureError("host_unreachable", f"{secret} does not answer", retryable=False)
        answer = await real(request, blobs)
        if request.candidate.startswith("r1"):
            said = {"verdict": Verdict.COMPILE_ERROR, "stage": "compile", "error": printed, "benchmark": None}
            return replace(answer, evaluation=answer.evaluation.model_copy(update=said))
        return answer

    monkeypatch.setattr(judging, "evaluate", fails)
    fakes.finish_runs(home, run, workers=fakes.fake_workers(judging))
    told = ctl("report", run, "--json")
    assert "host_unreachable" in told.out
    assert secret not in told.out + ctl("report", run).out
    called = ctl("export", run, "--layout", "nki-kernel-agent", "-o", tmp_path / "out")
    assert called.status == 0, called.err
    left = (tmp_path / "out" / "experiments.jsonl").read_text()
    assert {"host_unreachable", "vendor_compiler"} <= {
        json.loads(line)["error"] for line in left.splitlines()
    }
    written = [path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not any(secret in text for text in written)


def test_a_run_whose_problem_cannot_be_read_has_a_report_and_files(ctl, home, tmp_path):
    """Logs of other versions hold problems in other forms."""
    record(home, {"toy-5eed01": world_of().finish()})
    for name in ("r.html", "r.md"):
        called = ctl("report", "toy-5eed01", "-o", tmp_path / name)
        assert called.status == 0, called.err
        assert "cannot read" in (tmp_path / name).read_text()
    called = ctl("export", "toy-5eed01", "--layout", "nki-kernel-agent", "-o", tmp_path / "out")
    assert called.status == 0, called.err


def test_a_report_names_no_hosts_and_no_home(made, home, ctl, finished):
    score = {"command": ["/home/me/bench", "{kernel}"], "folder": "/home/me", "runs": 5}
    config = RunConfig.model_validate({"problem": "silu", "hosts": ["ubuntu@10.0.0.7"], "score": score})
    assert changed_settings(config) == {"run.problem": "silu", "run.score.runs": 5}
    assert str(home) not in json.dumps(as_json(made))


def commands(lines) -> list[list[str]]:
    return [shlex.split(line)[1:] for line in lines]


def test_a_problem_of_ones_own_comes_out_of_the_log_and_runs_again(
    ctl, home, tmp_path, monkeypatch, fake_kernel
):
    """The folder that the run was made from is gone; its report's commands work nevertheless."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    ctl("problems", "new", "mine", "--into", "away")
    flags = ["--set", "run.evaluator=fake", "--set", 'run.planner=["scripted"]', "--set", "run.search.beam=2"]
    called = ctl("run", *flags, "--problem", "away/mine", "--rounds", 1, "--seed", 3, "--kernel", fake_kernel)
    assert called.status == 0, called.err
    (run,) = ctl("status", "--json").json["runs"]
    made = ctl("report", run["id"], "--json").json
    again = made["reproduction"]
    assert set(again["files"]) == {"problem.toml", "reference.py", "kernel.py"}
    for path in (work / "away" / "mine").iterdir():
        path.unlink()
    for command in commands(again["extract"]):
        called = ctl(*command)
        assert called.status == 0, called.err
    for path, text in again["files"].items():
        assert (work / "problem" / path).read_text() == text
    assert (work / "start.py").read_text() == fakes.KERNEL
    assert (work / "best.py").read_text() == made["best"]["source"]
    (line,) = commands(again["again"])
    called = ctl(*line)
    assert called.status == 0, called.err
    with LogReader.open(work / "again") as reader:
        (other,) = reader.run_ids()
        best = reader.run_state(other).best
    assert best.latency_ms == made["run"]["best_ms"]
    (row,) = ctl("status", "--json", home=work / "again").json["runs"]
    assert row["state_hash"] == made["environment"]["state_hash"]


def test_a_builtin_problem_is_named_and_settings_are_repeated(ctl, finished):
    (line,) = ctl("report", finished, "--json").json["reproduction"]["again"]
    assert "--problem silu --size reduced --target trn2 --seed 25" in line
    assert "--set 'run.search.beam=2'" in line or "--set run.search.beam=2" in line
    assert FAKE[1] in line.replace('"', "").replace("'", "")
