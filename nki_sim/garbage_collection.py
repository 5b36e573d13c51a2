"""Makes Python's garbage collector run rarely while a program is made or scheduled."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_COLLECTED_AFTER = 1_000_000
"""Objects made between two collections."""


@contextmanager
def rare_garbage_collection() -> Iterator[None]:
    """Run the cyclic collector rarely: most new objects are kept, so repeated searches for cycles find
    nothing.
    """
    before = gc.get_threshold()
    gc.set_threshold(_COLLECTED_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
