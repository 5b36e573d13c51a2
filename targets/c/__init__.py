"""C on this machine's CPU: targets x86 and arm64, the one that the machine is.

Kernels are C or C++ sources. They are compiled and run in the jail, measured there, and their outputs are
compared at home, as those of hosts are. Open `target.py` first, then `evaluator.py`. What runs in the jail is
in `jailed/` and needs nothing but Python's standard library.
"""

from __future__ import annotations

from targets.base import Target


def load(name: str) -> Target:
    """Return `x86` or `arm64`."""
    from targets.c.target import make_target

    return make_target(name)
