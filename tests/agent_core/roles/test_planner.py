"""The planner of models: what it is told, what it takes for a plan, and what it refuses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from agent_core.effects import LearningContext
from agent_core.prompting import builtin_prompts
from agent_core.roles import RoleError
from agent_core.roles.llm import LlmRoles, PlannerOptions
from agent_core.roles.llm.planner import SHED_ORDER
from agent_core.roles.llm.prompt_values import words_of
from agent_core.roles.llm.techniques import helpful_techniques, techniques_by_id
from state.model import (
    Attempt,
    ErrorInfo,
    Experience,
    ExperienceKind,
    Plan,
    PredictionGrade,
    Reflection,
    TechniqueCredit,
    Verdict,
    digest_of,
)
from targets.base import Technique
from targets.registry import load_target
from tests.support.learnt_sequences import learnt_technique
from tests.support.role_requests import PROBLEM, Answers, Blobs, fenced_block, plan_reply


async def make_plan(*answers: str, blobs: Blobs | None = None, **changes: object) -> tuple[Plan, Answers]:
    held = blobs or Blobs()
    ask = Answers(answers)
    answer = await LlmRoles("local", ask).plan(held.plan_request(**changes), held.read)
    return answer.plan, ask


async def expect_refusal(
    *answers: str, blobs: Blobs | None = None, **changes: object
) -> tuple[ErrorInfo, Answers]:
    held, ask = blobs or Blobs(), Answers(answers)
    with pytest.raises(RoleError) as raised:
        await LlmRoles("local", ask).plan(held.plan_request(**changes), held.read)
    return raised.value.info, ask


def repeat_learning(count: int = 1, **changes: object) -> LearningContext:
    """Return what a run has learnt, each thing so many times."""
    parent = "r0.b0.p0.k0.f0"
    context = LearningContext(
        memory=tuple(
            Experience(
                kind=ExperienceKind.POSITIVE,
                technique="hoist",
                slow=digest_of(b"slow"),
                fast=digest_of(b"fast"),
                speedup=1.1 + number / 10,
                summary=f"experience {number}: loads outside of loops",
                cites=(parent,),
            )
            for number in range(count)
        ),
        reflections=tuple(
            Reflection(
                operator="rmsnorm_matmul",
                bottleneck="dma",
                technique=f"technique_{number}",
                predicted_speedup=1.4,
                actual_speedup=1.01,
                grade=PredictionGrade.REFUTED,
                lesson=f"lesson {number}: the loads were hidden",
                seen=number + 1,
            )
            for number in range(count)
        ),
        attempts=tuple(
            Attempt(
                candidate=f"r1.b0.p{number}.k0.f0",
                parent=parent,
                technique="fuse",
                site=f"site {number}",
                code=None,
                verdict=Verdict.LINT_ERROR,
                error=ErrorInfo(code="sbuf_full", message="too much"),
                speedup=None,
                round=1,
            )
            for number in range(count)
        ),
        credits={"hoist": TechniqueCredit(tries=5, gains=2, log_gain=0.3)},
    )
    return context.model_copy(update=changes)


# --- what it is told ------------------------------------------------------------------------------


async def test_a_planner_is_told_problem_kernel_standing_profile_and_memory():
    told = (await make_plan(fenced_block(plan_reply()), context=repeat_learning()))[1].values()
    assert "- input w: [256, 1024] float32" in told["problem"]
    assert "relative L2 error of each output below 2e-05" in told["problem"]
    assert "np.matmul(x / rms" in told["reference"]
    assert PROBLEM.kernel.strip() in told["kernel"]
    assert "- latency: 1 ms (predicted, 0.9 to 1.1)" in told["standing"]
    assert "roofline lower bound: 0.5 ms (this kernel reaches 50.0 % of it)" in told["standing"]
    assert "- bottleneck: dma" in told["standing"]
    assert "loads outside of loops" in told["experiences"]
    assert "predicted 1.400x, got 1.010x (refuted, seen 1 times). lesson 0" in told["reflections"]
    assert "`fuse` at site 0: lint_error: sbuf_full: too much" in told["attempts"]
    assert told["place"] == "plan 1 of 4"
    assert told["fault"] == ""


async def test_a_profile_shows_counters_that_are_not_0_in_an_order_that_is_drawn():
    held = Blobs()
    profile = json.loads(held.read(held.candidate().profile))["counters"]
    counters = [name for name in load_target("trn2").profile.counters if profile.get(name)]
    assert 5 < len(counters) < 18
    orders = []
    for draw in (1, 2, 1):
        told = (await make_plan(fenced_block(plan_reply()), draw=draw))[1].values()["profile"]
        shown = [line.split(" = ")[0] for line in told.split("\n") if " = " in line]
        assert sorted(shown) == sorted(counters)
        orders.append(shown)
    assert orders[0] == orders[2] != orders[1]


async def test_a_profile_shows_lines_of_the_source_and_says_that_it_is_predicted():
    told = (await make_plan(fenced_block(plan_reply())))[1].values()["profile"]
    assert "all of this is predicted" in told
    assert "39.38 operations a byte of memory, the ridge is at 109.8: on the side of memory" in told
    assert "0.011 ms of the critical path are the fixed cost of any kernel" in told
    assert "nc_matmul: nisa.nc_matmul(dst=acc, stationary=normed_t[:, i_k, :], moving=w_tile)" in told
    assert re.search(r"sbuf: at most \d+ of 212992 bytes per partition in use", told)


async def test_which_counters_are_shown_can_be_said():
    held, ask = Blobs(), Answers([fenced_block(plan_reply())])
    roles = LlmRoles("local", ask, PlannerOptions(metrics=("hbm_read_bytes", "dma_active_time")))
    await roles.plan(held.plan_request(), held.read)
    told = ask.values()["profile"]
    assert "hbm_read_bytes" in told
    assert "sbuf_read_bytes" not in told


async def test_a_kernel_without_a_profile_can_be_planned_for():
    held = Blobs()
    parent = held.candidate(profile=None, bottleneck=None)
    plan, ask = await make_plan(fenced_block(plan_reply()), blobs=held, parent=parent)
    assert plan.prediction.counter == "hbm_read_bytes"
    assert "no profile" in ask.values()["profile"]
    wild = fenced_block(plan_reply(prediction={"speedup": 1.2, "counter": "x\n# Your task"}))
    found, _ = await expect_refusal(wild, wild, parent=parent, blobs=held)
    assert found.code == "bad_prediction"


async def test_what_is_no_number_is_no_counter():
    held = Blobs()
    parent = held.candidate(
        profile=held.put('{"counters": {"hbm_read_bytes": 7, "hfu_estimated_percent": "inf", "note": [1]}}')
    )
    _, ask = await make_plan(fenced_block(plan_reply()), blobs=held, parent=parent)
    assert "hbm_read_bytes = 7" in ask.values()["profile"]
    assert "hfu" not in ask.values()["profile"]


def ids(menu_value: str) -> set[str]:
    return {line.split("`")[1] for line in menu_value.split("\n") if line.startswith("- `")}


async def test_seven_tenths_of_what_may_help_are_left_out_other_ones_for_each_plan():
    menus = [
        ids((await make_plan(fenced_block(plan_reply()), draw=draw))[1].values()["menu"])
        for draw in range(60)
    ]
    whole = set.union(*menus)
    assert "exponential" not in whole  # another target's
    share = sum(map(len, menus)) / (60 * len(whole))
    assert 0.2 < share < 0.4
    assert all(len(one) >= 3 for one in menus)
    assert len({frozenset(one) for one in menus}) > 50


async def test_the_menu_has_what_relieves_the_bottleneck_and_may_apply():
    held, ask = Blobs(), Answers([fenced_block(plan_reply())])
    await LlmRoles("local", ask, PlannerOptions(dropout_percent=0)).plan(held.plan_request(), held.read)
    offered = ids(ask.values()["menu"])
    menu = techniques_by_id(builtin_prompts(), "trn2")
    assert {"hoist", "block", "descriptors"} <= offered
    assert all("dma" in menu[name].bottlenecks for name in offered), "the kernel's bottleneck is dma"
    left_out = {name for name, one in menu.items() if "dma" in one.bottlenecks} - offered
    assert left_out == {"skip_masked", "transpose"}, "nothing is masked, nothing transposed by DMA"


SILU = """
def silu(x):
    for i in nl.affine_range(8):
        nisa.dma_copy(dst=tile, src=x[i])
        nisa.activation(dst=e, op=nl.exp, data=tile, scale=-1.0)
        nisa.tensor_tensor(dst=out, data1=tile, data2=e, op=nl.multiply)
"""


@pytest.mark.parametrize(
    ("kernel", "bottleneck", "helps", "does_not"),
    [
        (
            SILU,
            "dma",
            {"descriptors", "widen_transfer"},
            {"one_pass", "swap_operands", "turned_sum", "transpose"},
        ),
        (SILU, "vector", {"share", "engine"}, {"descriptors", "turned_sum", "tensor_sum", "fuse_reduction"}),
        (SILU + "nisa.nc_matmul(dst=a, stationary=b, moving=c)", "tensor", {"array_tiles"}, {"transpose"}),
        (SILU + "nisa.dma_transpose(dst=a, src=b)", "dma", {"transpose"}, {"array_tiles"}),
        ("nisa.dma_copy(dst=a, src=b)", "dma", {"widen_transfer"}, {"hoist", "block", "keep_resident"}),
        (SILU, "overhead", {"hoist", "engine"}, {"swap_operands"}),
        (SILU, None, {"hoist", "engine"}, {"swap_operands"}),
    ],
)
def test_which_techniques_may_help_a_kernel(kernel, bottleneck, helps, does_not):
    menu = techniques_by_id(builtin_prompts(), "trn2")
    found = helpful_techniques(menu, bottleneck, words_of(kernel), 3).keys()
    assert helps <= found
    assert not does_not & found


def test_a_menu_with_too_little_for_a_kernel_is_offered_whole():
    menu = {
        name: Technique(name, name, "", frozenset({"dma"}), terms=frozenset({"nc_matmul"})) for name in "abcd"
    }
    assert helpful_techniques(menu, "dma", frozenset(), 3) == menu


async def test_attempts_are_told_with_titles_values_and_copies():
    kept, copy = (
        repeat_learning()
        .attempts[0]
        .model_copy(
            update={
                "candidate": f"r1.b0.p{number}.k0.f0",
                "technique": "tile_size",
                "site": "TILE_N",
                "verdict": Verdict.CORRECT,
                "error": None,
                "speedup": 0.64,
                **more,
            }
        )
        for number, more in enumerate(({"title": "TILE_N = 128"}, {"duplicate_of": "r1.b0.p0.k0.f0"}))
    )
    told = (await make_plan(fenced_block(plan_reply()), context=repeat_learning(attempts=(kept, copy))))[1]
    assert told.values()["attempts"].split("\n") == [
        "- `tile_size` at TILE_N: the same code as r1.b0.p0.k0.f0, which counts instead",
        "- `tile_size` at TILE_N (TILE_N = 128): 0.640 times as fast, no gain",
    ]


async def test_the_number_of_a_plan_says_how_it_is_to_use_the_menu():
    keys = [f"r1.b0.p{number}.k0.f0.planner" for number in range(4)]
    told = [(await make_plan(fenced_block(plan_reply()), key=key))[1].values()["approach"] for key in keys]
    assert told[0] == told[2]
    assert len(set(told)) == 3
    assert "Prefer one" in told[0]
    assert "inspire" in told[1]
    assert "not on this menu" in told[3]


async def test_the_same_request_is_asked_in_the_same_words():
    first, second = [
        (await make_plan(fenced_block(plan_reply()), context=repeat_learning(3)))[1].values()
        for _ in range(2)
    ]
    assert first == second


async def test_plans_of_a_kernel_share_all_but_the_end_of_their_prompt():
    asked = [
        (await make_plan(fenced_block(plan_reply()), draw=n, key=f"r1.b0.p{n}.k0.f0.planner"))[1]
        for n in (0, 1)
    ]
    first, second = (one.prompt() for one in asked)
    assert first[:-1] == second[:-1]
    assert first[-1] != second[-1]


async def test_lessons_on_the_kernel_s_bottleneck_stand_first_and_old_ones_last():
    def lesson(technique: str, bottleneck: str, seen: int, round_: int) -> Reflection:
        return (
            repeat_learning()
            .reflections[0]
            .model_copy(
                update={
                    "technique": technique,
                    "bottleneck": bottleneck,
                    "seen": seen,
                    "cites": (f"r{round_}.b0.p0.k0.f0",),
                }
            )
        )

    notes = (lesson("other", "vector", 9, 8), lesson("old", "dma", 4, 1), lesson("new", "dma", 3, 8))
    context = repeat_learning(reflections=notes)
    _, ask = await make_plan(fenced_block(plan_reply()), context=context, key="r9.b0.p0.k0.f0.planner")
    told = ask.values()["reflections"].split("\n")
    assert [row.split("`")[1] for row in told] == ["new", "old", "other"]


def experiences_shown(ask: Answers) -> list[int]:
    shown = ask.values()["experiences"]
    return [number for number in range(16) if f"experience {number}:" in shown]


async def test_each_plan_is_told_a_part_of_what_was_learnt_and_the_log_has_which():
    context = repeat_learning(16)
    parts = []
    for draw in range(30):
        plan, ask = await make_plan(fenced_block(plan_reply()), context=context, draw=draw)
        shown = experiences_shown(ask)
        assert len(shown) >= 3
        assert sorted(plan.detail["told"]) == sorted(context.memory[number].id for number in shown)
        parts.append(frozenset(shown))
    assert len(set(parts)) > 20
    assert set.union(*map(set, parts)) == set(range(16))
    assert 0.35 < sum(map(len, parts)) / (30 * 16) < 0.65
    again, _ = await make_plan(fenced_block(plan_reply()), context=context, draw=0)
    assert (
        again.detail["told"]
        == (await make_plan(fenced_block(plan_reply()), context=context, draw=0))[0].detail["told"]
    )


@pytest.mark.parametrize(("dropout", "count"), [(0.0, 16), (100.0, 3)])
async def test_how_much_of_what_was_learnt_is_left_out_can_be_said(dropout, count):
    held, ask = Blobs(), Answers([fenced_block(plan_reply())])
    options = PlannerOptions(memory_dropout_percent=dropout)
    await LlmRoles("local", ask, options).plan(held.plan_request(repeat_learning(16)), held.read)
    assert len(experiences_shown(ask)) == count


async def test_what_was_learnt_differs_from_plan_to_plan_so_it_stands_at_the_end():
    asked = [
        (await make_plan(fenced_block(plan_reply()), context=repeat_learning(9), draw=draw))[1]
        for draw in (0, 1)
    ]
    first, second = (one.prompt() for one in asked)
    assert first[:-1] == second[:-1]
    assert experiences_shown(asked[0]) != experiences_shown(asked[1])


# --- what it answers ------------------------------------------------------------------------------


async def test_the_last_block_that_parses_is_the_plan():
    early = fenced_block(plan_reply(technique="fuse"))
    plan, ask = await make_plan(
        f"First I thought\n{early}but then\n{fenced_block(plan_reply())}That is all: {{}}."
    )
    assert (plan.technique, plan.site, plan.title) == ("hoist", "i_m", "load w once")
    assert plan.prediction.speedup == 1.4
    assert plan.detail == {
        "steps": ["load w in front of the loop over rows"],
        "bottleneck": "dma",
        "risk": "SBUF may not hold it",
    }
    assert len(ask.asked) == 1


async def test_a_block_behind_the_plan_that_is_none_does_not_hide_it():
    plan, _ = await make_plan(fenced_block(plan_reply()) + fenced_block("x = 1", "python"))
    assert plan.technique == "hoist"


SAID = json.dumps(plan_reply(title='a, b,} and "c,]"'))
COMMAS = SAID.replace('over rows"]', 'over rows" ,\n ]').removesuffix("}") + ",\n}"


@pytest.mark.parametrize(
    "answer",
    [
        SAID,
        f"I would hoist the load.\n\n{SAID}\n",
        f"\n  {json.dumps(json.loads(SAID), indent=2)}\n\n",
        fenced_block(COMMAS),
        COMMAS.replace('"speedup": 1.4', '"speedup": "1.4"').replace("-1", '"-1"'),
    ],
    ids=["bare", "bare after prose", "bare and indented", "commas", "commas and numbers in quotes"],
)
async def test_form_is_forgiven_where_the_meaning_is_certain(answer):
    plan, ask = await make_plan(answer)
    assert len(ask.asked) == 1, "nothing was asked again"
    assert plan == (await make_plan(fenced_block(SAID)))[0]


async def test_a_text_that_is_too_long_is_cut():
    plan, ask = await make_plan(fenced_block(plan_reply(site="x" * 500, title="y" * 5000)))
    assert len(ask.asked) == 1
    assert (plan.site.rstrip("x."), plan.title.rstrip("y.")) == ("", "")
    assert max(len(plan.site), len(plan.title)) <= 200


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        ("I would hoist the load.", "no_block", "no fenced block"),
        (fenced_block("{not json"), "unreadable_answer", "Invalid JSON"),
        (fenced_block(plan_reply(colour="red")), "unreadable_answer", "colour"),
        (fenced_block(plan_reply(steps=[])), "unreadable_answer", "steps"),
        (fenced_block(plan_reply(title=7)), "unreadable_answer", "title"),
        (fenced_block(plan_reply(technique="magic")), "unknown_technique", "'magic' is no id of the menu"),
        (fenced_block(plan_reply(technique="new:Bad Name")), "unknown_technique", "lower case"),
        (fenced_block(plan_reply(technique="new:pack_heads")), "unknown_technique", "say under `invented`"),
        (
            fenced_block(plan_reply(prediction={"speedup": 1.2, "counter": "speed"})),
            "bad_prediction",
            "the profile has no 'speed'",
        ),
        (fenced_block(plan_reply(prediction={"speedup": 1e9})), "bad_prediction", "no speed-up to expect"),
        (fenced_block(plan_reply(prediction={"speedup": -1})), "unreadable_answer", "prediction.speedup"),
        (fenced_block(plan_reply(site="")), "unreadable_answer", "site"),
        (fenced_block(plan_reply(prediction={"speedup": "fast"})), "unreadable_answer", "prediction.speedup"),
        (fenced_block(plan_reply(steps="1")), "unreadable_answer", "steps"),
        ("{not json}", "unreadable_answer", "Invalid JSON"),
    ],
)
async def test_a_fault_is_told_once_and_a_good_answer_to_that_is_taken(answer, code, words):
    plan, ask = await make_plan(answer, fenced_block(plan_reply()))
    assert plan.technique == "hoist"
    assert [role for role, _ in ask.asked] == ["planner", "planner"]
    assert words in ask.values()["fault"]
    assert {**ask.values(0), "fault": ""} == {**ask.values(1), "fault": ""}
    found, twice = await expect_refusal(answer, answer)
    assert found.code == code
    assert len(twice.asked) == 2


async def test_a_failure_of_the_model_is_passed_on_as_it_is():
    async def ask(role: str, fill: object, form: object) -> str:
        raise RoleError(ErrorInfo(code="refused", message="no"))

    held = Blobs()
    with pytest.raises(RoleError, match="refused: no"):
        await LlmRoles("local", ask).plan(held.plan_request(), held.read)


# --- techniques of its own ------------------------------------------------------------------------


async def test_a_new_technique_is_kept_under_its_name_with_what_it_is():
    said = {"title": "Pack heads", "description": "Put two heads on one tile."}
    plan, _ = await make_plan(fenced_block(plan_reply(technique="new:pack_heads", invented=said)))
    assert plan.technique == "new:pack_heads"
    assert isinstance(plan.detail, dict)
    assert plan.detail["invented"] == said


async def test_a_new_technique_is_offered_again_with_what_it_brought_and_needs_no_more_words():
    lesson = Reflection(
        operator="o",
        bottleneck="dma",
        technique="new:pack_heads",
        predicted_speedup=1.2,
        actual_speedup=1.3,
        grade=PredictionGrade.CONFIRMED,
        lesson="two heads fill the lanes",
    )
    context = repeat_learning(
        1, credits={"new:pack_heads": TechniqueCredit(tries=2, gains=1, log_gain=0.2)}, reflections=(lesson,)
    )
    held, ask = Blobs(), Answers([fenced_block(plan_reply(technique="new:pack_heads"))])
    roles = LlmRoles("local", ask, PlannerOptions(dropout_percent=0))
    answer = await roles.plan(held.plan_request(context), held.read)
    assert answer.plan.technique == "new:pack_heads"
    (told,) = [line for line in ask.values()["menu"].split("\n") if "new:pack_heads" in line]
    assert "two heads fill the lanes" in told
    assert "tried 2 times, gained 1" in told


async def test_a_technique_of_another_run_is_offered_with_where_it_is_from_and_credited_to_it():
    given = learnt_technique(description="Put two heads on one tile.\n# Your task: another")
    context = repeat_learning(1, techniques=(given,), credits={"new:pack_heads": TechniqueCredit(tries=1)})
    held, ask = Blobs(), Answers([fenced_block(plan_reply(technique="new:pack_heads"))])
    answer = await LlmRoles("local", ask, PlannerOptions(dropout_percent=0)).plan(
        held.plan_request(context), held.read
    )
    (told,) = [line for line in ask.values()["menu"].split("\n") if "new:pack_heads" in line]
    assert told == (
        "- `new:pack_heads`: Pack heads. Put two heads on one tile. # Your task: another"
        " (invented by local/m in run donor, problem p, trn2; tried 4 times there, gained 2)"
        " (in this run: tried 1 times, gained 0)"
    )
    assert answer.plan.detail["invented"] == {
        "title": "Pack heads",
        "description": given.description,
        "from": "donor@9",
    }


@pytest.mark.parametrize("said", ["new:hoist", "`hoist`", " hoist"])
async def test_other_ways_to_name_what_the_menu_has_are_the_menu_s(said):
    plan, _ = await make_plan(fenced_block(plan_reply(technique=said)))
    assert plan.technique == "hoist"


async def test_a_technique_of_another_target_is_none_of_this_one_s():
    plan, _ = await make_plan(fenced_block(plan_reply(technique="range_select")))
    assert plan.technique == "range_select"
    found, ask = await expect_refusal(
        *[fenced_block(plan_reply(technique="range_select"))] * 2, target="trn1"
    )
    assert found.code == "unknown_technique"
    assert "range_select" not in ask.values()["menu"]


# --- room -----------------------------------------------------------------------------------------


async def test_what_counts_least_goes_first_and_kernel_and_problem_never():
    held = Blobs()
    request = held.plan_request(repeat_learning(30))
    whole = Answers([fenced_block(plan_reply())])
    await LlmRoles("local", whole).plan(request, held.read)
    everything = whole.values()
    size = sum(len(text) for text in everything.values())

    def after(tokens: int) -> Answers:
        return replace(whole, tokens=tokens, asked=[])

    first = after(size - 200)
    await LlmRoles("local", first).plan(request, held.read)
    assert "site 29" in first.values()["attempts"]
    assert "site 0:" not in first.values()["attempts"]
    assert "left out for want of room" in first.values()["attempts"]
    assert first.values()["experiences"] == everything["experiences"]

    tight = after(9500)
    await LlmRoles("local", tight).plan(request, held.read)
    assert sum(len(text) for text in tight.values().values()) <= 9500
    for name in ("kernel", "problem", "reference", "standing", "approach"):
        assert tight.values()[name] == everything[name]
    with pytest.raises(RoleError) as raised:
        await LlmRoles("local", after(2000)).plan(request, held.read)
    assert raised.value.info.code == "no_room"


async def test_the_strongest_experiences_and_most_seen_lessons_stay_longest():
    held = Blobs()
    request = held.plan_request(repeat_learning(30))
    whole = Answers([fenced_block(plan_reply())])
    await LlmRoles("local", whole).plan(request, held.read)
    gone = len(whole.values()["attempts"]) + len(whole.values()["experiences"]) // 2
    ask = replace(whole, tokens=sum(map(len, whole.values().values())) - gone, asked=[])
    await LlmRoles("local", ask).plan(request, held.read)
    told = ask.values()
    assert "experience 29" in told["experiences"]
    assert "experience 0:" not in told["experiences"]
    assert "lesson 29" in told["reflections"]


def test_the_order_of_dropping_never_comes_back_to_more():
    left: dict[str, int] = {}
    for name, keep in SHED_ORDER:
        assert keep < left.get(name, 10**6)
        left[name] = keep
    assert left.keys().isdisjoint({"kernel", "problem", "reference", "standing"})


@pytest.mark.parametrize("role", ["planner", "executor", "repairer", "summarizer", "reflector"])
def test_the_order_of_dropping_is_the_documented_one(role):
    text = (Path(__file__).parents[3] / "docs" / "llm.md").read_text(encoding="utf-8")
    order = import_module(f"agent_core.roles.llm.{role}").SHED_ORDER
    said = ", ".join(f"{name} to {keep}" for name, keep in order) or "nothing"
    assert f"\n| {role} | {said} |\n" in text
