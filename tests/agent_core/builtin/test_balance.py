"""Balance: several moves at once, none that breaks a rule, and nothing where nothing helps."""

from __future__ import annotations

from agent_core.builtin.estimate import estimate
from agent_core.builtin.explore import Child, explore
from agent_core.builtin.reader import read
from agent_core.builtin.transforms.catalogue import TRANSFORMS
from tests.support.kernels import ROWS, TARGET, TILE, Sample, error

POLYNOMIAL = (
    TILE.format("b"), "nisa.tensor_scalar(dst=b, data=a, op0=nl.multiply, operand0=2.0)",
    TILE.format("c"), "nisa.tensor_tensor(dst=c, data1=a, data2=b, op=nl.multiply)",
    TILE.format("d"), "nisa.tensor_tensor(dst=d, data1=c, data2=b, op=nl.multiply)",
    "nisa.tensor_tensor(dst=a, data1=d, data2=c, op=nl.add)",
)  # fmt: skip


def sample(*body: str) -> Sample:
    source = ROWS.format(body="\n        ".join(body))
    return Sample(source, ((512, 512),), lambda x: 4 * x**3 + 2 * x**2)


def balanced(made: Sample) -> tuple[dict[str, Child], list[str]]:
    kernel = read(made.source, made.arguments, TARGET)
    children, refusals = explore(kernel, made.arguments, TARGET, transforms=[TRANSFORMS["balance"]])
    return {str(child.choice["move"]): child for child in children}, refusals


def test_engines_share_what_one_of_them_did():
    made = sample(*POLYNOMIAL)
    found, _ = balanced(made)
    before = estimate(read(made.source, made.arguments, TARGET), TARGET).busy_ns["vector"]
    for child in found.values():
        assert error(made, child.source) < 1e-6
        assert (
            max(estimate(child.kernel, TARGET).busy_ns[name] for name in ("vector", "gpsimd")) < 0.7 * before
        )
    source = found["engines"].source
    assert "op0=nl.multiply, operand0=2.0, engine=nisa.engine.scalar)" in source
    assert "engine=nisa.engine.gpsimd" in source


def test_tiles_go_to_psum_where_that_helps():
    found, _ = balanced(sample(*POLYNOMIAL))
    source = found["engines and memories"].source
    assert "buffer=nl.psum" in source
    assert "a = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.sbuf)" in source


def test_nothing_moves_where_nothing_helps():
    made = sample("nisa.activation(dst=a, op=nl.exp, data=a)")
    assert balanced(made) == ({}, ["balance all instructions: no two moves together even out the engines"])


def test_integers_stay_where_they_are_exact():
    integers = [line.replace("nl.float32", "nl.int32") for line in POLYNOMIAL]
    found, _ = balanced(sample(*integers))
    assert all("engine=" not in child.source for child in found.values())
