"""The examples that models are shown are kernels that the judge finds correct, and facts are this
machine's."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from agent_core.prompting import builtin_prompts, prompts_for
from agent_core.roles.llm.blocks import AnswerFault, last_json, parse_blocks
from agent_core.roles.llm.edits import apply_edits
from agent_core.roles.llm.own_words import require_own_words
from agent_core.roles.llm.plans import PlanReply, PlanRules, check_plan
from agent_core.roles.llm.reflector import _ReflectorReply
from agent_core.roles.llm.summarizer import _SummarizerReply
from agent_core.tools.registry import list_tools
from seeds import build_problem
from state.model import Verdict
from targets.c.machine import (
    CpuFacts,
    CpuRates,
    nominal_rates,
    read_cpu_facts,
    render_architecture,
)
from targets.registry import load_target
from tests.targets.c.conftest import Judge

EXAMPLES = Path(__file__).parents[3] / "targets/c/prompts/c/examples"
_HEAD = """
name = "example"
formula = "see the reference"
rel_l2 = 1e-5
seeds = [0, 7]
shape_generic = true
"""
_ROW_SUMS = """
sizes = { full = { M = 64, N = 300 }, reduced = { M = 32, N = 300 } }
work = { other_flops = "M * N" }
[[inputs]]
name = "x"
shape = ["M", "N"]
[[outputs]]
name = "out"
shape = ["M"]
"""
_PRODUCT = """
sizes = { full = { M = 64, N = 300, K = 40 }, reduced = { M = 33, N = 70, K = 40 } }
work = { matmul_flops = "2 * M * N * K" }
[[inputs]]
name = "lhs"
shape = ["M", "K"]
[[inputs]]
name = "rhs"
shape = ["K", "N"]
[[outputs]]
name = "out"
shape = ["M", "N"]
"""
PROBLEMS = {
    "row_sums": (
        _ROW_SUMS,
        "def reference(x):\n    return x.astype('float64').sum(axis=1).astype('float32')\n",
    ),
    "register_block": (
        _PRODUCT,
        "def reference(a, b):\n    return (a.astype('float64') @ b.astype('float64')).astype('float32')\n",
    ),
}


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.md")))
def test_examples_are_correct_kernels(judge: Judge, name: str) -> None:
    (source,) = re.findall(r"```c\n(.*?)```", (EXAMPLES / f"{name}.md").read_text(), re.DOTALL)
    spec, reference = PROBLEMS[name]
    files = {
        "problem.toml": (_HEAD + spec).encode(),
        "reference.py": reference.encode(),
        "kernel.c": source.encode(),
    }
    found = judge(source, problem=build_problem(files))
    assert found.verdict is Verdict.CORRECT, found.error


ONE_SUM = """void kernel(const float *restrict x, float *restrict out)
{
    for (int m = 0; m < M; m++) {
        const float *row = x + (size_t)m * N;
        float total = 0;
        for (int n = 0; n < N; n++)
            total += row[n];
        out[m] = total;
    }
}
"""


def test_the_example_of_edits_applies_and_is_a_correct_kernel(judge: Judge) -> None:
    (block,) = parse_blocks((EXAMPLES.parent / "edit_example.md").read_text())
    spec, reference = PROBLEMS["row_sums"]
    edited = apply_edits(block.text, ONE_SUM)
    assert edited != ONE_SUM
    problem = build_problem(
        {
            "problem.toml": (_HEAD + spec).encode(),
            "reference.py": reference.encode(),
            "kernel.c": ONE_SUM.encode(),
        }
    )
    for source in (ONE_SUM, edited):
        found = judge(source, problem=problem)
        assert found.verdict is Verdict.CORRECT, found.error


@pytest.mark.parametrize("target", ["x86", "arm64", "riscv64"])
def test_each_role_is_shown_one_example_in_its_language_and_may_not_copy_it(target: str) -> None:
    own = prompts_for(builtin_prompts(), target)
    names = {"planner": "plan", "executor": "edit", "repairer": "edit", "session": "session",
             "planner_session": "plan", "summarizer": "experience", "reflector": "lesson"}  # fmt: skip
    for role, example in names.items():
        text = (EXAMPLES.parent / f"{example}_example.md").read_text()
        assert sum(block.text == text for block in own.role_blocks(role, target)) == 1, role
    rules = PlanRules(techniques=frozenset(load_target(target).menu()), counters=frozenset({"latency_ms"}))
    plan = (EXAMPLES.parent / "plan_example.md").read_text()
    reply = last_json(plan, PlanReply, lambda one: check_plan(one, rules))
    experience = last_json(
        (EXAMPLES.parent / "experience_example.md").read_text(), _SummarizerReply, lambda one: one
    )
    lesson = last_json((EXAMPLES.parent / "lesson_example.md").read_text(), _ReflectorReply, lambda one: one)
    for said, role in ((reply, "planner"), (experience, "summarizer"), (lesson, "reflector")):
        with pytest.raises(AnswerFault, match="repeats an example"):
            require_own_words(said, role)


def test_the_example_of_a_session_calls_tools_as_they_are() -> None:
    """Each call of it is one that the target offers, with arguments that the tool takes."""
    said = (EXAMPLES.parent / "session_example.md").read_text()
    calls = re.findall(r"`(\w+)\((.*)\)`", said)
    assert [name for name, _ in calls] == ["evaluate", "submit"]
    for name, arguments in calls:
        tool = {tool.name: tool for tool in list_tools("x86")}[name]
        call = ast.parse(f"f({arguments})", mode="eval").body
        assert isinstance(call, ast.Call)
        told = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
        assert tool.arguments.model_validate(told)


def test_models_are_told_what_this_machine_is() -> None:
    facts = CpuFacts("A CPU", "x86_64", 4, ("avx2", "fma"), (("L1", 32 << 10), ("L2", 2 << 20)), 3.0)
    text = render_architecture(facts, CpuRates(20.0, 90.0, 45.0))
    assert "A CPU" in text
    assert "| float32 lanes of a vector register | 8 |" in text
    assert "L1 32 KiB, L2 2 MiB" in text
    assert "(measured) | 20 GB/s" in text
    assert "estimated" in render_architecture(facts, nominal_rates(facts))
    assert read_cpu_facts().cores >= 1
