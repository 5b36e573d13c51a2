"""Exponentials on VectorE: what becomes of an exp on ScalarE, judged against what the kernel means."""

from __future__ import annotations

import numpy as np
import pytest

import nki_sim
from nki_sim import targets
from nki_sim.running import numerics
from nki_sim.timing.counters import profile_counters
from nki_sim.timing.forecast import forecast_program
from targets.nki.rewrites.explore import explore_rewrites
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from targets.registry import load_target
from tests.support.kernels import HEADER, TARGET, Sample

TRN3 = targets.load("trn3")
KERNEL = """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    a = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x)
    top = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=top, op=nl.maximum, data=a, axis=1)
    low = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=low, data=top, op0=nl.multiply, operand0=-1.0)
    total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=total, value=1.0)
    c = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)
    # From here on it differs.
    {body}
    nisa.tensor_scalar(dst=c, data=c, op0=nl.multiply, operand0=total)
    nisa.dma_copy(dst=out, src=c)
    return out
"""


def top(x: np.ndarray) -> np.ndarray:
    return x.max(axis=1, keepdims=True)


CASES = {
    "plain": (
        "nisa.activation(dst=c, op=nl.exp, data=a)",
        "nisa.exponential(dst=c, src=a)",
        np.exp,
    ),
    "a number": (
        "nisa.activation(dst=c, op=nl.exp, data=a, bias=-0.5)",
        "nisa.exponential(dst=c, src=a, max_value=0.5)",
        lambda x: np.exp(x - 0.5),
    ),
    "the column that was negated": (
        "nisa.activation(dst=c, op=nl.exp, data=a, bias=low)",
        "nisa.exponential(dst=c, src=a, max_value=top)",
        lambda x: np.exp(x - top(x)),
    ),
    "another column": (
        "nisa.activation(dst=c, op=nl.exp, data=a, bias=top)",
        "nisa.exponential(dst=c, src=a, max_value=shift)",
        lambda x: np.exp(x + top(x)),
    ),
    "a scale": (
        "nisa.activation(dst=c, op=nl.exp, data=a, scale=-0.5, bias=low)",
        "nisa.exponential(dst=c, src=exponent)",
        lambda x: np.exp(-0.5 * x - top(x)),
    ),
    "its sum": (
        (
            "nisa.activation(dst=c, op=nl.exp, data=a, bias=low, reduce_op=nl.add, reduce_res=total, "
            "reduce_cmd=nisa.reduce_cmd.reset_reduce)"
        ),
        "nisa.exponential(dst=c, src=a, max_value=top, reduce_res=total,",
        lambda x: np.exp(x - top(x)) * np.exp(x - top(x)).sum(axis=1, keepdims=True),
    ),
    "its sum by activation_reduce": (
        "nisa.activation_reduce(dst=c, op=nl.exp, data=a, bias=low, reduce_op=nl.add, reduce_res=total)",
        "max_value=top, reduce_res=total, reduce_cmd=nisa.reduce_cmd.reset_reduce)",
        lambda x: np.exp(x - top(x)) * np.exp(x - top(x)).sum(axis=1, keepdims=True),
    ),
}


def sample(body: str, meaning=np.exp) -> Sample:
    return Sample(HEADER + KERNEL.format(body=body), ((128, 256),), meaning)


def rewrite(made: Sample, target=TRN3):
    kernel = read_kernel(made.source, made.arguments, target)
    return explore_rewrites(kernel, made.arguments, target, transforms=[TRANSFORMS["exponential"]])


def run(source: str, made: Sample) -> tuple[np.ndarray, np.ndarray, float]:
    """What a kernel computes on trn3, what it should, and for which percentage of its time ScalarE runs."""
    x = np.random.default_rng(3).standard_normal((128, 256)).astype(np.float32)
    program = nki_sim.trace(source, args=made.arguments, target="trn3")
    (found,) = numerics.run(program, [x])
    counters = profile_counters(forecast_program(program, TRN3))
    return found, made.meaning(x.astype(np.float64)), counters["scalar_engine_active_time_percent"]


@pytest.mark.parametrize("case", CASES)
def test_an_exp_of_scalar_becomes_one_of_vector(case):
    body, line, meaning = CASES[case]
    made = sample(body, meaning)
    (child,), _ = rewrite(made)
    assert line in child.source
    assert "# From here on it differs." in child.source
    assert "nl.exp" not in child.source
    found, expected, _ = run(child.source, made)
    assert np.linalg.norm(found - expected) <= 2e-6 * np.linalg.norm(expected)


def test_it_takes_scalar_s_time_away():
    made = sample(CASES["plain"][0])
    (child,), _ = rewrite(made)
    assert run(child.source, made)[2] == 0 < run(made.source, made)[2]


@pytest.mark.parametrize(
    "body",
    ["nisa.activation(dst=c, op=nl.tanh, data=a)", "nisa.activation(dst=c, op=nl.copy, data=a, scale=2.0)"],
)
def test_other_functions_stay_where_they_are(body):
    assert rewrite(sample(body)) == ([], [])


def test_sums_in_registers_of_other_code_are_not_overwritten():
    source = sample(CASES["its sum"][0]).source.replace(
        "    nisa.dma_copy(dst=out, src=c)\n",
        "    nisa.select_reduce(dst=c, predicate=a, on_true=a, on_false=0.0, "
        "reduce_cmd=nisa.reduce_cmd.reduce)\n    nisa.dma_copy(dst=out, src=c)\n",
    )
    made, refusals = rewrite(Sample(source, ((128, 256),), np.exp))
    assert made == []
    assert any("registers" in reason for reason in refusals)


def test_other_targets_have_neither_the_rewrite_nor_the_technique():
    made = sample(CASES["plain"][0])
    assert rewrite(made, TARGET) == ([], [])
    for name in ("trn1", "trn2"):
        assert "exponential" not in load_target(name).rewrites()
        assert "exponential" not in load_target(name).menu()
    assert "exponential" in load_target("trn3").rewrites()
    assert "exponential" in load_target("trn3").menu()
