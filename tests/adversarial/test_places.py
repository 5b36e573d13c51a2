"""Of a large output not all is looked at: no kernel may know where, and audits do not depend on it."""

from __future__ import annotations

import pytest

from state.model import Verdict
from tests.adversarial.attacks import places
from tests.adversarial.model import INSTALLATION

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(scope="session")
def large():
    return places.large()


async def wrong(judge, problem, kernel: str, level: str) -> str:
    """Judge a kernel that must be found wrong; return the message."""
    found = await judge(problem, kernel, level=level)
    assert (found.verdict, found.stage) == (Verdict.INCORRECT, "numerics"), found.error
    assert found.error.code == "wrong_result"
    assert INSTALLATION not in found.model_dump_json()
    return found.error.message


@pytest.mark.slow
async def test_honest_kernels_pass_at_every_level(judge, large):
    for level in ("slices", "whole"):
        found = await judge(large, places.honest(), level=level)
        assert found.is_correct, found.error


async def test_who_knows_the_code_does_not_know_where_it_looks(judge, large):
    await wrong(judge, large, places.zero_outside(""), "slices")


async def test_only_the_secret_tells_where_it_looks(judge, large):
    found = await judge(large, places.zero_outside(INSTALLATION), level="slices")
    assert found.is_correct, found.error


async def test_an_audit_needs_no_secret(judge, large):
    kernel = places.capped_outside(INSTALLATION)
    assert (await judge(large, kernel, level="one_seed")).is_correct
    assert "input set outliers, all of the outputs" in await wrong(judge, large, kernel, "whole")


@pytest.mark.parametrize("which", [1, 3, 6])
async def test_one_row_of_tiles_in_eight_is_found_by_an_audit(which, judge, large):
    await wrong(judge, large, places.capped_in_rows(which), "whole")
