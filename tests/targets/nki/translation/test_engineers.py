"""References as engineers write them, each a file of `engineers/`: translations compute what they do."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from remote.judge.identity.tracing.recording import record_reference
from remote.judge.numerics import rel_l2
from seeds.from_reference import OutputShape, make_problem, read_reference
from targets.nki.translation.translator import write_kernels
from tests.support.sweeps import parametrize_sweep
from tests.support.workloads import run_kernel

FILES = sorted((Path(__file__).parent / "engineers").glob("*.py"))


def draw(shape, dtype, distribution, rng):
    kind, *bounds = distribution.split(":")
    numbers = rng.standard_normal(shape)
    match kind:
        case "positive":
            numbers = np.abs(numbers) + 0.05
        case "zero_one":
            numbers = numbers > 0
        case "integers":
            numbers = rng.integers(*map(int, bounds), shape)
    return numbers.astype(np.int32 if dtype == "int32" else np.float32)


@parametrize_sweep("path", FILES, quick=8, ids=[path.stem for path in FILES])
def test_the_first_layout_computes_the_reference(path):
    file, rng = read_reference(path), np.random.default_rng(3)
    reference = runpy.run_path(str(path))["reference"]
    inputs = [
        draw(shape, dtype, file.distributions.get(name, "normal"), rng)
        for name, (shape, dtype) in file.inputs.items()
    ]
    found = reference(*(array.astype(np.float64) if array.dtype.kind == "f" else array for array in inputs))
    outputs = [np.asarray(item) for item in (found if isinstance(found, tuple) else (found,))]
    types = [(array.shape, array.dtype) for array in inputs]
    formula = record_reference(reference, types, [array.shape for array in outputs])
    problem = make_problem(file, [OutputShape(array.shape or (1,), "float32") for array in outputs])
    kernel = write_kernels(problem.spec, "full", formula.to_bytes())[0]
    results = run_kernel(kernel, inputs)
    for own, expected in zip(results, outputs, strict=True):
        assert rel_l2([own.reshape(expected.shape)], [expected]) < file.tolerance


def load_as_problem(folder, result):
    """The reference of a problem made of a file whose reference returns that."""
    path = folder / "third.py"
    path.write_text(
        'import numpy as np\n\nINPUT_SPECS = {"x": ((4,), "float32")}\n\n\n'
        f"def reference(x):\n    return {result}\n"
    )
    problem = make_problem(read_reference(path), [OutputShape((4,), "float32")])
    (folder / "reference.py").write_bytes(problem.files["reference.py"])
    return runpy.run_path(str(folder / "reference.py"))["reference"]


@pytest.mark.parametrize("result", ["x.sum()", "(x.sum(), x)"])
def test_a_number_is_an_array_of_one_element_when_run_and_when_followed(tmp_path, result):
    reference = load_as_problem(tmp_path, result)
    found = reference(np.ones(4, np.float32))
    shapes = [item.shape for item in (found if isinstance(found, tuple) else (found,))]
    assert shapes[0] == (1,)
    record_reference(reference, [((4,), np.dtype("float32"))], shapes)  # it raises where shapes differ


def test_a_file_is_compared_with_its_reference_in_float64(tmp_path):
    found = load_as_problem(tmp_path, "x / 3")(np.ones(4, np.float32))
    assert found.dtype == np.float64
    assert found == pytest.approx(1 / 3, rel=1e-15)
