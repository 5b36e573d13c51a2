"""A job for process pools that ends its process; in a module of its own, which starts fast."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def end_or_answer(request: str) -> str:
    """Answer; but kill this process as long as there is a file `request`, which names none if it is empty."""
    if request and Path(request).exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return '{"ok": {}}'
