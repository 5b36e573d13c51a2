"""Stands in for `neuronxcc.nki.typing`: the simulator's front end under the name kernels import."""

import sys as _sys

from nki_sim.frontend.legacy import typing as _typing

_sys.modules[__name__] = _typing
