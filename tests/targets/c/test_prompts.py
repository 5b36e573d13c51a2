"""The examples that models are shown are kernels that the judge finds correct, and facts are this
machine's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from seeds import build_problem
from state.model import Verdict
from targets.c.machine import (
    CpuFacts,
    CpuRates,
    nominal_rates,
    read_cpu_facts,
    render_architecture,
)
from tests.targets.c.conftest import Judge

EXAMPLES = Path(__file__).parents[3] / "targets/c/prompts/c/examples"
_HEAD = """
name = "example"
formula = "see the reference"
rel_l2 = 1e-5
seeds = [0, 7]
shape_generic = true
"""
_ROW_SUMS = """
sizes = { full = { M = 64, N = 300 }, reduced = { M = 32, N = 300 } }
work = { other_flops = "M * N" }
[[inputs]]
name = "x"
shape = ["M", "N"]
[[outputs]]
name = "out"
shape = ["M"]
"""
_PRODUCT = """
sizes = { full = { M = 64, N = 300, K = 40 }, reduced = { M = 33, N = 70, K = 40 } }
work = { matmul_flops = "2 * M * N * K" }
[[inputs]]
name = "lhs"
shape = ["M", "K"]
[[inputs]]
name = "rhs"
shape = ["K", "N"]
[[outputs]]
name = "out"
shape = ["M", "N"]
"""
PROBLEMS = {
    "row_sums": (
        _ROW_SUMS,
        "def reference(x):\n    return x.astype('float64').sum(axis=1).astype('float32')\n",
    ),
    "register_block": (
        _PRODUCT,
        "def reference(a, b):\n    return (a.astype('float64') @ b.astype('float64')).astype('float32')\n",
    ),
}


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.md")))
def test_examples_are_correct_kernels(judge: Judge, name: str) -> None:
    (source,) = re.findall(r"```c\n(.*?)```", (EXAMPLES / f"{name}.md").read_text(), re.DOTALL)
    spec, reference = PROBLEMS[name]
    files = {
        "problem.toml": (_HEAD + spec).encode(),
        "reference.py": reference.encode(),
        "kernel.c": source.encode(),
    }
    found = judge(source, problem=build_problem(files))
    assert found.verdict is Verdict.CORRECT, found.error


def test_models_are_told_what_this_machine_is() -> None:
    facts = CpuFacts("A CPU", "x86_64", 4, ("avx2", "fma"), (("L1", 32 << 10), ("L2", 2 << 20)), 3.0)
    text = render_architecture(facts, CpuRates(20.0, 90.0, 45.0))
    assert "A CPU" in text
    assert "| float32 lanes of a vector register | 8 |" in text
    assert "L1 32 KiB, L2 2 MiB" in text
    assert "(measured) | 20 GB/s" in text
    assert "estimated" in render_architecture(facts, nominal_rates(facts))
    assert read_cpu_facts().cores >= 1
