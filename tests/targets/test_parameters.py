"""The parameter proposer: what comments list, in which order it is tried, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent_core.effects import ImplementRequest, LearningContext, PlanRequest
from agent_core.roles import RoleError
from state.model import (
    Attempt,
    Benchmark,
    Candidate,
    LatencyBounds,
    ProblemRef,
    Verdict,
    digest_of,
)
from targets.parameters import ParameterError, create, find_parameters, set_parameters
from targets.registry import load_target

KERNEL = """
// tune: flags in "-O2", "-O3 -ffast-math"
// flags: -O2
// tune: TILE in 8, 16, 32
#define TILE 16
// tune: ROWS in 1, 2
static const int ROWS = 1;
void kernel(const float *x, float *out) { out[0] = x[0]; }
"""


def _make_plan_request(number: int, attempts: tuple[Attempt, ...] = ()) -> tuple[PlanRequest, Any]:
    context = LearningContext(memory=(), reflections=(), attempts=attempts, credits={})
    data = context.model_dump_json().encode()
    blobs = {digest_of(data): data, digest_of(KERNEL.encode()): KERNEL.encode()}
    language = load_target("x86").language
    parent = Candidate(
        id="r0.b0.p0.k0.f0", parent=None, lineage="a", round=0, source=digest_of(KERNEL.encode()),
        code=language.code_digest(KERNEL.encode()), technique=None, title="", profile=None, bottleneck=None,
        benchmark=Benchmark(latency_ms=1.0, lo_ms=0.9, hi_ms=1.1, predicted=False, samples=3),
    )  # fmt: skip
    request = PlanRequest(
        key=f"r1.b0.p{number}.k0.f0.planner", role="planner", draw=1, plans=3, size="reduced", target="x86",
        problem=ProblemRef(name="p", digest=digest_of(b""), files={}), parent=parent, best_ms=1.0,
        bounds=LatencyBounds(plain_ms=0.1, tight_ms=0.1), context=digest_of(data),
    )  # fmt: skip
    return request, blobs.__getitem__


def _plan(number: int, attempts: tuple[Attempt, ...] = ()) -> str:
    request, read = _make_plan_request(number, attempts)
    return asyncio.run(create().plan(request, read)).plan.title


def _attempt(site: str, values: dict[str, str], speedup: float | None) -> Attempt:
    code = load_target("x86").language.code_digest(set_parameters(KERNEL, values).encode())
    return Attempt(
        candidate="r1.b0.p0.k0.f0", parent="r0.b0.p0.k0.f0", technique="parameter", site=site, code=code,
        verdict=Verdict.CORRECT, error=None, speedup=speedup, round=1,
    )  # fmt: skip


def test_comments_list_the_settings_of_a_kernel() -> None:
    found = {one.name: (one.values, one.current) for one in find_parameters(KERNEL)}
    assert found == {
        "flags": (("-O2", "-O3 -ffast-math"), "-O2"),
        "TILE": (("8", "16", "32"), "16"),
        "ROWS": (("1", "2"), "1"),
    }


def test_values_are_set_where_they_are_defined_and_nowhere_else() -> None:
    changed = set_parameters(KERNEL, {"TILE": "32", "flags": "-O3 -ffast-math", "ROWS": "2"})
    lines = set(changed.split("\n")) - set(KERNEL.split("\n"))
    assert lines == {"#define TILE 32", "// flags: -O3 -ffast-math", "static const int ROWS = 2;"}


def test_single_changes_come_first_then_pairs_each_once() -> None:
    titles = [_plan(number) for number in range(9)]
    assert titles[:4] == [
        "flags = -O2 -> -O3 -ffast-math", "TILE = 16 -> 8", "ROWS = 1 -> 2", "TILE = 16 -> 32",
    ]  # fmt: skip
    assert all(title.count(" -> ") == 2 for title in titles[4:])
    assert len(set(titles)) == 9


def test_what_was_tried_is_not_tried_again_and_what_gained_comes_first() -> None:
    tried = (_attempt("ROWS", {"ROWS": "2"}, 1.4),)
    assert [_plan(number, tried) for number in range(2)] == [
        "flags = -O2 -> -O3 -ffast-math",
        "TILE = 16 -> 8",
    ]
    gained = (_attempt("TILE", {"TILE": "8"}, 1.4),)
    assert [_plan(number, gained) for number in range(3)] == [
        "flags = -O2 -> -O3 -ffast-math",
        "ROWS = 1 -> 2",
        "TILE = 16 -> 32",
    ]
    untried = ({"flags": "-O3 -ffast-math"}, {"TILE": "8"}, {"TILE": "32"}, {"ROWS": "2"})
    lost = tuple(_attempt(next(iter(values)), values, 0.9) for values in untried[:1])
    won = tuple(_attempt(next(iter(values)), values, 1.2) for values in untried[1:])
    assert _plan(0, (*lost, *won)).startswith("TILE")


def test_when_everything_was_tried_it_says_so() -> None:
    with pytest.raises(RoleError, match="nothing_left"):
        _plan(9)


def test_it_makes_the_kernel_of_its_plan() -> None:
    request, read = _make_plan_request(1)
    plan = asyncio.run(create().plan(request, read)).plan
    answer = asyncio.run(
        create().implement(
            ImplementRequest(
                key="r1.b0.p1.k0.f0.executor",
                role="executor",
                draw=1,
                problem=request.problem,
                size="reduced",
                target="x86",
                parent=request.parent,
                plan=plan,
            ),
            read,
        )
    )
    assert answer.source == set_parameters(KERNEL, {"TILE": "8"})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("// tune: TILE in 1, 2\n", "has no definition"),
        ("# tune: TILE in 1\n# tune: TILE in 2\nTILE = 1\n", "given twice"),
        ("// tune: TILE in ,\n#define TILE 1\n", "lists no values"),
    ],
)
def test_a_wrong_comment_is_one_clear_error(source: str, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        find_parameters(source)


def test_other_languages_comments_work_too() -> None:
    (found,) = find_parameters("# tune: TILE in 1, 2\nTILE = 2\n")
    assert (found.values, found.current) == (("1", "2"), "2")
