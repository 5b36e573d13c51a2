"""Stands in for `neuronxcc.nki.isa`: the simulator's front end under the name kernels import."""

import sys as _sys

from nki_sim.frontend.legacy import isa as _isa

_sys.modules[__name__] = _isa
