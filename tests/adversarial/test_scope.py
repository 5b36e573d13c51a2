"""What these tests set for themselves is not seen by the tests of other folders."""

from __future__ import annotations

import os

import pytest

from tests.adversarial import conftest

USUAL = tuple(getattr(place, name) for place, name, _ in conftest.LIMITS)
"""As they are before any test is run."""


@pytest.fixture(scope="session")
def seen_by_others(judge, secret) -> tuple[tuple, bool]:
    """Return the limits, and whether there is a secret, as they are between tests once the judge is there."""
    return tuple(getattr(place, name) for place, name, _ in conftest.LIMITS), "NKI_TEST_SECRET" in os.environ


def test_limits_of_these_tests_end_with_each_of_them(seen_by_others):
    assert seen_by_others == (USUAL, False)
    assert tuple(getattr(place, name) for place, name, _ in conftest.LIMITS) == tuple(
        value for _, _, value in conftest.LIMITS
    )
