"""Kernels that were built to be rewritten wrongly, each of which once was or might have been."""

from tests.support.counterexamples import loops, name_bindings, shape_refs, views

_MODULES = (loops, name_bindings, views, shape_refs)
FIRSTS = [next(iter(module.COUNTEREXAMPLES)) for module in _MODULES]
"""One of each kind."""

COUNTEREXAMPLES = {name: one for module in _MODULES for name, one in module.COUNTEREXAMPLES.items()}
