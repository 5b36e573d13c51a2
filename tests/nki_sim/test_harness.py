"""What kernels are tried on and compared with: arguments, inputs, relative errors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nki_sim import ArraySpec, harness
from nki_sim.errors import InputError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-1", -1),
        ("1e-5", 1e-5),
        ("2.5", 2.5),
        ("True", True),
        ("None", None),
        ("4x4", ArraySpec((4, 4), "float32")),
        ("8:bfloat16", ArraySpec((8,), "bfloat16")),
        ("2x3x4:int32", ArraySpec((2, 3, 4), "int32")),
    ],
)
def test_arguments_are_shapes_or_numbers(text: str, value: Any) -> None:
    found = harness.parse_argument(text)
    assert (found, type(found)) == (value, type(value))


def test_relative_error_of_equal_arrays_is_zero() -> None:
    assert harness.relative_l2(np.ones(4), np.ones(4)) == 0.0
    assert harness.relative_l2(np.zeros(4), np.ones(4)) == pytest.approx(1.0)


def test_relative_error_is_that_of_the_whole_array(monkeypatch: Any) -> None:
    monkeypatch.setattr(harness, "_BLOCK", 7)
    rng = np.random.default_rng(0)
    wanted, found = rng.standard_normal((3, 11)), rng.standard_normal((3, 11)).astype(np.float32)
    exact = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
    assert harness.relative_l2(found, wanted) == pytest.approx(exact, rel=1e-12)
    found[2, 10] = np.nan
    assert np.isnan(harness.relative_l2(found, wanted))
    assert harness.relative_l2(np.ones(3, dtype=np.int8), np.ones(3, dtype=np.int8)) == 0.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("64x32:floaty", "unknown data type 'floaty'; known: "),
        ("64x32:", "unknown data type ''"),
        ("64x0", "sizes are 1 or more"),
        ("64xmany", "neither a shape such as 128x512:float32 nor a number"),
        ("many", "neither a shape"),
    ],
)
def test_an_argument_that_is_none_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        harness.parse_argument(text)
    assert message in str(caught.value)


def test_specifications_are_filled_in_order_and_all_else_is_kept() -> None:
    specs = [ArraySpec((2, 3), "float32"), 3, ArraySpec((4,), "int32"), ArraySpec((8,), "bool_"), None]
    first, number, second, third, nothing = harness.fill_arguments(specs, 5)
    rng = np.random.default_rng(5)
    assert np.array_equal(first, rng.standard_normal((2, 3)).astype(np.float32))
    assert np.array_equal(second, rng.integers(0, 8, 4))
    assert np.array_equal(third, rng.integers(0, 2, 8).astype(np.bool_))
    assert (first.dtype, second.dtype, third.dtype) == (np.float32, np.int32, np.bool_)
    assert (number, nothing) == (3, None)


def test_a_reference_may_have_dataclasses_whose_annotations_are_texts(tmp_path: Path) -> None:
    file = tmp_path / "reference.py"
    file.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Scale:\n    by: float\n"
        "def forward(x):\n    @dataclass\n    class Late:\n        by: float\n    return x * Late(2.0).by\n"
    )
    reference = harness.ReferenceModule(file)
    assert reference.relative_errors([np.ones(3)], [np.full(3, 2.0)]) == [0.0]
    assert "__reference__" not in sys.modules
