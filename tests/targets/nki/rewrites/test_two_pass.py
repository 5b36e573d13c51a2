"""Two passes: an online softmax finds its maximum first, and rescales nothing."""

from __future__ import annotations

import numpy as np
import pytest

from targets.nki.rewrites.explore import explore_rewrites
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from tests.support.kernels import HEADER, TARGET, Sample, relative_error

KERNEL = """
@nki.jit
def kernel(x):
    out = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    peak = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=peak, value={first})
    total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=total, value={start})
    for j in nl.affine_range(4):
        t = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[:, j * 64 : (j + 1) * 64])
        mine = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        new = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        scale = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        e = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        s = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        {body}
    {after}
    nisa.dma_copy(dst=out, src=total)
    return out
"""
REDUCE = "nisa.tensor_reduce(dst=mine, op=nl.maximum, data=t, axis=1)"
UPDATE = "nisa.tensor_tensor(dst=new, data1=peak, data2=mine, op=nl.maximum)"
CHANGE = "nisa.tensor_tensor(dst=scale, data1=peak, data2=new, op=nl.subtract)"
POWER = "nisa.activation(dst=scale, op=nl.exp, data=scale)"
SHIFT = "nisa.tensor_scalar(dst=e, data=t, op0=nl.subtract, operand0=new)"
EXP = "nisa.activation(dst=e, op=nl.exp, data=e)"
SUM = "nisa.tensor_reduce(dst=s, op=nl.add, data=e, axis=1)"
RESCALE = "nisa.tensor_tensor(dst=total, data1=total, data2=scale, op=nl.multiply)"
ADD = "nisa.tensor_tensor(dst=total, data1=total, data2=s, op=nl.add)"
KEEP = "nisa.tensor_copy(dst=peak, src=new)"
PLAIN = (REDUCE, UPDATE, CHANGE, POWER, SHIFT, EXP, SUM, RESCALE, ADD, KEEP)
LOG = "nisa.activation(dst=total, op=nl.log, data=total)"
LOG_SUM = f"{LOG}\n    nisa.tensor_tensor(dst=total, data1=total, data2=peak, op=nl.add)"


def log_sum(x):
    return np.log(np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)) + x.max(1, keepdims=True)


def sample(body=PLAIN, after=LOG_SUM, meaning=log_sum, first="-1e30", start="0.0"):
    text = KERNEL.format(body="\n        ".join(body), after=after, first=first, start=start)
    return Sample(HEADER + text, ((128, 256),), meaning)


def rewritten(made):
    """Sources, and reasons against."""
    kernel = read_kernel(made.source, made.arguments, TARGET)
    children, refusals = explore_rewrites(kernel, made.arguments, TARGET, transforms=[TRANSFORMS["two_pass"]])
    return [child.source for child in children], refusals


def changed(**parts):
    """The plain body with some of its lines replaced, by their names; None leaves one out."""
    names = ("REDUCE", "UPDATE", "CHANGE", "POWER", "SHIFT", "EXP", "SUM", "RESCALE", "ADD", "KEEP")
    lines = [parts.get(name, line) for name, line in zip(names, PLAIN, strict=True)]
    return tuple(line for line in lines if line is not None)


NEGATED = {
    "REDUCE": "nisa.tensor_reduce(dst=mine, op=nl.maximum, data=t, axis=1, negate=True)",
    "UPDATE": "nisa.tensor_tensor(dst=new, data1=mine, data2=peak, op=nl.minimum)",
    "CHANGE": "nisa.tensor_tensor(dst=scale, data1=new, data2=peak, op=nl.subtract)",
    "SHIFT": None,
    "EXP": "nisa.activation_reduce(dst=e, op=nl.exp, data=t, bias=new, reduce_op=nl.add, reduce_res=s)",
    "SUM": None,
}
SCALE_AND_ADD = "nisa.{}(dst=total, data=total, op0=nl.multiply, operand0=scale, op1=nl.add, operand1=s)"
FUSED = {
    "RESCALE": None,
    "ADD": SCALE_AND_ADD.format("tensor_scalar"),
}
COMBINED = {
    "RESCALE": None,
    "ADD": SCALE_AND_ADD.format("scalar_tensor_tensor"),
}
IN_PLACE = {
    "REDUCE": f"{REDUCE}\n        nisa.tensor_copy(dst=new, src=peak)",
    "UPDATE": "nisa.tensor_tensor(dst=peak, data1=peak, data2=mine, op=nl.maximum)",
    "CHANGE": "nisa.tensor_tensor(dst=scale, data1=new, data2=peak, op=nl.subtract)",
    "SHIFT": "nisa.tensor_scalar(dst=e, data=t, op0=nl.subtract, operand0=peak)",
    "KEEP": None,
}


@pytest.mark.parametrize("parts", [{}, FUSED, COMBINED, IN_PLACE])
def test_the_maximum_is_found_in_a_loop_of_its_own(parts):
    made = sample(changed(**parts))
    sources, refusals = rewritten(made)
    assert (len(sources), refusals) == (2, [])
    for source in sources:
        assert relative_error(made, source) < 1e-6
        assert source.count("for j in") == 2
        assert "nl.multiply" not in source
    kept, again = sources
    assert kept.count("src=x[") == 1
    assert again.count("src=x[") == 2


def test_a_negated_maximum_is_a_running_minimum():
    after = f"{LOG}\n    nisa.tensor_tensor(dst=total, data1=total, data2=peak, op=nl.subtract)"
    made = sample(changed(**NEGATED), after, first="1e30")
    sources, _ = rewritten(made)
    assert len(sources) == 2
    assert all(relative_error(made, source) < 1e-6 for source in sources)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"RESCALE": None}, "otherwise than to scale"),
        ({"SHIFT": "nisa.tensor_copy(dst=e, src=t)"}, "otherwise than to scale"),
        (
            {"POWER": "nisa.activation(dst=scale, op=nl.exp, data=scale, scale=2.0)"},
            "otherwise than to scale",
        ),
        ({"EXP": "nisa.activation(dst=e, op=nl.tanh, data=e)"}, "otherwise than to scale"),
        ({"SUM": "nisa.tensor_reduce(dst=s, op=nl.maximum, data=e, axis=1)"}, "otherwise than to scale"),
        ({"KEEP": "nisa.tensor_copy(dst=peak, src=mine)"}, "is no running maximum"),
        ({"POWER": None}, "otherwise than to scale"),
    ],
)
def test_other_recurrences_stay(parts, reason):
    sources, refusals = rewritten(sample(changed(**parts)))
    assert sources == []
    assert reason in refusals[0]


def test_a_sum_that_does_not_begin_with_zero_stays():
    sources, refusals = rewritten(sample(start="1.0"))
    assert sources == []
    assert "does not begin with zero" in refusals[0]
