"""Problems from a file with a reference alone."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from seeds.errors import ScaffoldError
from seeds.from_reference import OutputShape, make_problem, read_reference
from seeds.scaffold import write_problem

TEXT = '''"""Scale "x": twice.

More.
"""
import numpy as np

INPUT_SPECS = {"x": ((4, 6), "float32"), "s": ((6,), "bfloat16")}
VALUES = {"s": "positive"}
TOLERANCE = 1e-4


def reference(x, s):
    return x * s
'''


@pytest.fixture
def reference(tmp_path):
    def write(text):
        path = tmp_path / "scaled.py"
        path.write_text(text)
        return path

    return write


def test_what_a_file_declares_becomes_a_problem(reference, tmp_path):
    file = read_reference(reference(TEXT))
    work = {"matmul_flops": 0, "other_flops": 24, "activation_elements": 0}
    problem = make_problem(file, [OutputShape((4, 6), "float32"), OutputShape((), "float32")], work=work)
    spec = problem.spec
    assert (spec.name, spec.formula, spec.rel_l2) == ("scaled", 'Scale "x": twice.', 1e-4)
    assert [(item.name, item.shape, item.dtype) for item in spec.inputs] == [
        ("x", (4, 6), "float32"), ("s", (6,), "bfloat16")
    ]  # fmt: skip
    assert [item.distribution for item in spec.inputs] == ["normal", "positive"]
    assert [(item.name, item.shape) for item in spec.outputs] == [("out_0", (4, 6)), ("out_1", (1,))]
    assert spec.work.other_flops == 24
    write_problem(problem, tmp_path / "folder")
    written = (tmp_path / "folder" / "reference.py").read_text()
    assert written.startswith(TEXT)
    computes: dict[str, Any] = {}
    exec(written, computes)
    third = np.float32(1) / np.float32(3)
    product = computes["reference"](np.full((4, 6), third), np.full(6, third))
    assert product.dtype == np.float64, "a kernel is compared with what has no rounding of its own"
    assert np.array_equal(product, np.full((4, 6), float(third) ** 2))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_narrow_inputs_are_computed_with_in_float64(name, reference):
    problem = make_problem(read_reference(reference(TEXT)), [OutputShape((4, 6), "float32")])
    computes: dict[str, Any] = {}
    exec(problem.files["reference.py"], computes)
    third = np.full((4, 6), 1 / 3).astype(ml_dtypes.finfo(name).dtype)
    found = computes["reference"](third, third[0])
    assert found.dtype == np.float64
    assert np.array_equal(found, third.astype(float) ** 2)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("def reference", "def refrence", "has no function `reference`"),
        ("INPUT_SPECS", "INPUTS", "needs INPUT_SPECS"),
        ('(6,), "bfloat16"', '(6,), "float64"', "INPUT_SPECS of 's' is no .shape, type."),
        ('((4, 6), "float32")', '((4, N), "float32")', "line 7: INPUT_SPECS has to be written out"),
        ("1e-4", "2.0", "TOLERANCE is 2.0, not a number between 0 and 1"),
        ('{"s": "positive"}', '["s"]', "VALUES is no table"),
        ("return x * s", "return (x", "not Python"),
    ],
)
def test_a_wrong_file_is_refused_by_name(reference, old, new, said):
    path = reference(TEXT.replace(old, new))
    with pytest.raises(ScaffoldError, match=f"scaled.py.*{said}"):
        read_reference(path)
