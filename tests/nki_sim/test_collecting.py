"""Python's search for cycles is as it was before, whatever happens in between."""

from __future__ import annotations

import gc

import pytest

from nki_sim.collecting import rarely_collecting


def test_thresholds_come_back() -> None:
    before = gc.get_threshold()
    with rarely_collecting():
        assert gc.get_threshold()[0] > before[0]
        assert gc.isenabled()
    assert gc.get_threshold() == before
    with pytest.raises(ValueError, match="fails"), rarely_collecting():
        raise ValueError("fails")
    assert gc.get_threshold() == before
