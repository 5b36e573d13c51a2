"""Stands in for `neuronxcc.nki.typing`: the simulator's front end under the name kernels import."""

import sys as _sys

from nki_sim.frontend.legacy.modules import MODULES as _MODULES

_sys.modules[__name__] = _MODULES["neuronxcc.nki.typing"]
