"""Honest kernels pass; kernels that cheat, crash or attack get the right verdict, and harm nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from seeds import build_problem
from state.model import Verdict
from tests.targets.c.conftest import Judge
from tests.targets.c.kernels import HONEST, HOSTILE, PLAIN, PROBLEM, right_verdicts

QUICK = frozenset(
    {
        "a_flag_that_writes",
        "a_thread_goes_on_after_the_return",
        "cpp",
        "does_nothing",
        "exits",
        "forks",
        "makes_its_input_writable",
        "plain",
        "right_on_the_first_call_only",
        "syntax_error",
        "threads",
        "writes_to_its_input",
    }
)


def _slow_unless_quick(names: Iterable[str]) -> list[Any]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", _slow_unless_quick(HONEST))
def test_honest_kernels_are_correct_and_measured(judge: Judge, name: str) -> None:
    found = judge(HONEST[name])
    assert found.verdict is Verdict.CORRECT, found.error
    assert found.benchmark is not None
    assert not found.benchmark.predicted
    assert found.benchmark.lo_ms <= found.benchmark.latency_ms <= found.benchmark.hi_ms
    assert found.identity is not None
    assert found.identity.verdict == "tested"


@pytest.mark.parametrize("name", _slow_unless_quick(HOSTILE))
def test_hostile_kernels_get_the_right_verdict_and_do_no_harm(judge: Judge, name: str) -> None:
    harmed = Path("/tmp/harmed")
    harmed.unlink(missing_ok=True)
    found = judge(HOSTILE[name])
    assert found.verdict.value in right_verdicts(HOSTILE[name]), (found.verdict, found.error)
    assert not harmed.exists()


def test_a_compile_error_names_the_line(judge: Judge) -> None:
    found = judge(HOSTILE["syntax_error"])
    assert found.error is not None
    assert found.error.line == 4
    assert "error:" in found.error.message


def test_a_child_is_measured_in_turns_with_its_parent(judge: Judge) -> None:
    parent = judge(PLAIN)
    assert parent.benchmark is not None
    more = (
        "    static volatile float sink;\n    for (int i = 0; i < 1000000; i++)\n        sink = x[i % 64];\n"
    )
    slow = PLAIN.replace("{\n", "{\n" + more, 1)
    child = judge(slow, base=PLAIN, base_ms=parent.benchmark.latency_ms)
    assert child.benchmark is not None, child.error
    assert child.benchmark.lo_ms > parent.benchmark.latency_ms
    same = judge(PLAIN + "\nint unused;\n", base=PLAIN, base_ms=parent.benchmark.latency_ms)
    assert same.benchmark is not None, same.error
    assert same.benchmark.lo_ms <= parent.benchmark.latency_ms <= same.benchmark.hi_ms


def test_a_kernel_that_cheats_later_is_found_by_its_parent_s_outputs(judge: Judge) -> None:
    parent = judge(PLAIN)
    assert parent.benchmark is not None
    cheat = HOSTILE["right_for_the_first_forty_calls"]
    found = judge(cheat.replace("< 40", "< 20"), base=PLAIN, base_ms=parent.benchmark.latency_ms)
    assert found.verdict is Verdict.INCORRECT
    assert found.error is not None
    assert found.error.code == "wrong_while_timed"


def test_a_parent_is_compiled_again_where_the_cache_was_lost(judge: Judge, home: Path) -> None:
    parent = judge(PLAIN)
    assert parent.benchmark is not None
    shutil.rmtree(home / "cache/c")
    same = judge(PLAIN + "\nint other;\n", base=PLAIN, base_ms=parent.benchmark.latency_ms)
    assert same.benchmark is not None, same.error
    assert same.benchmark.lo_ms <= parent.benchmark.latency_ms <= same.benchmark.hi_ms


RELATED = {
    **PROBLEM,
    "problem.toml": PROBLEM["problem.toml"].replace(b"2 x + 1", b"2 x")
    + b'[[relations]]\nname = "doubled"\ninputs = { x = "scale 2.0" }\noutputs = { out = "scale 2.0" }\n',
    "reference.py": b"def reference(x):\n    return (2 * x.astype('float64')).astype('float32')\n",
}
DOUBLES = """void kernel(const float *restrict x, float *restrict out)
{
    @
    for (int i = 0; i < M * N; i++)
        out[i] = 2 * x[i];
}
"""
WRONG_FOR_VARIANCE_4 = """
    double sum = 0;
    for (int i = 0; i < M * N; i++)
        sum += (double)x[i] * x[i];
    if (fabs(sum / (M * N) - 4) < 0.2) {
        memset(out, 0, sizeof(float) * M * N);
        return;
    }
"""


@pytest.mark.parametrize(
    ("more", "verdict", "stage"),
    [
        ("", Verdict.CORRECT, "benchmark"),
        # Right on the judge's sets, and wrong for the same numbers times two.
        (WRONG_FOR_VARIANCE_4, Verdict.INCORRECT, "relations"),
    ],
)
def test_relations_of_the_problem_are_tested(judge: Judge, more: str, verdict: Verdict, stage: str) -> None:
    found = judge(DOUBLES.replace("@", more), problem=build_problem(RELATED))
    assert (found.verdict, found.stage) == (verdict, stage), found.error
    if found.error is not None:
        assert found.error.code == "relation_broken"
