"""Functions cut out of modules."""

from __future__ import annotations

from typing import Any

import pytest

from targets.nki.knobs.tuning.excerpt import excerpt_function, names_needed

MODULE = '''"""A module."""
from __future__ import annotations

import functools
import os
import numpy as np
from math import pi, tau

UNUSED = os.sep
TABLE = {}
TABLE["two"] = 2; OTHER = 3

try:
    FAST = True
except ImportError:
    FAST = False


def cached(function):
    return functools.cache(function)


@cached
def two():
    return TABLE["two"]


def unused():
    return pi


class Root:
    eps = tau


def f(x):
    """What is wanted."""
    return np.sqrt(x) * two() + Root.eps * FAST
'''


def test_what_a_function_names_comes_along_and_nothing_else() -> None:
    text = excerpt_function(MODULE, "f")
    for kept in (
        "import functools",
        "import numpy",
        "from math import",
        "TABLE = {}",
        'TABLE["two"] = 2',
        "@cached",
    ):
        assert kept in text
    for left in ("import os", "UNUSED", "def unused", '"""A module."""'):
        assert left not in text
    assert text.index("from __future__") < text.index("import functools") < text.index("def f(x)")
    space: dict[str, Any] = {}
    exec(text, space)
    assert space["f"](4.0) == pytest.approx(4 + 6.283185)


def test_the_names_that_it_binds_are_told() -> None:
    assert names_needed(MODULE, "two") >= {"two", "cached", "functools", "TABLE"}
    assert "np" not in names_needed(MODULE, "two")


def test_a_star_import_may_mean_anything_and_is_kept() -> None:
    text = "from numpy import *\n\n\ndef f(x):\n    return sqrt(x)\n"
    assert excerpt_function(text, "f") == text
    assert excerpt_function(f"from nkigym.ops import *\n{text}", "f") == text
