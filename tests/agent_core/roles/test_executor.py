"""The executor and the repairer of models: which kernels they take from answers, and what they are told."""

from __future__ import annotations

import ast

import pytest

from agent_core.roles import KernelAnswer, RoleError
from agent_core.roles.llm import LlmRoles
from agent_core.roles.llm.blocks import parse_blocks
from agent_core.round_view import UNUSABLE_ANSWERS
from state.model import ErrorInfo, Plan, Prediction
from tests.support.role_requests import PLAN, PROBLEM, Answers, Blobs, fenced_block

KERNEL = PROBLEM.kernel
CHANGED = KERNEL.replace("TILE_N = 512", "TILE_N = 256")
LINE = "TILE_N = 512  # columns of the output tile: one PSUM bank of float32"
EDIT = f"<<<<<<< find\n{LINE}\n=======\nTILE_N = 256\n>>>>>>> replace"
FULL = ErrorInfo(code="sbuf_full", message="the tiles need 300000 bytes", line=13, hint="smaller tiles")


async def make_kernel(*answers: str, **changes: object) -> tuple[KernelAnswer, Answers]:
    held, ask = Blobs(), Answers(answers)
    return await LlmRoles("local", ask).implement(held.implement_request(**changes), held.read), ask


async def expect_refusal(*answers: str, **changes: object) -> tuple[ErrorInfo, Answers]:
    held, ask = Blobs(), Answers(answers)
    with pytest.raises(RoleError) as raised:
        await LlmRoles("local", ask).implement(held.implement_request(**changes), held.read)
    return raised.value.info, ask


# --- what is taken --------------------------------------------------------------------------------


async def test_a_whole_kernel_is_taken_as_it_is():
    answer, ask = await make_kernel("Smaller tiles.\n" + fenced_block(CHANGED, "python"))
    assert answer.source == CHANGED + "\n"
    assert answer.note == "Smaller tiles."
    assert [role for role, _ in ask.asked] == ["executor"]


async def test_edits_are_made_to_the_kernel_that_was_shown():
    answer, _ = await make_kernel(fenced_block(EDIT, "edits"))
    assert answer.source == KERNEL.replace(LINE, "TILE_N = 256")
    assert answer.note == "load w once"  # the plan's title, where the answer has no words


async def test_edits_are_made_one_after_the_other():
    more = "<<<<<<< find\nTILE_N = 256\n=======\nTILE_N = 128\nTILE_L = 1\n>>>>>>> replace"
    answer, _ = await make_kernel(fenced_block(f"{EDIT}\n\n{more}", "edits"))
    assert "TILE_N = 128\nTILE_L = 1\n" in answer.source


FIRST = KERNEL.split("\n", 1)[0]
MARKED = f"<<<<<<< find\n{FIRST}\n=======\n{FIRST}\nMARK = 1\n>>>>>>> replace"


async def test_edits_in_several_blocks_are_one_change():
    both = f"First:\n{fenced_block(MARKED, 'edits')}\nThen:\n{fenced_block(EDIT, 'edits')}"
    answer, ask = await make_kernel(both)
    assert answer.source == KERNEL.replace(LINE, "TILE_N = 256").replace(FIRST, f"{FIRST}\nMARK = 1", 1)
    assert len(ask.asked) == 1


async def test_of_drafts_that_exclude_one_another_the_last_counts():
    draft = EDIT.replace("TILE_N = 256", "TILE_N = 64")
    answer, _ = await make_kernel(fenced_block(draft, "edits") + fenced_block(EDIT, "edits"))
    assert answer.source == KERNEL.replace(LINE, "TILE_N = 256")


@pytest.mark.parametrize("info", ["edits", "python", ""])
async def test_edits_are_known_by_their_marks_whatever_the_block_is_called(info):
    other = EDIT.replace("< find", "< SEARCH").replace("> replace", "> REPLACE")
    answer, _ = await make_kernel(fenced_block(other, info))
    assert answer.source == KERNEL.replace(LINE, "TILE_N = 256")


async def test_lines_can_be_taken_out():
    gone = f"<<<<<<< find\n{LINE}\n=======\n>>>>>>> replace"
    answer, _ = await make_kernel(fenced_block(gone, "edits"))
    assert answer.source == KERNEL.replace(LINE + "\n", "")


async def test_the_last_block_that_is_a_kernel_counts_not_what_is_behind_it():
    sketch = fenced_block(KERNEL.replace("512", "64"), "python")
    behind = (
        fenced_block("{'found': True}", "json")
        + fenced_block("pip install nki", "sh")
        + fenced_block("x = (", "python")
    )
    answer, ask = await make_kernel(sketch + fenced_block(CHANGED, "python") + behind)
    assert answer.source == CHANGED + "\n"
    assert len(ask.asked) == 1


async def test_a_fence_within_a_longer_fence_is_part_of_the_kernel():
    inner = CHANGED.replace('"""out', '"""\n```\nout', 1)
    answer, _ = await make_kernel(f"````python\n{inner}\n````")
    assert answer.source == inner + "\n"


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        ("Here it is.", "no_block", "no fenced block"),
        (fenced_block("def rmsnorm_matmul(x, w:", "python"), "not_python", "line 1"),
        (fenced_block("x = 1", "python"), "no_kernel", "does not define `rmsnorm_matmul`"),
        (fenced_block("def other(x):\n    return x", "python"), "no_kernel", "`rmsnorm_matmul`"),
        (fenced_block(KERNEL, "python"), "nothing_changed", "the one that you were given"),
        (fenced_block("a = '" + "x" * 300_000 + "'", "python"), "too_long", "at most 262144"),
        (fenced_block("(" * 100_000, "python"), "not_python", "too many nested"),
        (fenced_block("x\0 = 1", "python"), "not_python", "null bytes"),
        (fenced_block(EDIT.replace("columns", "rows"), "edits"), "edit_not_found", "edit 1:"),
        (fenced_block(EDIT.replace("TILE_N = 256", "TILE_N = ("), "edits"), "not_python", "line 9"),
        (fenced_block(EDIT.removesuffix(">>>>>>> replace"), "edits"), "bad_edits", "an edit is"),
        (fenced_block("TILE_N = 256", "edits"), "bad_edits", "outside of any edit"),
        (
            fenced_block("<<<<<<< find\n\n=======\nx\n>>>>>>> replace", "edits"),
            "bad_edits",
            "nothing to find",
        ),
        (
            fenced_block(f"<<<<<<< find\n{LINE}\n=======\n{LINE}\n>>>>>>> replace", "edits"),
            "edit_changes_nothing",
            "as it is",
        ),
    ],
)
async def test_a_fault_is_told_once_and_a_good_answer_to_that_is_taken(answer, code, words):
    good, ask = await make_kernel(answer, fenced_block(CHANGED, "python"))
    assert good.source == CHANGED + "\n"
    assert words in ask.values()["fault"]
    found, twice = await expect_refusal(answer, answer)
    assert (found.code, len(twice.asked)) == (code, 2)
    assert len(found.message) <= 1100
    assert found.code in UNUSABLE_ANSWERS, "a chain of repairs goes on after it"


async def test_an_edit_that_matches_twice_is_refused():
    held, ask = Blobs(), Answers([fenced_block(EDIT, "edits")] * 2)
    request = held.implement_request(parent=held.candidate(f"{KERNEL}\n{LINE}\n"))
    with pytest.raises(RoleError, match="edit_not_unique") as raised:
        await LlmRoles("local", ask).implement(request, held.read)
    assert "2 times; take more lines around it" in raised.value.info.message


async def test_an_edit_must_match_in_every_space():
    found, _ = await expect_refusal(*[fenced_block(EDIT.replace("512  #", "512 #"), "edits")] * 2)
    assert found.code == "edit_not_found"


async def test_a_faulty_answer_is_shown_again_within_bounds():
    _, ask = await make_kernel("y" * 50_000, fenced_block(CHANGED, "python"))
    assert 1000 < len(ask.values()["fault"]) < 8000


# --- what it is told ------------------------------------------------------------------------------


async def test_an_executor_is_told_plan_technique_and_kernel():
    _, ask = await make_kernel(fenced_block(CHANGED, "python"))
    told = ask.values()
    assert "- step 1: move the load of w in front of the loop" in told["plan"]
    assert "- risk: SBUF" in told["plan"]
    assert told["technique"].startswith("Hoist out of a loop. Load or compute a tile once")
    assert KERNEL.strip() in told["kernel"]


async def test_a_technique_that_was_invented_is_told_in_its_inventor_s_words():
    detail = {"steps": ["s"], "invented": {"title": "Pack heads", "description": "Two heads a tile."}}
    plan = Plan(technique="new:pack", site="i", title="t", prediction=Prediction(speedup=1.1), detail=detail)
    _, ask = await make_kernel(fenced_block(CHANGED, "python"), plan=plan)
    assert ask.values()["technique"] == "Pack heads. Two heads a tile."


async def test_implementations_of_a_plan_are_told_to_differ():
    keys = [f"r1.b0.p0.k{number}.f0.executor" for number in range(3)]
    told = [
        (await make_kernel(fenced_block(CHANGED, "python"), key=key))[1].values()["variation"] for key in keys
    ]
    assert len(set(told)) == 3


async def test_all_plans_of_a_kernel_share_the_prompt_up_to_the_plan():
    _, first = await make_kernel(fenced_block(CHANGED, "python"))
    _, second = await make_kernel(
        fenced_block(CHANGED, "python"), plan=PLAN.model_copy(update={"title": "another"})
    )
    assert first.prompt()[:-1] == second.prompt()[:-1]


# --- repair ---------------------------------------------------------------------------------------


async def test_a_repairer_is_told_the_error_with_its_line_its_rule_and_the_refused_kernel():
    said = "The tiles were too wide.\n\n" + fenced_block(KERNEL.replace("512", "64"), "python")
    answer, ask = await make_kernel(said, failed=[(CHANGED, FULL)])
    assert "TILE_N = 64" in answer.source
    assert answer.note == "repair 1 of sbuf_full: The tiles were too wide."
    ((role, told),) = ask.asked
    assert role == "repairer"
    assert CHANGED.strip() in told["kernel"]
    assert "class: lint_error\ncode: sbuf_full\nmessage: the tiles need 300000 bytes\n" in told["error"]
    assert ">   13 | def rmsnorm_matmul(x, w):" in told["error"]
    assert "rule: smaller tiles" in told["error"]
    assert told["tries"] == "(none)"
    (changes,) = parse_blocks(told["changes"])
    assert changes.info == "diff"
    assert [row for row in changes.text.split("\n") if row[:1] in "+-" and row[1:2] not in "+-"] == [
        f"-{LINE}",
        "+TILE_N = 256  # columns of the output tile: one PSUM bank of float32",
    ]


async def test_edits_of_a_repair_are_made_to_the_refused_kernel():
    edit = "<<<<<<< find\nTILE_N = 256\n=======\nTILE_N = 128\n>>>>>>> replace"
    refused_one = KERNEL.replace(LINE, "TILE_N = 256")
    answer, _ = await make_kernel(fenced_block(edit, "edits"), failed=[(refused_one, FULL)])
    assert answer.source == KERNEL.replace(LINE, "TILE_N = 128")


async def test_a_repairer_is_told_what_else_is_wrong_at_first_sight():
    broken = CHANGED.replace("nisa.dma_copy(dst=", "nisa.dma_copy(out=")
    assert broken != CHANGED
    _, ask = await make_kernel(fenced_block(KERNEL.replace("512", "64"), "python"), failed=[(broken, FULL)])
    assert "wrong as well:\nline " in ask.values()["error"]
    assert "nisa.dma_copy takes no out=" in ask.values()["error"]


async def test_what_was_tried_is_told_as_changes_with_their_errors():
    other = ErrorInfo(code="psum_full", message="nine banks")
    _, ask = await make_kernel(
        fenced_block(KERNEL.replace("512", "64"), "python"),
        failed=[(CHANGED, FULL), (CHANGED.replace("256", "300"), other)],
    )
    tries = ask.values()["tries"]
    assert "Repair 1, after sbuf_full, ended with psum_full: nine banks" in tries
    assert "+TILE_N = 300" in tries
    assert "-TILE_N = 256" in tries


async def test_a_repairer_is_told_what_was_wrong_with_answers_that_were_no_kernels():
    lost = ErrorInfo(code="edit_not_found", message="edit 1: 'x = 1' is not in the kernel")
    _, ask = await make_kernel(
        fenced_block(KERNEL.replace("512", "64"), "python"), failed=[(CHANGED, FULL)], unusable=(lost,)
    )
    assert ask.values()["tries"].strip() == (
        "A repair was no kernel: edit_not_found: edit 1: 'x = 1' is not in the kernel"
    )


async def test_a_repair_that_gives_the_same_kernel_back_is_told_so():
    found, _ = await expect_refusal(*[fenced_block(CHANGED, "python")] * 2, failed=[(CHANGED, FULL)])
    assert found.code == "nothing_changed"


async def test_a_kernel_that_is_no_python_can_be_repaired():
    answer, _ = await make_kernel(fenced_block(KERNEL, "python"), failed=[("def rmsnorm_matmul(", FULL)])
    assert ast.parse(answer.source)
