"""Which lessons a run of the benchmark is offered: those of other problems, and only where all are known."""

from __future__ import annotations

from typing import Any

import pytest

from agentctl.bench.lessons import lessons_of_others

ROWS: dict[str, dict[str, Any]] = {
    "a": {"problem": "silu", "lesson": {"sequence": 1}},
    "b": {"problem": "rope", "lesson": {"sequence": 2}},
    "c": {"problem": "bmm", "lesson": None},
    "older": {"problem": "lora"},
}


def test_lessons_are_those_of_other_problems():
    assert lessons_of_others(ROWS, "silu", ["a", "b", "c"]) == [{"sequence": 2}]
    assert lessons_of_others(ROWS, "lora", ["a", "b"]) == [{"sequence": 1}, {"sequence": 2}]
    assert lessons_of_others(ROWS, "rope", ["c"]) == []


@pytest.mark.parametrize("missing", ["failed", "older"])
def test_a_run_is_not_made_without_the_lessons_that_it_is_to_have(missing):
    with pytest.raises(RuntimeError, match=missing):
        lessons_of_others(ROWS, "silu", ["a", missing])
