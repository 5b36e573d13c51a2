"""Stands in for `neuronxcc.nki.language`: the simulator's front end under the name kernels import."""

import sys as _sys

from nki_sim.frontend.legacy import language as _language

_sys.modules[__name__] = _language
