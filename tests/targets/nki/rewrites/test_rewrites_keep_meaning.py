"""The duty of every rewrite: it refuses with a reason, or the kernel still computes the same."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import seeds
from targets.nki.rewrites.explore import RewrittenKernel, explore_rewrites
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from tests.support.kernels import TARGET, Sample, draw_samples, relative_error
from tests.support.sweeps import parametrize_sweep, scale_examples

TOLERANCE = 2e-5
# No shrinking: an example takes up to a second, and the failing source is in the message as it is.
heavy = settings(
    max_examples=scale_examples(20),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
FORMULAS = {
    "matmul": lambda a, b: a @ b,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "rmsnorm_matmul": lambda x, w: (x / np.sqrt((x * x).mean(axis=1, keepdims=True))) @ w,
}


def children_of(sample: Sample, source: str, names: list[str]) -> list[RewrittenKernel]:
    """The children by some transformations; every refusal must say why."""
    transforms = [TRANSFORMS[name] for name in names]
    kernel = read_kernel(source, sample.arguments, TARGET)
    children, refusals = explore_rewrites(kernel, sample.arguments, TARGET, transforms=transforms)
    for reason in refusals:
        assert len(reason.partition(": ")[2].split()) >= 3, reason
    return children


@given(draw_samples())
@settings(heavy, max_examples=scale_examples(30))
def test_the_generator_means_what_it_says(sample: Sample):
    assert relative_error(sample, sample.source) < 10 * TOLERANCE  # some chains cancel a digit


@given(draw_samples(), st.permutations(sorted(TRANSFORMS)), st.data())
@heavy
def test_a_walk_of_rewrites_keeps_the_meaning(sample: Sample, names: list[str], data: st.DataObject):
    """Up to four rewrites in a row, each by the next transformation in the order drawn that applies."""
    source, steps = sample.source, []
    # What the drawn kernel cancels, a rewritten one may cancel a little worse.
    limit = max(TOLERANCE, 4 * relative_error(sample, source))
    for name in names:
        children = children_of(sample, source, [name])
        if not children or len(steps) == 4:
            continue
        child = data.draw(st.sampled_from(children))
        steps.append((name, child.site, dict(child.choice)))
        limit += 10 * child.transform.rounding
        assert relative_error(sample, child.source) < limit, f"{steps}\n{source}\n->\n{child.source}"
        source = child.source


def seed_sample(name: str) -> Sample:
    problem = seeds.load_problem(name)
    dims = problem.spec.dims("reduced")
    shapes = tuple(tuple(item.resolve_shape(dims)) for item in problem.spec.inputs)
    return Sample(problem.kernel, shapes, FORMULAS[name])


@parametrize_sweep("name", sorted(FORMULAS), quick=["silu"])
def test_every_rewrite_of_a_seed_keeps_its_meaning(name: str):
    sample = seed_sample(name)
    children = children_of(sample, sample.source, sorted(TRANSFORMS))
    assert len({child.transform.id for child in children}) >= 3
    for child in children:
        wrong = f"{child.transform.id} {child.site} {child.choice}\n{child.source}"
        assert relative_error(sample, child.source) < TOLERANCE, wrong


@parametrize_sweep("name", sorted(FORMULAS), quick=["silu"])
def test_the_same_kernel_gets_the_same_rewrites(name: str):
    sample = seed_sample(name)
    first, second = (children_of(sample, sample.source, sorted(TRANSFORMS)) for _ in range(2))
    assert [child.source for child in first] == [child.source for child in second]
