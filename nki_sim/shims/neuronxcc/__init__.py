"""Stands in for `neuronxcc` where the real package is absent; a real one further on the path wins."""

import sys as _sys

from nki_sim.shim_precedence import use_installed_package as _use_installed_package

_use_installed_package(_sys.modules[__name__])
