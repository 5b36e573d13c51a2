"""What a kernel's author wrote above instructions stays where these become one."""

from __future__ import annotations

import pytest

from targets.nki.rewrites.explore import explore_rewrites
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from tests.support.kernels import HEADER, TARGET, Sample

SOURCE = f"""{HEADER}
@nki.jit
def kernel(x):
    out = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.shared_hbm)
    a = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x)
    half = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.sbuf)

    # Halve first: the sum of squares would be too large.
    nisa.tensor_scalar(dst=half, data=a, op0=nl.multiply, operand0=0.5)
    grown = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.sbuf)
    # Then grow.
    nisa.activation(dst=grown, op=nl.exp, data=half)
    total = nl.ndarray((128, 1), dtype=x.dtype, buffer=nl.sbuf)
    # The sum of each row.
    nisa.tensor_reduce(dst=total, op=nl.add, data=grown, axis=1)
    nisa.tensor_scalar(dst=grown, data=grown, op0=nl.subtract, operand0=total)
    nisa.dma_copy(dst=out, src=grown)
    return out
"""
MADE = Sample(SOURCE, ((128, 256),), lambda x: x)


@pytest.mark.parametrize(
    ("entry", "notes"),
    [
        ("fuse", ["# Halve first: the sum of squares would be too large.", "# Then grow."]),
        ("fuse_reduction", ["# Then grow.", "# The sum of each row."]),
    ],
)
def test_one_instruction_has_the_comments_of_both(entry: str, notes: list[str]):
    kernel = read_kernel(MADE.source, MADE.arguments, TARGET)
    children, _ = explore_rewrites(kernel, MADE.arguments, TARGET, transforms=[TRANSFORMS[entry]])
    assert children
    for child in children:
        lines = [line.strip() for line in child.source.splitlines()]
        first = lines.index(notes[0])
        assert lines[first : first + 2] == notes
        assert lines[first + 2].startswith("nisa.activation"), child.source
