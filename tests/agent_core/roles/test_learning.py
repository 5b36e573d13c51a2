"""The summarizer and the reflector of models: what they may say, and what is settled without them."""

from __future__ import annotations

import pytest

from agent_core.prompting import builtin_prompts
from agent_core.roles import RoleError
from agent_core.roles.llm import LlmRoles
from agent_core.roles.mechanical import reflection_of
from state.model import Experience, PredictionGrade, Verdict
from tests.support.role_requests import (
    PROBLEM,
    Answers,
    Blobs,
    benchmark_of,
    evaluation_of,
    fenced_block,
    write_profile,
)

FAST = PROBLEM.kernel.replace("TILE_N = 512", "TILE_N = 256")
FOUND = {
    "found": True,
    "title": "Load once what every row needs",
    "strategy": "Move loads that do not depend on the loop in front of it: DMA was the bottleneck.",
    "before": "for i:\n    load w\n    use w",
    "after": "load w\nfor i:\n    use w",
    "applies_when": "w fits SBUF and DMA bounds",
}


async def summarize_attempt(*answers: str, **changes: object) -> tuple[Experience | None, Answers]:
    held, ask = Blobs(), Answers(answers)
    answer = await LlmRoles("local", ask).summarize(held.summarize_request(FAST, **changes), held.read)
    return answer.experience, ask


async def test_an_experience_has_title_strategy_pseudocode_speed_up_conditions_and_evidence():
    found, ask = await summarize_attempt(fenced_block(FOUND))
    assert found is not None
    assert found.summary == (
        "Load once what every row needs\n"
        "Move loads that do not depend on the loop in front of it: DMA was the bottleneck.\n"
        "Before:\n    for i:\n        load w\n        use w\n"
        "After:\n    load w\n    for i:\n        use w\n"
        "Applies when: w fits SBUF and DMA bounds\n"
        "Speed-up (predicted): 1.250, from r0.b0.p0.k0.f0 and r1.b0.p0.k0.f0"
    )
    assert found.speedup == pytest.approx(1.25)
    assert found.cites == ("r0.b0.p0.k0.f0", "r1.b0.p0.k0.f0")
    told = ask.values()
    assert (told["kind"], told["speedup"]) == ("positive", "1.250")
    assert PROBLEM.kernel.strip() in told["slow"]
    assert "0.8 ms (predicted, 0.72 to 0.88)" in told["fast"]


async def test_a_measured_speed_up_is_called_measured():
    held = Blobs()
    measured = benchmark_of(0.8).model_copy(update={"predicted": False, "samples": 5})
    ask = Answers([fenced_block(FOUND)])
    request = held.summarize_request(FAST, measured)
    found = (await LlmRoles("local", ask).summarize(request, held.read)).experience
    assert found is not None
    assert "Speed-up (measured): 1.250" in found.summary


async def test_no_optimisation_found_makes_no_experience():
    found, _ = await summarize_attempt(fenced_block({"found": False}))
    assert found is None


async def test_half_an_experience_is_told_and_then_an_error():
    half = fenced_block({**FOUND, "after": " "})
    found, ask = await summarize_attempt(half, fenced_block(FOUND))
    assert found is not None
    assert "after: missing" in ask.values()["fault"]
    with pytest.raises(RoleError, match="unreadable_answer"):
        await summarize_attempt(half, half)


# --- reflector ------------------------------------------------------------------------------------


async def test_the_grade_is_arithmetic_and_the_model_says_why():
    held, ask = Blobs(), Answers([fenced_block({"lesson": "The loads of w\nwere hidden already."})])
    after = write_profile().replace('"hbm_read_bytes":2359296', '"hbm_read_bytes":1048576')
    request = held.reflect_request(evaluation_of(profile=held.put(after)))
    note = (await LlmRoles("local", ask).reflect(request, held.read)).reflection
    graded = reflection_of(request)
    assert graded.grade is PredictionGrade.OVERSTATED
    assert note == graded.model_copy(update={"lesson": "The loads of w were hidden already."})
    told = ask.values()
    assert told["grade"].startswith("overstated; by arithmetic: hoist at i_m: predicted 1.500x")
    assert "1.500 times as fast, hbm_read_bytes falls; w is read 32 times" in told["prediction"]
    assert "- latency after: 0.9 ms (predicted" in told["outcome"]
    assert "- hbm_read_bytes: 2.3593e+06 before, 1.04858e+06 after" in told["outcome"]


async def test_an_example_of_the_task_is_no_lesson():
    copied = fenced_block({"lesson": "Because the stores were hidden behind the loads\nalready."})
    own = fenced_block({"lesson": "The stores waited for the loads."})
    held, ask = Blobs(), Answers([copied, own])
    note = (await LlmRoles("local", ask).reflect(held.reflect_request(evaluation_of()), held.read)).reflection
    assert note.lesson == "The stores waited for the loads."
    assert "an example of the task" in ask.values()["fault"]


async def test_the_example_of_a_lesson_is_none_of_another_attempt():
    text = builtin_prompts().files["guide/lesson_example.md"]
    held, ask = Blobs(), Answers([text, fenced_block({"lesson": "The stores waited for the loads."})])
    note = (await LlmRoles("local", ask).reflect(held.reflect_request(evaluation_of()), held.read)).reflection
    assert note.lesson == "The stores waited for the loads."


async def test_the_example_of_an_experience_is_none_of_another_pair():
    text = builtin_prompts().files["guide/experience_example.md"]
    ask = Answers([text, fenced_block({"found": False})])
    held = Blobs()
    answer = await LlmRoles("local", ask).summarize(held.summarize_request(FAST), held.read)
    assert answer.experience is None
    assert "an example of the task" in ask.values()["fault"]


async def test_a_refused_kernel_is_reflected_on_with_its_error():
    held, ask = Blobs(), Answers([fenced_block({"lesson": "Count bytes before hoisting."})])
    request = held.reflect_request(evaluation_of(Verdict.LINT_ERROR))
    note = (await LlmRoles("local", ask).reflect(request, held.read)).reflection
    assert (note.grade, note.lesson) == (PredictionGrade.FAILED, "Count bytes before hoisting.")
    assert "- verdict: lint_error" in ask.values()["outcome"]
    assert "sbuf_full: the tiles need 300000 bytes" in ask.values()["outcome"]


async def test_without_a_verdict_no_model_is_asked():
    held, ask = Blobs(), Answers([])
    request = held.reflect_request(None)
    note = (await LlmRoles("local", ask).reflect(request, held.read)).reflection
    assert (note, ask.asked) == (reflection_of(request), [])


async def test_a_model_cannot_change_the_grade():
    held = Blobs()
    ask = Answers([fenced_block({"lesson": "x", "grade": "confirmed"}), fenced_block({"lesson": "x"})])
    request = held.reflect_request(evaluation_of())
    note = (await LlmRoles("local", ask).reflect(request, held.read)).reflection
    assert note.grade is PredictionGrade.OVERSTATED
    assert "grade" in ask.values()["fault"]
