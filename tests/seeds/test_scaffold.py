"""New problems: they work as they come, and nothing is overwritten or half-written."""

from __future__ import annotations

import pytest

import nki_sim
import seeds
from nki_sim.program.ir import ArraySpec
from nki_sim.running import numerics
from remote.judge.numerics import rel_l2
from seeds import scaffold
from seeds.errors import ScaffoldError
from seeds.inputs import draw_inputs
from targets.nki.judge import rules
from targets.nki.judge.normalise import parse_source


def test_a_new_problem_has_its_authors_name_and_a_right_kernel(tmp_path):
    problem = scaffold.create_problem("axpy_rows", tmp_path)
    spec = problem.spec
    assert spec.name == "axpy_rows"
    assert "def axpy_rows(" in problem.kernel
    assert not any(b"example" in data for data in problem.files.values())
    assert rules.check_source(parse_source(problem.kernel.encode()), problem.kernel) == []
    arrays = [ArraySpec(item.resolve_kernel_shape(spec.dims("reduced")), item.dtype) for item in spec.inputs]
    program = nki_sim.trace(problem.kernel, args=spec.call_arguments(arrays, float), target="trn2")
    inputs = draw_inputs(spec, "reduced", 3)
    names = {}
    exec(problem.files["reference.py"], names)
    truth = names["reference"](*spec.call_arguments(inputs, float))
    assert rel_l2(numerics.run(program, inputs), [truth]) < spec.rel_l2


def test_only_what_the_author_has_to_edit_is_written(tmp_path):
    scaffold.create_problem("mine", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert set(seeds.load_problem(tmp_path / "mine").files) == {"problem.toml", "reference.py", "kernel.py"}


@pytest.mark.parametrize("make", ["mkdir", "touch"])
def test_what_is_there_stays(tmp_path, make):
    place = tmp_path / "mine"
    getattr(place, make)()
    with pytest.raises(ScaffoldError, match="is there already"):
        scaffold.create_problem("mine", tmp_path)
    assert place.is_dir() == (make == "mkdir")
    assert not place.is_dir() or not list(place.iterdir())


@pytest.mark.parametrize("name", ["", "a b", "../up", "9lives", "_private", "x" * 65, "é", "a\n"])
def test_names_that_are_none(tmp_path, name):
    with pytest.raises(ScaffoldError, match="cannot be a name"):
        scaffold.create_problem(name, tmp_path)


@pytest.mark.parametrize("name", ["class", "nl", "bias_tile", "silu"])
def test_names_that_would_mean_something_else(tmp_path, name):
    with pytest.raises(ScaffoldError, match="give another name"):
        scaffold.create_problem(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ScaffoldError):
        scaffold.create_problem("mine", tmp_path / "file")
