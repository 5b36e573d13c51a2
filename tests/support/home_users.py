"""What root does as the user of a home."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def acting_as_owner(home: Path) -> Iterator[None]:
    """Touch files as the owner of a home, if there is one and root does it; else change nothing."""
    if os.geteuid() != 0 or not home.exists():
        yield
        return
    owner, group = home.stat(), os.getegid()
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
