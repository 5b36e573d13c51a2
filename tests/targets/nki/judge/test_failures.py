"""How an error of the simulator becomes a verdict."""

from __future__ import annotations

import pytest

from nki_sim.errors import KernelError, LimitError
from state.model import Verdict
from targets.nki.judge.failures import reject_kernel_error


def test_what_a_kernel_says_moves_no_cursor() -> None:
    said = "no\x1b[2J\x00\r\u202e\ud800\ufeff but grün\nand on"
    rejected = reject_kernel_error(Verdict.COMPILE_ERROR, KernelError("kernel_exception", said, 3, said))
    shown = r"no\x1b[2J\x00\r\u202e\ud800\ufeff but grün" + "\nand on"
    assert rejected.error.message == rejected.error.hint == str(rejected) == shown
    assert rejected.error.line == 3


@pytest.mark.parametrize(
    ("code", "verdict"), [("limit_work", Verdict.TIMEOUT), ("limit_memory", Verdict.COMPILE_ERROR)]
)
def test_a_limit_on_work_is_a_timeout(code: str, verdict: Verdict) -> None:
    assert reject_kernel_error(Verdict.COMPILE_ERROR, LimitError(code, "too much")).verdict is verdict
