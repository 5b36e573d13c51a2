"""Each tool on a real kernel, judged by the simulator; wrong calls are answered and never raised."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from agent_core.effects import LearningContext
from agent_core.roles import RoleError
from agent_core.tools.answers import MOST_CHARACTERS, MOST_WITH_MORE, ToolOutcome, ToolRefusal, render_outcome
from agent_core.tools.kernel_tools import CheckAnswer, EvaluateAnswer, KernelRefused
from agent_core.tools.registry import TOOLS, call_tool, list_tools
from agent_core.tools.rewrite_tools import ListRewritesAnswer
from agent_core.tools.workbench import Workbench
from state.model import Attempt, ErrorInfo, Experience, ExperienceKind, Verdict, digest_of
from tests.support.tool_bench import SimulatedLab, create_workbench

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lab(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SimulatedLab]:
    made = SimulatedLab(tmp_path_factory.mktemp("home"))
    yield made
    await made.aclose()


@pytest_asyncio.fixture(loop_scope="module")
async def bench(lab: SimulatedLab) -> Workbench:
    return await create_workbench(lab)


async def refusal(bench: Workbench, tool: str, **arguments: Any) -> ToolRefusal:
    outcome = await call_tool(bench, tool, arguments)
    assert isinstance(outcome.answer, ToolRefusal), outcome
    assert outcome.end is None
    return outcome.answer


SCALE = {"find": "scale=-1.0", "replace": "scale=1.0"}


async def test_the_documented_way_to_a_faster_kernel(bench):
    """list_rewrites, apply_rewrite, evaluate, submit: without writing a line."""
    listed = (await call_tool(bench, "list_rewrites", {"source": "v0"})).answer
    assert isinstance(listed, ListRewritesAnswer)
    first = listed.rewrites[0]
    await call_tool(bench, "apply_rewrite", {"source": "v0", "id": first.id, "params": first.params})
    judged = (await call_tool(bench, "evaluate", {"source": "v1"})).answer
    assert isinstance(judged, EvaluateAnswer)
    assert judged.gain > 1
    end = (await call_tool(bench, "submit", {"source": "v1", "title": "one instruction"})).end
    assert end is not None
    assert end.submitted is not None
    assert (end.submitted.source, end.submitted.title) == (bench.versions[1], "one instruction")


SECOND_NAME = {
    "find": "nisa.activation(dst=exp_neg, op=nl.exp, data=x_tile, scale=-1.0)",
    "replace": "again = x_tile\n            nisa.activation(dst=exp_neg, op=nl.exp, data=again, scale=-1.0)",
}


async def test_a_kernel_that_is_hard_to_read_may_be_written_anew_first(bench):
    """As runs raise the kernels of models and people."""
    listed = (await call_tool(bench, "list_rewrites", {"source": "v0", "edits": [SECOND_NAME]})).answer
    assert isinstance(listed, ListRewritesAnswer)
    first = listed.rewrites[0]
    assert first.id == "raise@kernel"
    assert "`x_tile` has a second name, `again`" in first.title
    made = await call_tool(bench, "apply_rewrite", {"source": "v1", "id": "raise@kernel"})
    assert "the same program, instruction by instruction" in render_outcome(made)
    judged = (await call_tool(bench, "evaluate", {"source": "v2"})).answer
    assert isinstance(judged, EvaluateAnswer)
    after = (await call_tool(bench, "list_rewrites", {"source": "v2"})).answer
    assert isinstance(after, ListRewritesAnswer)
    assert "raise" not in {one.technique for one in after.rewrites}
    assert "again = x_tile" not in bench.versions[2]


async def test_a_kernel_that_cannot_be_read_at_all_may_still_be_written_anew(bench):
    """Its loop is a `while`; only what it does can be read."""
    edits = [
        {
            "find": "    for i_m in nl.affine_range(m // TILE_M):",
            "replace": "    i_m = -1\n    while i_m < m // TILE_M - 1:\n        i_m += 1",
        },
    ]
    listed = (await call_tool(bench, "list_rewrites", {"source": "v0", "edits": edits})).answer
    assert isinstance(listed, ListRewritesAnswer)
    assert listed.rewrites[0].id == "raise@kernel"
    await call_tool(bench, "apply_rewrite", {"source": "v1", "id": "raise@kernel"})
    after = (await call_tool(bench, "list_rewrites", {"source": "v2"})).answer
    assert isinstance(after, ListRewritesAnswer)
    assert len(after.rewrites) > len(listed.rewrites)


async def test_a_kernel_is_not_written_anew_if_that_leaves_as_much_to_read(bench, monkeypatch):
    async def find_obstacles(source: str, place: object) -> tuple[str, ...]:
        return ("something",)

    monkeypatch.setattr(bench.rewriter, "find_obstacles", find_obstacles)
    listed = (await call_tool(bench, "list_rewrites", {"source": "v0"})).answer
    assert isinstance(listed, ListRewritesAnswer)
    assert "raise" not in {one.technique for one in listed.rewrites}
    answer = await refusal(bench, "apply_rewrite", source="v0", id="raise@kernel")
    assert answer.code == "does_not_apply"


@pytest.mark.parametrize("wrong", [{"id": "raise@kernel", "params": {"by": 1}}, {"id": "raise@i_m"}])
async def test_a_kernel_is_written_anew_as_a_whole(bench, wrong):
    edits = [SECOND_NAME]
    answer = await refusal(bench, "apply_rewrite", source="v0", edits=edits, **wrong)
    assert answer.code in {"unknown_technique", "unknown_rewrite"}


async def test_rewrites_are_listed_where_nothing_says_what_a_kernel_does(bench, monkeypatch):
    async def fail(source: str, topics: object) -> None:
        raise RoleError(ErrorInfo(code="worker_died", message="the worker died"))

    monkeypatch.setattr(bench.lab, "explain", fail)
    listed = (await call_tool(bench, "list_rewrites", {"source": "v0", "edits": [SECOND_NAME]})).answer
    assert isinstance(listed, ListRewritesAnswer)
    assert "raise" not in {one.technique for one in listed.rewrites}


async def test_a_kernel_that_breaks_a_rule_is_not_written_anew(bench):
    edits = [SECOND_NAME, {"find": "dst=denominator, data=exp_neg", "replace": "dst=denominator, data=x"}]
    listed = await call_tool(bench, "list_rewrites", {"source": "v0", "edits": edits})
    assert "raise@kernel" not in render_outcome(listed)


async def test_check_names_rule_line_and_hint(bench):
    edits = [{"find": "nisa.activation(", "replace": "nisa.activate("}]
    answer = (await call_tool(bench, "check", {"source": "v0", "edits": edits})).answer
    assert isinstance(answer, KernelRefused)
    assert answer.error is not None
    assert answer.error.line is not None
    assert "nisa.activate(" in answer.line
    assert "lookup" in answer.next


async def test_a_refusal_names_what_else_is_wrong_at_first_sight(bench):
    edits = [
        {"find": "nisa.activation(", "replace": "nisa.activate("},
        {"find": "nisa.reciprocal(dst=", "replace": "nisa.reciprocal(out="},
    ]
    outcome = await call_tool(bench, "check", {"source": "v0", "edits": edits})
    assert isinstance(outcome.answer, KernelRefused)
    (other,) = outcome.answer.further
    told = render_outcome(outcome)
    assert told.index("wrong as well:\n") < told.index(f"\n{other}\n")
    assert {"nisa.activate is unknown", "nisa.reciprocal takes no out="} <= {
        one for one in ("nisa.activate is unknown", "nisa.reciprocal takes no out=") if one in told
    }
    assert "dst=" in other


async def test_check_says_how_fast_a_kernel_is_predicted_to_be(bench):
    """What is no faster than v0 need not be evaluated: that costs a turn and a verdict."""
    slower = await call_tool(
        bench, "check", {"source": "v0", "edits": [{"find": "TILE_N = 1024", "replace": "TILE_N = 128"}]}
    )
    assert isinstance(slower.answer, CheckAnswer)
    assert slower.answer.gain is not None
    assert slower.answer.gain < 1
    assert f"{slower.answer.gain:.3f} times as fast as v0" in render_outcome(slower)
    assert "no faster than v0" in slower.answer.next
    same = await call_tool(bench, "check", {"source": "v0"})
    assert isinstance(same.answer, CheckAnswer)
    assert same.answer.gain is None


async def test_check_predicts_and_does_not_compare_outputs(bench):
    wrong = await call_tool(bench, "check", {"source": "v0", "edits": [SCALE]})
    assert isinstance(wrong.answer, CheckAnswer)
    assert wrong.answer.explanation.latency_ms is not None
    assert "evaluate" in wrong.answer.next
    assert wrong.judged is None


async def test_a_wrong_kernel_is_judged_and_cannot_be_submitted(bench):
    outcome = await call_tool(bench, "submit", {"source": "v0", "edits": [SCALE]})
    assert isinstance(outcome.answer, KernelRefused)
    assert outcome.end is None
    assert outcome.judged is not None
    assert outcome.judged.evaluation.verdict is Verdict.INCORRECT
    assert (await refusal(bench, "submit", source="v1")).code == "not_correct"
    assert (await refusal(bench, "submit", source="v0")).code == "nothing_changed"


async def test_profile_and_what_if_tell_topics(bench):
    told = render_outcome(await call_tool(bench, "profile", {"source": "v0", "detail": "critical_path"}))
    assert "nisa.reciprocal" in told
    free = render_outcome(await call_tool(bench, "what_if", {"source": "v0", "change": "dma"}))
    assert "dma free" in free
    assert "vector free" not in free
    assert "critical_path" in (await refusal(bench, "profile", source="v0", detail="speed")).next
    assert "dma free" in (await refusal(bench, "what_if", source="v0", change="warp")).next


async def test_compare_shows_the_change_and_the_gain(bench):
    edits = [{"find": "TILE_N = 1024", "replace": "TILE_N = 512"}]
    await call_tool(bench, "evaluate", {"source": "v0", "edits": edits})
    told = render_outcome(await call_tool(bench, "compare", {"a": "v0", "b": "v1"}))
    assert "+TILE_N = 512" in told
    assert "times as fast as v0" in told


@pytest.mark.parametrize(
    ("edits", "code"),
    [
        ([{"find": "nowhere", "replace": ""}], "edit_not_found"),
        ([{"find": "TILE_M", "replace": "TILE"}], "edit_not_unique"),
        ([{"find": "TILE_N = 1024", "replace": "TILE_N = 1024"}], "edit_changes_nothing"),
        ([{"old": "a", "new": "b"}], "bad_arguments"),
    ],
)
async def test_an_edit_that_does_not_fit_makes_no_version(bench, edits, code):
    assert (await refusal(bench, "check", source="v0", edits=edits)).code == code
    assert len(bench.versions) == 1


async def test_a_stale_version_is_named_with_those_there_are(bench):
    answer = await refusal(bench, "check", source="v7")
    assert (answer.code, "v0" in answer.next) == ("unknown_version", True)


@pytest.mark.parametrize(
    ("tool", "arguments", "code", "mends"),
    [
        ("evalute", "{}", "unknown_tool", "evaluate"),
        ("check", "{", "bad_json", "JSON object"),
        ("check", "[]", "bad_arguments", "source"),
        ("check", '{"sorce": "v0"}', "bad_arguments", "source"),
        ("lookup", '{"query": "zzzz"}', "nothing_found", "other words"),
        ("check", '{"source": ""}', "empty_source", "v0"),
        (
            "apply_rewrite",
            '{"source": "v0", "id": "tile_sise@TILE_N"}',
            "unknown_rewrite",
            "tile_size@TILE_N",
        ),
        ("recall", '{"query": "hoist"}', "nothing_found", "lookup"),
        ("history", "", "nothing_found", "recall"),
    ],
)
async def test_a_wrong_call_is_answered_with_what_mends_it(bench, tool, arguments, code, mends):
    outcome = await call_tool(bench, tool, arguments)
    assert isinstance(outcome.answer, ToolRefusal)
    assert outcome.answer.code == code
    assert mends in render_outcome(outcome)


async def test_a_failing_infrastructure_is_no_fault_of_the_kernel(bench, monkeypatch):
    async def fail(source: str) -> None:
        raise RoleError(ErrorInfo(code="worker_died", message="the worker died"))

    monkeypatch.setattr(bench.lab, "evaluate", fail)
    answer = await refusal(bench, "evaluate", source="v0")
    assert (answer.code, "no fault" in answer.next) == ("worker_died", True)


async def test_history_and_recall_read_what_the_run_learnt(lab):
    tried = Attempt(
        candidate="r1.b0.p0.k0.f0", parent="r0.b0.p0.k0.f0", technique="hoist", site="i_m", code=None,
        verdict=Verdict.CORRECT, error=None, speedup=1.25, round=1,
    )  # fmt: skip
    learnt = Experience(
        kind=ExperienceKind.POSITIVE, technique="widen_transfer", slow=digest_of(b"a"), fast=digest_of(b"b"),
        speedup=1.5, summary="one transfer of 4 KiB a partition instead of four", cites=(),
    )  # fmt: skip
    context = LearningContext(memory=(learnt,), reflections=(), attempts=(tried,), credits={})
    bench = await create_workbench(lab, context)
    assert "1.250 times" in render_outcome(await call_tool(bench, "history", {"query": "hoist"}))
    assert "4 KiB" in render_outcome(await call_tool(bench, "recall", {"query": "transfer partition"}))
    assert (await refusal(bench, "history", query="peel")).code == "nothing_found"


async def test_answers_are_short_unless_more_is_asked_for(bench):
    calls = [
        ("lookup", {"query": "transfer"}), ("check", {"source": "v0"}), ("evaluate", {"source": "v0"}),
        ("profile", {"source": "v0"}), ("list_rewrites", {"source": "v0"}),
    ]  # fmt: skip
    for tool, arguments in calls:
        short = render_outcome(await call_tool(bench, tool, arguments))
        long = render_outcome(await call_tool(bench, tool, {**arguments, "more": True}), more=True)
        assert len(short) <= MOST_CHARACTERS + 400, tool
        assert len(long) <= MOST_WITH_MORE + 400, tool


async def test_a_cut_answer_says_so():
    answer = ToolRefusal(code="x", message="line\n" * 2000, next="go on")
    assert "more: true" in render_outcome(ToolOutcome(answer))


async def test_schemas_are_json_and_describe_every_argument():
    for tool in TOOLS.values():
        schema = json.loads(json.dumps(tool.schema))
        assert schema["properties"].keys() | set(tool.untold) == tool.arguments.model_fields.keys()
        assert "$ref" not in json.dumps(schema)
        assert all(one.get("description") for one in schema["properties"].values()), tool.name
        assert tool.answer.model_json_schema()["type"] == "object"


async def test_a_target_offers_the_tools_that_it_has_parts_for(monkeypatch):
    from targets import registry
    from tests.support.toy_target import ToyTarget

    monkeypatch.setitem(registry._MODULES, "toy", "tests.support.toy_target")
    assert [tool.name for tool in list_tools("trn2")] == list(TOOLS)
    assert isinstance(registry.load_target("toy"), ToyTarget)
    offered = {tool.name for tool in list_tools("toy")}
    assert offered == set(TOOLS) - {"check", "profile", "what_if", "list_rewrites", "apply_rewrite"}
