"""Sections: told where a problem or a kernel calls for them, from the set that the run's round goes by."""

from __future__ import annotations

import re

import pytest

from agent_core.prompting import PromptSet, assemble_prompts, builtin_prompts
from agent_core.roles.llm import LlmRoles
from agent_core.roles.llm.prompt_values import MOST_SECTIONS, select_sections
from seeds import builtin_problems, load_problem
from tests.support.role_requests import PROBLEM, Answers, Blobs, fenced_block, plan_reply


def titles(value: str) -> list[str]:
    return [row.removeprefix("## ") for row in value.split("\n") if row.startswith("## ")]


def chosen(*texts: str, target: str = "trn2") -> tuple[list[str], list[str]]:
    found = select_sections(builtin_prompts(), target, *texts)
    return titles("\n".join(found["interface"].pieces)), titles("\n".join(found["examples"].pieces))


def test_what_a_kernel_does_calls_for_its_sections():
    interface, examples = chosen("nisa.tensor_tensor_scan(dst=state)")
    assert interface == ["Recurrences, in full"]
    assert examples == ["A recurrence along the free axis as one scan"]
    assert chosen("y = gather_flattened(x)")[0] == ["Gathers, in full"]


def test_words_count_whole_and_nothing_is_told_where_nothing_fits():
    assert chosen("scanner, tensor_tensor_scanned, xmax8") == ([], [])
    found = select_sections(builtin_prompts(), "trn2", "")
    assert found["interface"].render([]) == "(what the guide has is all)"


def test_what_fits_best_stands_first():
    interface, _ = chosen("max8 topk argmax, and a transpose")
    assert interface[0] == "Largest elements, in full"


def test_a_target_is_told_its_own_alone():
    assert "range_select, in full" in chosen("range_select causal mask")[0]
    assert "range_select, in full" not in chosen("range_select causal mask", target="trn1")[0]


@pytest.mark.parametrize("name", builtin_problems())
def test_every_problem_calls_for_some_and_for_no_more_than_fit(name):
    found = load_problem(name)
    interface, examples = chosen(found.kernel, found.files["reference.py"].decode())
    assert 1 <= len(interface) <= MOST_SECTIONS
    assert 1 <= len(examples) <= MOST_SECTIONS


async def ask_executor(prompts: PromptSet) -> Answers:
    held, ask = Blobs(), Answers([fenced_block(plan_reply())], prompts=prompts)
    await LlmRoles("local", ask).plan(held.plan_request(), held.read)
    return ask


async def test_another_kernel_of_the_same_problem_is_told_other_sections():
    held, ask = Blobs(), Answers([fenced_block(plan_reply())])
    parent = held.candidate(PROBLEM.kernel + "\n# topk, max8 and argmax of rows\n")
    await LlmRoles("local", ask).plan(held.plan_request(parent=parent), held.read)
    assert "Largest elements, in full" in titles(ask.values()["interface"])


async def test_sections_that_a_home_replaced_are_told():
    own = {
        "api/products.md": b"# Products, our way\n\nUse both halves of the array.\n",
        "menu/one_pass.md": b"# Read once\n\nRead everything once.\n",
        "planner/approach/apply.md": b"Apply the cheapest technique.\n",
    }
    ask = await ask_executor(assemble_prompts(own))
    assert "Use both halves of the array." in ask.values()["interface"]
    assert ask.values()["approach"] == "Apply the cheapest technique."


async def test_a_set_of_another_version_is_filled_with_the_values_that_it_has():
    files = dict(builtin_prompts().files)
    manifest = re.sub(r'"guide/selected\.md",\s*', "", files["manifest.toml"].partition("\n[items.")[0])
    for name in ('"interface", ', '"examples", ', ', "fault"'):
        manifest = manifest.replace(name, "")
    old = PromptSet({**files, "manifest.toml": manifest, "planner/ask.md": "{{profile}} {{menu}}"})
    ask = await ask_executor(old)
    assert "fault" not in ask.values()
    assert "examples" not in ask.values()
    assert PROBLEM.kernel.strip() in "\n".join(part.text for part in ask.prompt())
