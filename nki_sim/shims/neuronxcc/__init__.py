"""Stands in for `neuronxcc` where the real package is absent; a real one further on the path wins.

The real package adds the level `OFF` to Python's `logging`, and scripts that import it turn logs off with that.
"""

import logging as _logging
import sys as _sys

from nki_sim.shim_precedence import use_installed_package as _use_installed_package

if not _use_installed_package(_sys.modules[__name__]) and not hasattr(_logging, "OFF"):
    _logging.OFF = _logging.CRITICAL + 10  # type: ignore[attr-defined]
