"""Stands in for `nki` where the real package is absent: hands over to a real one further on the path."""

import sys as _sys

from nki_sim.shim_precedence import use_installed_package as _use_installed_package

if not _use_installed_package(_sys.modules[__name__]):
    from nki_sim.frontend.modules import MODULES as _MODULES

    _sys.modules.update(_MODULES)
