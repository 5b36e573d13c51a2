"""`agentctl problems export`: the problem of a run comes out of the log as it went in."""

from __future__ import annotations

import seeds
from tests.support import fakes


def test_the_folder_is_the_problem_again(ctl, finished, tmp_path):
    called = ctl(
        "problems", "export", finished, "-o", tmp_path / "p", "--kernel", tmp_path / "k.py", "--json"
    )
    assert called.status == 0, called.err
    assert seeds.load_problem(tmp_path / "p").digest == seeds.load_problem("silu").digest
    assert (tmp_path / "k.py").read_text() == fakes.KERNEL
    assert called.json["files"] == sorted(seeds.load_problem("silu").files)
    assert ctl("problems", "export", finished, "-o", tmp_path / "p").status == 0


def test_what_is_there_stays_unless_forced(ctl, finished, tmp_path):
    (tmp_path / "k.py").write_text("mine")
    called = ctl("problems", "export", finished, "-o", tmp_path / "p", "--kernel", tmp_path / "k.py")
    assert called.status == 2
    assert "--force" in called.err
    assert not (tmp_path / "p").exists()
    assert ctl("problems", "export", finished, "--kernel", tmp_path / "k.py", "--force").status == 0
    assert (tmp_path / "k.py").read_text() == fakes.KERNEL


def test_bad_usage_says_what_is_missing(ctl, finished, tmp_path):
    assert "-o FOLDER" in ctl("problems", "export", finished).err
    assert ctl("problems", "export", "none", "-o", tmp_path / "p").status == 3
