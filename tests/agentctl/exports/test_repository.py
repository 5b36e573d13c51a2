"""Kernels as a Git branch: a commit for each best, work trees and other branches as they were."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace

import pytest

from agentctl.exports.repository import AUTHOR, EMAIL, export_branch
from agentctl.views.improvement_path import load_improvement_path
from state.log import EventLog
from state.model import ErrorInfo
from state.reader import LogReader
from tests.support import fakes

SECRET = "ubuntu@10.0.0.7"

pytestmark = pytest.mark.needs("git")


def git(root, *arguments: str) -> str:
    settings = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-C", str(root), "-c", "user.name=me", "-c", "user.email=me@x", *arguments]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """Somebody's own: a commit on main, a change under way, and a hook that would be noticed."""
    root = tmp_path / "mine"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    (root / "kernel.py").write_text("mine\n")
    git(root, "add", "kernel.py")
    git(root, "commit", "-q", "-m", "mine")
    (root / "kernel.py").write_text("changed\n")
    hook = root / ".git" / "hooks" / "reference-transaction"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\n")
    hook.chmod(0o755)
    return root


def commits(root, branch: str) -> list[str]:
    return git(root, "rev-list", "--reverse", branch).splitlines()


def test_each_best_is_a_commit_with_its_kernel(ctl, home, finished, tmp_path):
    called = ctl("export", finished, "--git", "-o", tmp_path / "new", "--json")
    assert called.status == 0, called.err
    root, branch = tmp_path / "new", f"kernels/{finished}"
    with LogReader.open(home) as reader:
        bests = load_improvement_path(reader, finished).bests
        sources = [reader.get_blob(one.source).decode() for one in bests]
    names = commits(root, branch)
    assert called.json == {
        "run": finished, "form": "git", "repository": str(root), "branch": branch, "tip": names[-1],
        "commits": len(bests), "new": len(bests),
    }  # fmt: skip
    assert [git(root, "show", f"{name}:kernel.py") + "\n" for name in names] == sources
    told = [json.loads(git(root, "show", f"{name}:result.json")) for name in names]
    assert [one["latency_ms"] for one in told] == [one.latency.ms for one in bests]
    assert all(one["predicted"] for one in told)
    last = git(root, "log", "-1", "--format=%B", branch)
    assert last.startswith(f"{bests[-1].total:.2f}x: ")
    assert "ms predicted, " in last
    assert f"\nEvent: {bests[-1].at}\n" in last
    assert git(root, "show", f"{branch}:problem/problem.toml")
    assert git(root, "fsck", "--strict") == ""
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


def test_reflogs_do_not_name_the_user_of_this_machine(ctl, finished, repository):
    assert ctl("export", finished, "--git", "-o", repository).status == 0
    made = git(repository, "reflog", "--format=%gn <%ge>", f"kernels/{finished}")
    assert made == f"{AUTHOR} <{EMAIL}>"


def test_again_nothing_is_new_and_another_machine_makes_the_same(ctl, finished, tmp_path):
    first = ctl("export", finished, "--git", "-o", tmp_path / "a", "--json").json
    again = ctl("export", finished, "--git", "-o", tmp_path / "a", "--json").json
    other = ctl("export", finished, "--git", "-o", tmp_path / "b", "--json").json
    assert (again["new"], again["tip"]) == (0, first["tip"])
    assert other["tip"] == first["tip"]


class Until:
    """A log as it was after an event of a run."""

    def __init__(self, reader: LogReader, run_seq: int) -> None:
        self._reader, self._run_seq = reader, run_seq

    def history(self, run, types, **bounds):
        rows = self._reader.iterate_events(run, types, **bounds)
        return (item for item in rows if item.run_seq <= self._run_seq)

    def __getattr__(self, name):
        return getattr(self._reader, name)


def test_a_run_that_goes_on_moves_the_branch_on(home, tmp_path):
    """Exported after each kernel that is kept or refuted, never by force."""
    run = fakes.submit_run(home, fakes.REFUTING)
    fakes.finish_runs(home, run, workers=fakes.refuting_workers())
    with LogReader.open(home) as reader:
        turns = [item.run_seq for item in reader.iterate_events(run, ("KernelKept", "KernelRefuted"))]
        made = [
            export_branch(home, Until(reader, run_seq), run, tmp_path / "repo", branch="kernels")
            for run_seq in turns
        ]
        whole = export_branch(home, reader, run, tmp_path / "repo", branch="kernels")
        assert whole.commits == len(load_improvement_path(reader, run).turns)
    assert (whole.new, whole.tip) == (0, made[-1].tip)
    assert sum(one.new for one in made) == whole.commits


def test_somebodys_repository_keeps_its_work_tree_index_branches_and_hooks(
    ctl, finished, repository, tmp_path
):
    def stands() -> tuple[str, str]:
        return git(repository, "status", "--porcelain=v2", "--branch"), git(repository, "rev-parse", "main")

    before = stands()
    called = ctl("export", finished, "--git", "-o", repository)
    assert called.status == 0, called.err
    assert stands() == before
    assert (repository / "kernel.py").read_text() == "changed\n"
    assert git(repository, "for-each-ref", "--format=%(refname)").splitlines() == [
        f"refs/heads/kernels/{finished}",
        "refs/heads/main",
    ]
    assert not (tmp_path / "hooked").exists()


def test_a_branch_with_other_commits_stays_unless_forced(ctl, finished, repository):
    mine = git(repository, "rev-parse", "main")
    git(repository, "branch", "other")
    refused = ctl("export", finished, "--git", "-o", repository, "--branch", "other")
    assert refused.status == 2
    assert "--force" in refused.err
    assert git(repository, "rev-parse", "other") == mine
    assert ctl("export", finished, "--git", "-o", repository, "--branch", "other", "--force").status == 0
    assert git(repository, "rev-parse", "other") != mine


def test_a_branch_that_is_checked_out_is_not_moved_even_if_forced(ctl, finished, repository):
    refused = ctl("export", finished, "--git", "-o", repository, "--branch", "main", "--force")
    assert refused.status == 2
    assert "is checked out" in refused.err
    assert git(repository, "log", "--format=%s", "main") == "mine"


@pytest.mark.parametrize("branch", ["../x", "a..b", "-x", "a b", "@{-1}", "x.lock"])
def test_a_name_that_is_none_is_refused(ctl, finished, tmp_path, branch):
    called = ctl("export", finished, "--git", "-o", tmp_path / "new", f"--branch={branch}")
    assert called.status == 2
    assert not (tmp_path / "new").exists()


def test_a_folder_inside_a_repository_is_not_taken_for_it(ctl, finished, repository):
    inside = repository / "deep"
    inside.mkdir()
    (inside / "file").touch()
    called = ctl("export", finished, "--git", "-o", inside)
    assert called.status == 2
    assert "is no Git repository" in called.err
    assert f"kernels/{finished}" not in git(repository, "branch", "--list")


def test_a_bare_repository_is_one(ctl, finished, tmp_path):
    git(tmp_path, "init", "-q", "--bare", "bare.git")
    assert ctl("export", finished, "--git", "-o", tmp_path / "bare.git").status == 0
    assert commits(tmp_path / "bare.git", f"kernels/{finished}")


class OnAHost(fakes.FakeEvaluator):
    """Words what it finds wrong as a host's device would, which names machines."""

    async def evaluate(self, request, blobs, /):
        answer = await super().evaluate(request, blobs)
        if answer.evaluation.error is None:
            return answer
        printed = ErrorInfo(code="device_error", message=f"{SECRET}: the device gave up")
        said = {"stage": "execute", "error": printed}
        return replace(answer, evaluation=answer.evaluation.model_copy(update=said))


def test_what_a_host_printed_of_a_kernel_that_was_taken_back_stays_here(ctl, home, tmp_path):
    run = fakes.submit_run(home, fakes.REFUTING)
    fakes.finish_runs(home, run, workers=fakes.fake_workers(OnAHost(late=fakes.LATE)))
    assert SECRET in ctl("tail", "-n", 5000).out
    assert ctl("export", run, "--git", "-o", tmp_path / "repo").status == 0
    log = git(tmp_path / "repo", "log", "--format=%B", f"kernels/{run}")
    told = [ctl("report", run).out, ctl("report", run, "--json").out]
    for text in (log, *told):
        assert "device_error" in text
        assert SECRET not in text


def test_what_was_wrong_is_taken_back_in_a_commit(ctl, home, tmp_path):
    run = fakes.submit_run(home, fakes.REFUTING)
    fakes.finish_runs(home, run, workers=fakes.refuting_workers())
    assert ctl("export", run, "--git", "-o", tmp_path / "new").status == 0
    with LogReader.open(home) as reader:
        turns = load_improvement_path(reader, run).turns
        best = reader.get_blob(reader.run_state(run).best.source).decode()
    subjects = git(tmp_path / "new", "log", "--reverse", "--format=%s", f"kernels/{run}").splitlines()
    back = [place for place, turn in enumerate(turns) if turn.taken_back]
    assert back
    assert [place for place, text in enumerate(subjects) if text.startswith("Take back ")] == back
    assert git(tmp_path / "new", "show", f"kernels/{run}:kernel.py") + "\n" == best


def test_a_run_without_a_kernel_and_a_home_are_refused(ctl, home, finished, tmp_path):
    assert ctl("export", finished, "--git", "-o", home / "inbox").status == 2
    run = fakes.submit_run(home, id_=None)
    fakes.take_commands(home)
    assert ctl("export", run, "--git", "-o", tmp_path / "new").status == 3
    assert not (tmp_path / "new").exists()
    with EventLog.open(home):
        pass


def test_a_repository_that_fetches_what_it_lacks_runs_none_of_its_programs(
    ctl, finished, repository, tmp_path
):
    """A partial clone, whose settings say by which program its other half comes."""
    ran = tmp_path / "ran"
    for key, value in {
        "core.repositoryformatversion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::touch {ran}",
        "protocol.ext.allow": "always",
    }.items():
        git(repository, "config", key, value)
    (repository / ".git" / "refs" / "heads" / "lost").write_text("1" * 40 + "\n")
    called = ctl("export", finished, "--git", "-o", repository, "--branch", "lost")
    assert not ran.exists(), called.err
