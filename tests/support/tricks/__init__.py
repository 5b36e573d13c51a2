"""Kernels that were built to be rewritten wrongly, each of which once was or might have been."""

from tests.support.tricks import loops, names, parts, said

FIRSTS = [next(iter(module.TRICKS)) for module in (loops, names, parts, said)]
"""One of each kind."""

TRICKS = loops.TRICKS | names.TRICKS | parts.TRICKS | said.TRICKS
