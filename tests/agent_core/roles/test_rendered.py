"""Prompts as they are sent, whole, against what they were: a change of words or values shows in full.

`UPDATE_PROMPTS=1 pytest tests/agent_core/roles/test_rendered.py` writes them anew. What always stays the same
is named only, as those texts are files of their own. Files that are made from this machine are left out.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_core.effects import LearningContext, SessionRequest
from agent_core.prompting import PromptBlock, TextLifetime, builtin_prompts
from agent_core.providers.windows import estimate_tokens
from agent_core.roles.ask_protocol import TokenBudget
from agent_core.roles.llm import LlmRoles, PlannerOptions, planner_session
from agent_core.roles.llm.session import fill_prompt
from state.model import (
    Attempt,
    ErrorInfo,
    Experience,
    ExperienceKind,
    KernelExplanation,
    PredictionGrade,
    Reflection,
    TechniqueCredit,
    Verdict,
    digest_of,
)
from targets.c.machine import ARCHITECTURE_FILE
from tests.support.role_requests import PROBLEM, Answers, Blobs, evaluation_of, fenced_block, plan_reply

GOLDEN = Path(__file__).parent / "golden"
FAST = PROBLEM.kernel.replace("TILE_N = 512", "TILE_N = 256")
CONTEXT = LearningContext(
    memory=(
        Experience(
            kind=ExperienceKind.NEGATIVE,
            technique="engine",
            slow=digest_of(b"slow"),
            fast=digest_of(b"fast"),
            speedup=1.2,
            summary="Copies on GpSimd are slow\nGpSimd shares a port with Vector.",
            cites=("r1.b0.p1.k0.f0",),
        ),
    ),
    reflections=(
        Reflection(
            operator="rmsnorm_matmul",
            bottleneck="dma",
            technique="new:pair_rows",
            predicted_speedup=1.4,
            actual_speedup=1.01,
            grade=PredictionGrade.REFUTED,
            lesson="The loads were hidden behind the products.",
            seen=2,
            cites=("r1.b0.p0.k0.f0",),
        ),
    ),
    attempts=(
        Attempt(
            candidate="r1.b0.p2.k0.f0",
            parent="r0.b0.p0.k0.f0",
            technique="hoist",
            site="w_tile out of i_m",
            code=None,
            verdict=Verdict.LINT_ERROR,
            error=ErrorInfo(code="sbuf_full", message="the tiles need 300000 bytes"),
            speedup=None,
            round=1,
        ),
    ),
    credits={"new:pair_rows": TechniqueCredit(tries=2), "hoist": TechniqueCredit(tries=1)},
)
ERROR = ErrorInfo(code="sbuf_full", message="the tiles need 300000 bytes", line=16, hint="smaller tiles")
LESSON = {"lesson": "x"}
NOTHING = {"found": False}

Ask = Callable[[LlmRoles, Blobs, str], Coroutine[Any, Any, object]]
ROLES: dict[str, tuple[str, Ask]] = {
    "planner": (
        fenced_block(plan_reply()),
        lambda roles, held, target: roles.plan(held.plan_request(CONTEXT, target=target), held.read),
    ),
    "executor": (
        fenced_block(FAST, "python"),
        lambda roles, held, target: roles.implement(held.implement_request(target=target), held.read),
    ),
    "repairer": (
        fenced_block(PROBLEM.kernel, "python"),
        lambda roles, held, target: roles.implement(
            held.implement_request(
                target=target, failed=[(FAST, ERROR), (FAST.replace("256", "128"), ERROR)]
            ),
            held.read,
        ),
    ),
    "summarizer": (
        fenced_block(NOTHING),
        lambda roles, held, _: roles.summarize(held.summarize_request(FAST), held.read),
    ),
    "reflector": (
        fenced_block(LESSON),
        lambda roles, held, _: roles.reflect(held.reflect_request(evaluation_of()), held.read),
    ),
}
WHAT_IFS = "0.0371 ms predicted as it is\n0.0203 ms (-45.2 %) with dma free; no measured pair"
CASES = [("planner", "trn1"), *((role, "trn2") for role in ROLES)]


async def render_prompt(role: str, target: str) -> str:
    answer, put = ROLES[role]
    ask = Answers([answer], target=target)
    await put(LlmRoles("local", ask, session=ExplainingHost()), Blobs(), target)
    return show_blocks(ask.prompt())


def show_blocks(blocks: Iterable[PromptBlock]) -> str:
    parts = []
    for part in blocks:
        text = "(as in its file)\n" if part.lasts is TextLifetime.RELEASE else part.text
        parts.append(f"=== {part.path} ({part.lasts.name.lower()})\n{text}")
    return "\n".join(parts)


def render_session(role: str) -> str:
    held, own = Blobs(), builtin_prompts()
    asked = held.plan_request(CONTEXT)
    terms = SessionRequest(turns=16, context=asked.context, bounds=asked.bounds, within_percent=2.0)
    room = TokenBudget(100_000, estimate_tokens, "trn2", own)
    if role == planner_session.ROLE:
        request = asked.model_copy(update={"session": terms, "most_plans": 4})
        values = planner_session.make_fill(request, held.read, PlannerOptions())(room)
    else:
        values = fill_prompt(held.implement_request().model_copy(update={"session": terms}), held.read, room)
    return show_blocks(own.render_role(role, "trn2", values))


class ExplainingHost:
    """A session's host with a lab that predicts what-ifs."""

    @property
    def lab(self):
        return self

    async def explain(self, source: str, topics: Sequence[str]) -> KernelExplanation:
        assert source == PROBLEM.kernel
        return KernelExplanation(latency_ms=0.0371, topics=dict.fromkeys(topics, WHAT_IFS))


@pytest.mark.parametrize("failed", [(), ((FAST, ERROR),)], ids=["first", "repair"])
def test_a_session_is_told_its_plan_and_its_kernel_and_looks_up_the_rest(failed):
    held = Blobs()
    plan = held.plan_request(CONTEXT)
    session = SessionRequest(turns=16, context=plan.context, bounds=plan.bounds, within_percent=2.0)
    request = held.implement_request(failed=failed).model_copy(update={"session": session})
    own = builtin_prompts()
    values = fill_prompt(request, held.read, TokenBudget(100_000, estimate_tokens, "trn2", own))
    blocks = own.render_role("session", "trn2", values)
    told = "\n".join(block.text for block in blocks)
    assert failed or estimate_tokens(told) < 3000
    assert ("that was refused (v1)" in told) == bool(failed)
    last_line = PROBLEM.kernel.strip().split("\n")[-1]
    for said in (last_line, "model bound", request.plan.title, "turns: 16"):
        assert said in told


@pytest.mark.parametrize("role", ["session", planner_session.ROLE])
def test_a_session_s_prompt_is_rendered_as_it_was(role):
    assert_golden(GOLDEN / f"{role}-trn2.txt", render_session(role))


@pytest.mark.parametrize(("role", "target"), CASES)
async def test_a_prompt_is_rendered_as_it_was(role, target):
    assert_golden(GOLDEN / f"{role}-{target}.txt", await render_prompt(role, target))


def assert_golden(path: Path, found: str) -> None:
    if os.environ.get("UPDATE_PROMPTS"):
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")


def test_texts_are_told_each_target_with_its_words_as_they_were():
    path = GOLDEN / "told.json"
    own = builtin_prompts()
    found = {
        f"{role} {target}": {
            block.path: hashlib.sha256(block.text.encode()).hexdigest()[:16]
            for block in told
            if block.path != ARCHITECTURE_FILE
        }
        for role in own.manifest.roles
        for target in own.manifest.targets
        for told in [own.role_blocks(role, target)]
    }
    if os.environ.get("UPDATE_PROMPTS"):
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    assert found == json.loads(path.read_text(encoding="utf-8"))


def test_a_text_that_changed_has_another_version():
    path = GOLDEN / "versions.json"
    own = builtin_prompts()
    found = {
        name: [item.version, hashlib.sha256(own.files[name].encode()).hexdigest()[:16]]
        for name, item in own.manifest.items.items()
        if name != ARCHITECTURE_FILE
    }
    if os.environ.get("UPDATE_PROMPTS"):
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    held = json.loads(path.read_text(encoding="utf-8"))
    same_version = [
        name for name, (version, text) in found.items() if name in held and held[name] != [version, text]
        and held[name][0] == version
    ]  # fmt: skip
    assert same_version == [], "raise their versions in the manifest"
    assert found == held
