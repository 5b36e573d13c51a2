"""Problems whose arrays are bfloat16, which NumPy's files do not know by name."""

from __future__ import annotations

import pytest

import seeds
from state.model import Level, Verdict
from tests.support.sweeps import parametrize_sweep


@pytest.fixture
def narrow(bench):
    """The problem silu in bfloat16, inputs and outputs."""
    files = dict(seeds.load_problem("silu").files)
    text = (
        files["problem.toml"].decode().replace("2e-5", "1e-2").replace('"N"]\n', '"N"]\ndtype = "bfloat16"\n')
    )
    assert text.count("bfloat16") == 2
    return bench(seeds.build_problem({**files, "problem.toml": text.encode()}))


@parametrize_sweep("level", [Level.SLICES, Level.WHOLE], quick=[Level.WHOLE])
async def test_a_right_kernel_is_found_right(narrow, evaluator, level):
    answer = await evaluator.evaluate(narrow.request(level=level), narrow.blobs)
    assert answer.evaluation.verdict is Verdict.CORRECT, answer.evaluation.error


async def test_a_wrong_one_is_found_wrong(narrow, evaluator):
    wrong = narrow.kernel.replace("scale=-1.0", "scale=-1.2")
    answer = await evaluator.evaluate(narrow.request(wrong, level=Level.WHOLE), narrow.blobs)
    assert answer.evaluation.verdict is Verdict.INCORRECT
    assert answer.evaluation.error.code == "wrong_result"
