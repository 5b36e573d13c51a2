"""Stands in for `neuronxcc.nki`: the simulator's front end under the name kernels import."""

import sys as _sys

from nki_sim.frontend.legacy.modules import MODULES as _MODULES

_sys.modules.update({name: module for name, module in _MODULES.items() if name.startswith(__name__)})
