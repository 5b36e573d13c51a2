"""What the tests of the page share: a home with runs, and its page served."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.daemon.ui.serving import Served, serving
from tests.support import recorded

RUN, OTHER = "toy-a1b2c3", "toy-d4e5f6"


@pytest.fixture(scope="module")
def recorded_home(tmp_path_factory) -> Path:
    """A home with two finished runs, whose kernels hold markup."""
    home = tmp_path_factory.mktemp("page") / "home"
    recorded.record(home, {RUN: recorded.world_of().finish(), OTHER: recorded.world_of(order=7).finish()})
    return home


@pytest.fixture(scope="module")
def served(recorded_home) -> Served:
    with serving(recorded_home) as page:
        yield page
