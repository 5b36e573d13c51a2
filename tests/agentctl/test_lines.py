"""Events as lines: every type in words, without the spelling of the language they are written in."""

from __future__ import annotations

import re
from typing import Any

import pytest

from agentctl import event_lines
from agentctl.event_lines import describe_event, format_event_line
from agentctl.formatting import format_identity
from state.events import (
    BreakerClosed,
    CommandCompleted,
    CommandRejected,
    EvaluationCompleted,
    EvaluationFailed,
    EvaluationStarted,
    Event,
    ExperienceRecorded,
    KernelDiscarded,
    KernelProposed,
    KernelReverted,
    PlanFailed,
    PlanProposed,
    RunCompleted,
)
from state.model import (
    Benchmark,
    ErrorInfo,
    Evaluation,
    FormulaIdentity,
    Plan,
    Prediction,
    StopReason,
    Verdict,
)
from state.reader import LogReader

PLACE = "r4.b3.p5.k0.f0"
ERROR = ErrorInfo(code="bad_tile", message="a tile of 5", line=7)


@pytest.fixture
def items(home, finished):
    with LogReader.open(home) as reader:
        return reader.read(limit=10_000)


def evaluation(verdict: Verdict, **more: Any) -> Evaluation:
    return Evaluation(verdict=verdict, stage="benchmark", code="0" * 64, target="trn2", toolchain="t", **more)


TIMED = Benchmark(latency_ms=0.93, lo_ms=0.925, hi_ms=1.041, predicted=True, samples=1)
JUDGED = evaluation(Verdict.CORRECT, benchmark=TIMED, bottleneck="vector")
PLAN = Plan(
    technique="hoist", site="i_m", title="hoist w_tile out of i_m", prediction=Prediction(speedup=1.09)
)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (
            EvaluationCompleted(key=f"{PLACE}.evaluator", evaluation=JUDGED, cache_key="0" * 64),
            "correct on whole outputs of every seed, 0.93 ms predicted (0.925 to 1.041), vector-bound",
        ),
        (
            EvaluationCompleted(
                key=f"{PLACE}.evaluator",
                evaluation=JUDGED.model_copy(
                    update={"identity": FormulaIdentity(verdict="proven", elements=8)}
                ),
                cache_key="0" * 64,
            ),
            (
                "correct on whole outputs of every seed, proven, 0.93 ms predicted (0.925 to 1.041), "
                "vector-bound"
            ),
        ),
        (
            EvaluationCompleted(
                key=f"{PLACE}.evaluator",
                evaluation=evaluation(Verdict.LINT_ERROR, error=ERROR),
                cache_key="0" * 64,
                cached_from="silu-1@7",
            ),
            "lint_error: line 7: a tile of 5 [bad_tile]; known from silu-1@7",
        ),
        (
            EvaluationFailed(key=f"{PLACE}.evaluator", error=ERROR, tries=3),
            "3 attempts: line 7: a tile of 5 [bad_tile]",
        ),
        (PlanProposed(key=f"{PLACE}.planner", plan=PLAN), "hoist w_tile out of i_m, expects 1.09x"),
        (PlanFailed(key=f"{PLACE}.planner", error=ERROR), "line 7: a tile of 5 [bad_tile]"),
        (
            KernelProposed(key=f"{PLACE}.executor", source="0" * 64, note="two\n  lines", author="person"),
            "by person: two lines",
        ),
        (KernelProposed(key=f"{PLACE}.executor", source="0" * 64), "by builtin"),
        (KernelDiscarded(candidate=PLACE, reason="slower"), f"{PLACE}: not faster"),
        (
            KernelDiscarded(candidate=PLACE, reason="duplicate", duplicate_of="r1.b0.p0.k0.f0"),
            f"{PLACE}: duplicate of r1.b0.p0.k0.f0",
        ),
        (
            KernelDiscarded(candidate=PLACE, reason="uncertain", against="r1.b0.p0.k0.f0", wins_percent=62.5),
            f"{PLACE}: uncertain, faster than r1.b0.p0.k0.f0 with only 62.5 % confidence",
        ),
        (KernelReverted(lineage="a", dropped="b", restored="c", reason="depth"), "a: b to c, depth"),
        (ExperienceRecorded(key=f"{PLACE}.summarizer", experience=None), "nothing"),
        (EvaluationStarted(key=f"{PLACE}.evaluator", request="0" * 64), ""),
        (EvaluationStarted(key=f"{PLACE}.evaluator", request="0" * 64, delivery=2), "delivery 2"),
        (CommandCompleted(id="7", result={"run": "silu-1"}), "7, run silu-1"),
        (CommandCompleted(id="7"), "7"),
        (CommandRejected(id="7", error=ERROR), "7: line 7: a tile of 5 [bad_tile]"),
        (RunCompleted(reason=StopReason.ROUNDS, detail="2 rounds"), "all rounds done"),
        (BreakerClosed(name="openai"), "name openai"),
    ],
)
def test_an_event_in_words(event: Event, text: str):
    assert describe_event(event) == text


def test_a_type_without_words_of_its_own_shows_its_fields_and_counts_collections(items, monkeypatch):
    monkeypatch.setattr(event_lines, "_DESCRIBERS", {})
    (created,) = [item for item in items if item.type == "RunCreated"]
    text = describe_event(created.event)
    assert re.search(r"config \(\d+\)", text)
    assert "toolchain " in text


def test_every_event_of_a_run_is_one_line_of_words(items):
    assert len({item.type for item in items}) > 15
    for item in items:
        line = format_event_line(item)
        assert len(line) <= event_lines.LINE_WIDTH
        assert f"Z {item.stream}@{item.run_seq} {item.type}" in line
        assert not re.search(r"[{}\n]|None|'\w+':|[0-9a-f]{64}", line), line


def test_a_line_names_the_candidate_first(items):
    judged = next(item for item in items if item.type == "EvaluationCompleted")
    assert (
        " EvaluationCompleted r0.b0.p0.k0.f0: correct on whole outputs of one seed, 2.32 ms predicted"
        in format_event_line(judged)
    )
    started = next(item for item in items if item.type == "EvaluationStarted")
    assert format_event_line(started).endswith(" EvaluationStarted r0.b0.p0.k0.f0")


@pytest.mark.parametrize("note", ["word " * 100, "w" * 500])
def test_a_long_line_is_cut_between_words_where_there_are_any(items, note):
    item = next(item for item in items if item.type == "KernelProposed")
    long = item.event.model_copy(update={"note": note})
    line = event_lines._truncate_line(f"place KernelProposed: {describe_event(long)}")
    assert len(line) <= event_lines.LINE_WIDTH
    assert len(line) > event_lines.LINE_WIDTH - 20
    assert line.endswith("word..." if " " in note else "ww...")


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (
            FormulaIdentity(verdict="proven", elements=2048, share_percent=0.00914),
            "identity: proven, the reference's formula on 2048 elements of the outputs (0.0091 %)",
        ),
        (
            FormulaIdentity(verdict="tested", reason="maxima or comparisons decide about the result"),
            "identity: tested in numbers only, maxima or comparisons decide about the result",
        ),
    ],
)
def test_what_is_known_of_a_formula_is_said(found: FormulaIdentity, text: str) -> None:
    assert format_identity(found) == text


def test_a_note_with_line_ends_and_our_own_colours_is_one_plain_line() -> None:
    note = "fine\n\x1b[31mRUN FAILED\x1b[0m"
    said = describe_event(KernelProposed(key=f"{PLACE}.executor", source="0" * 64, note=note))
    assert said == r"by builtin: fine \x1b[31mRUN FAILED\x1b[0m"
