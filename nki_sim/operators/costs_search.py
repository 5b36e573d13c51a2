"""Costs of instructions that select, search and gather, from the documented formulas.

Where the documents give none, the cost is assumed [I]: GpSimd's start plus one cycle per element of a
partition.
"""

from __future__ import annotations

from nki_sim.forms import Form
from nki_sim.operators.costs import Cost, elementwise
from nki_sim.operators.rules.search import valid_indices
from nki_sim.targets import Target

_GATHER_START, _GATHER_T, _WORD_BYTES = 28, 4, 4


def copy_predicated(form: Form, target: Target) -> Cost:
    """tensor_copy_predicated: N with src or predicate in PSUM, else 2N."""
    inputs = (form.operand("src"), form["predicate"])
    in_psum = any(item is not None and item.buffer == "psum" for item in inputs)
    return elementwise(form, target, factor=1.0 if in_psum else 2.0)


def _gpsimd_cost(cycles: float, target: Target) -> Cost:
    return Cost((target.gpsimd_overhead_cycles + cycles) / target.clock_ghz("gpsimd"))


def local_gather(form: Form, target: Target) -> Cost:
    """150 + indices * (7 + words per index): 28 cycles for each 4 indices, and one for each 4 bytes [I].

    The documents divide the elements by C = ((28 + t e) / (t e)) / min(4 / itemsize, e), with e elements per
    index and t = 4. C grows as accesses scatter, so it can only be the cycles that an element takes; divided
    by it, one element per index would pass at 8 elements a cycle. This cost is not below elements * C for any
    type and e, and grows with both.
    """
    run = form.param("num_elem_per_idx")
    e = run if isinstance(run, int) else 1
    words = -(-e * form["src_buffer"].itemsize // _WORD_BYTES)
    return _gpsimd_cost(valid_indices(form) * (_GATHER_START / _GATHER_T + words), target)


def nc_n_gather(form: Form, target: Target) -> Cost:
    """As many groups of instructions as documented, each with a start and a cycle per element [I]."""
    size = form["indices"].free
    groups = -(-size // target.gather_group_elements)
    return _gpsimd_cost((groups - 1) * target.gpsimd_overhead_cycles + size, target)


def topk(form: Form, target: Target) -> Cost:
    """4 n + k."""
    n = form.param("n")
    assert isinstance(n, int)
    return _gpsimd_cost(4 * n + form["val_dst"].free, target)
