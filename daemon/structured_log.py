"""structlog, loaded without rich. Modules of this room import it from here.

Where rich is installed, `import structlog` loads it, and pygments, for tracebacks in colour. Ours are plain
(`process_logging.py`), and rich would take two thirds of the 0.4 s of processor time of that import, at the
start of each daemon and each `agentctl run`.
"""

from __future__ import annotations

import sys
from typing import Any

RICH = "rich"

_loaded: Any = sys.modules.get(RICH)
sys.modules[RICH] = None  # type: ignore[assignment]  # an import of it fails, which structlog expects
try:
    import structlog
finally:
    if _loaded is None:
        del sys.modules[RICH]
    else:
        sys.modules[RICH] = _loaded

__all__ = ["structlog"]
