"""Python's search for cycles is as it was before, whatever happens in between."""

from __future__ import annotations

import gc

import pytest

from nki_sim.garbage_collection import rare_garbage_collection


def test_thresholds_come_back() -> None:
    before = gc.get_threshold()
    with rare_garbage_collection():
        assert gc.get_threshold()[0] > before[0]
        assert gc.isenabled()
    assert gc.get_threshold() == before
    with pytest.raises(ValueError, match="fails"), rare_garbage_collection():
        raise ValueError("fails")
    assert gc.get_threshold() == before
