"""The benchmark of the judge: every case can be made, costs are added up, nothing wrong passes."""

from __future__ import annotations

import json

import pytest

from benchmarks import judge


def test_every_case_is_made_of_an_initial_kernel_as_it_is():
    found = list(judge.cases(""))
    assert sum(not case.wrong for case in found) == 14
    assert {case.wrong for case in found if case.wrong} == set(judge.WRONG)
    assert all(case.source != case.problem.kernel for case in found if case.wrong)


@pytest.mark.slow
def test_the_cost_of_references_is_no_cost_of_a_candidate(tmp_path, capsys):
    argv = ["--size", "reduced", "--level", "slices", "--only", "silu", "--home", str(tmp_path), "--json"]
    assert judge.main(argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["missed"], found["initial_refused"]) == ([], [])
    assert found["caught"] == {"lint": 1, "numerics": 2, "rules": 3}
    first = found["kernels"][0]
    assert {"jail", "numerics", "references", "timing"} <= set(first["stage_s"])
    rest = sum(seconds for stage, seconds in first["stage_s"].items() if stage != "references")
    assert abs(first["judging_s"] - rest) < 0.01
