"""The shipped folder: RISC-V kernels are compiled, run by qemu and judged, and their instructions counted.

The slow lane judges some of the honest and hostile kernels, drawn by a seed. All of them:

    SWEEP=all pytest --all tests/targets/folders/test_riscv64.py
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from state.model import Verdict
from targets.folders.target import SHIPPED
from tests.support.sweeps import sample_sweep
from tests.targets.c.kernels import HONEST, HOSTILE, PLAIN, right_verdicts
from tests.targets.folders.conftest import FolderJudge

pytestmark = [
    pytest.mark.needs("riscv64-linux-gnu-gcc", package="gcc-riscv64-linux-gnu libc6-dev-riscv64-cross"),
    pytest.mark.needs("qemu-riscv64", package="qemu-user"),
]

QUICK = frozenset({"does_nothing", "reads_before_its_input", "writes_to_its_input", "exits", "forks"})
OF_OTHER_MACHINES = re.compile(
    r"immintrin|arm_neon|x86|-m(?:avx|prefer)|cpuid|rdtsc|SYS_|syscall|-fopenmp|c\+\+"
)


SEED = 64
ALSO_RIGHT = {"a_thread_without_asking": "incorrect"}
"""Verdicts that are right here: emulators need threads, so a kernel's are not denied, and this one then
computes nothing."""


def _select_kernels(kernels: dict[str, str], sampled: int) -> list[Any]:
    """Return the quick kernels, and so many of the others, which are slow."""
    names = [name for name, source in kernels.items() if not OF_OTHER_MACHINES.search(source)]
    slow = sample_sweep([name for name in names if name not in QUICK], sampled, seed=SEED)
    quick = [name for name in names if name in QUICK]
    return [*quick, *(pytest.param(name, marks=pytest.mark.slow) for name in slow)]


def test_instructions_are_counted_and_latencies_called_predicted(judge: FolderJudge) -> None:
    found, again = judge("riscv64", PLAIN), judge("riscv64", PLAIN)
    assert found.verdict is Verdict.CORRECT, found.error
    assert found.evaluation.benchmark.predicted
    assert found.counters["instructions"] == pytest.approx(again.counters["instructions"], rel=1e-3)
    assert found.latency_ms == pytest.approx(found.counters["instructions"] * 1e-6)
    assert "riscv64 1 (" in found.evaluation.toolchain


def test_the_example_is_correct_and_its_vectors_save_instructions(judge: FolderJudge) -> None:
    text = (SHIPPED / "riscv64/prompts/examples/strip_loop.md").read_text()
    (source,) = re.findall(r"```c\n(.*?)```", text, re.DOTALL)
    found = judge("riscv64", source)
    assert found.verdict is Verdict.CORRECT, found.error
    assert found.counters["instructions"] < judge("riscv64", PLAIN).counters["instructions"] / 10


@pytest.mark.slow
@pytest.mark.parametrize("name", _select_kernels(HONEST, 3))
def test_honest_kernels_are_correct(judge: FolderJudge, name: str) -> None:
    found = judge("riscv64", HONEST[name])
    assert found.verdict is Verdict.CORRECT, found.error


@pytest.mark.parametrize("name", _select_kernels(HOSTILE, 7))
def test_hostile_kernels_get_the_right_verdict(judge: FolderJudge, name: str) -> None:
    right = right_verdicts(HOSTILE[name])
    # The jail denies the emulator the signals by which it would end itself.
    allowed = right | {"timeout"} if "runtime_error" in right else right
    allowed |= {ALSO_RIGHT[name]} if name in ALSO_RIGHT else set()
    found = judge("riscv64", HOSTILE[name])
    assert found.verdict.value in allowed, (found.verdict, found.error)


def test_work_in_a_constructor_or_a_first_call_is_no_part_of_a_count(judge: FolderJudge) -> None:
    more = "static volatile int sink;\n__attribute__((constructor)) static void start(void)\n{\n"
    more += "    for (int i = 0; i < 1000000; i++)\n        sink = i;\n}\n"
    plain, busy = judge("riscv64", PLAIN), judge("riscv64", more + PLAIN)
    assert busy.counters["instructions"] == pytest.approx(plain.counters["instructions"], rel=0.01)
