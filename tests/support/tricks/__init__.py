"""Kernels that were built to be rewritten wrongly, each of which once was or might have been."""

from tests.support.tricks import loops, names, parts, said

TRICKS = loops.TRICKS | names.TRICKS | parts.TRICKS | said.TRICKS
