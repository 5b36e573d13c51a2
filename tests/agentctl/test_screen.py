"""What people see of a run: the tracker's numbers, the words for them, the screens and the report."""

from __future__ import annotations

import io
import re
from collections import Counter
from itertools import pairwise

import pytest

from agentctl import formatting
from agentctl.formatting import format_round
from agentctl.run_summary import (
    format_gain,
    gap_closed_percent,
    summary_json,
    summary_text,
    write_best_kernel,
)
from agentctl.run_tracker import RunTracker, trace_lineage
from agentctl.screen import PlainScreen, TerminalScreen, create_screen, status_lines
from agentctl.views import as_json as as_view
from agentctl.views.run import bound_percent, run_view, status_word
from state.events import KernelDiscarded
from state.fold import apply_event
from state.model import TRANSLATION_KEY, Candidate, Level, StopReason
from state.reader import LogReader


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def history(home, finished):
    with LogReader.open(home) as reader:
        return reader.read(stream=finished, limit=10_000)


def tracked(run: str, history, upto: int | None = None) -> RunTracker:
    tracker = RunTracker(run)
    for item in history[:upto]:
        tracker.add(item)
    return tracker


def shown(screen, run: str, history) -> None:
    tracker = RunTracker(run)
    with screen:
        screen.show_state(tracker)
        for item in history:
            tracker.add(item)
            screen.show_event(item, tracker)
            screen.show_state(tracker)


def test_the_tracker_folds_what_it_reads(finished, history):
    tracker = tracked(finished, history)
    state = None
    for item in history:
        state = apply_event(state, item.event)
    assert tracker.state == state
    assert tracker.has_ended
    assert tracker.position == history[-1].seq
    assert tracker.elapsed_seconds == pytest.approx((history[-1].ts_us - history[0].ts_us) / 1e6)


def test_a_summary_can_be_made_at_every_event(finished, history):
    for upto in range(1, len(history) + 1):
        tracker = tracked(finished, history, upto)
        numbers = as_view(run_view(finished, tracker.state))
        assert numbers["id"] == finished
        assert (numbers["best_ms"] is None) == (tracker.state.best is None)
        assert status_lines(tracker, 61.0).startswith(f"round {numbers['round']}/2, ")
    assert numbers["percent_of_tight_bound"] == pytest.approx(
        100 * numbers["tight_bound_ms"] / numbers["best_ms"]
    )


def test_an_unknown_cost_is_not_called_zero(finished, history):
    state = tracked(finished, history).state.model_copy(update={"unknown_cost": True})
    assert run_view(finished, state).spent_usd is None
    assert formatting.format_usd(None) == "unknown"


def test_the_lineage_leads_from_the_initial_kernel_to_the_best(finished, history):
    tracker = tracked(finished, history)
    line = trace_lineage(tracker.kept, tracker.state.best)
    assert line[0] == tracker.state.initial
    assert line[-1] == tracker.state.best
    assert all(after.parent == before.id for before, after in pairwise(line))
    assert trace_lineage({}, None) == []


def test_a_lineage_that_bites_its_tail_ends(finished, history):
    best = tracked(finished, history).state.best
    loop: dict[str, Candidate] = {"a": best.model_copy(update={"id": "a", "parent": "b"})}
    loop["b"] = best.model_copy(update={"id": "b", "parent": "a"})
    assert [one.id for one in trace_lineage(loop, loop["a"])] == ["b", "a"]


def test_plain_progress_is_a_line_for_what_matters(finished, history):
    out = io.StringIO()
    shown(PlainScreen(out), finished, history)
    lines = out.getvalue().splitlines()
    assert lines[0].startswith(f"run {finished}: silu (reduced) on trn2, seed 25, at most 2 rounds")
    assert lines[1] == "initial kernel: 2.32 ms predicted"
    assert [line for line in lines if line.startswith("round")] == [
        "round 1 of at most 2",
        "round 2 of at most 2",
    ]
    assert any("better: r" in line for line in lines)
    assert lines[-1].startswith(f"run {finished} completed: all rounds done")
    assert len(lines) < len(history) / 2


def test_a_round_for_kernels_that_came_in_late_is_not_counted_with_the_others():
    assert [format_round(number, 2) for number in (1, 2, 3)] == [
        "round 1 of at most 2",
        "round 2 of at most 2",
        "round 3, for kernels that came in after the last of 2",
    ]


def test_on_a_terminal_the_same_lines_stand_above_a_moving_status(finished, history):
    plain, tty = io.StringIO(), Tty()
    shown(PlainScreen(plain), finished, history)
    shown(create_screen(tty), finished, history)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", tty.getvalue())
    for line in plain.getvalue().splitlines():
        assert line[:70] in text
    assert "spent $0.00" in text
    assert "0 proposed, 1 evaluated, 0 failed" in text


def test_the_screen_suits_where_it_goes():
    assert isinstance(create_screen(io.StringIO()), PlainScreen)
    assert isinstance(create_screen(Tty()), TerminalScreen)


def test_the_report_says_what_was_found_and_where(home, finished, history):
    tracker = tracked(finished, history)
    with LogReader.open(home) as reader:
        path = write_best_kernel(reader, home, finished, tracker.state, None)
        assert path.read_bytes() == reader.get_blob(tracker.state.best.source)
    text = summary_text(tracker, path)
    assert "initial  2.32 ms predicted" in text
    assert f"best     {formatting.format_ms(tracker.state.best.latency_ms)} predicted" in text
    assert f"The best kernel is in {path}" in text
    assert "agentctl status" in text
    assert f"agentctl tail --run {finished}" in text
    for number, one in enumerate(trace_lineage(tracker.kept, tracker.state.best)[1:], 1):
        assert f"  {number}. {one.title} [{one.technique}]" in text
    assert summary_json(tracker, path)["kernel_file"] == str(path)


def test_the_report_of_a_run_that_gained_nothing(home, finished, history):
    tracker = tracked(finished, history)
    tracker.state = tracker.state.model_copy(update={"best": tracker.state.initial})
    assert "No change made it faster." in summary_text(tracker, home)
    audited = tracker.state.initial.model_copy(update={"level": Level.WHOLE})
    tracker.kept = {audited.id: audited}
    tracker.state = tracker.state.model_copy(update={"best": audited})
    assert "No change made it faster." in summary_text(tracker, home)
    assert gap_closed_percent(tracker.state) == 0


def test_the_report_of_a_run_that_ends_with_the_translation_speaks_of_no_fork(home, finished, history):
    tracker = tracked(finished, history)
    translated = tracker.state.initial.model_copy(update={"id": TRANSLATION_KEY.candidate_id})
    tracker.kept[translated.id] = translated
    tracker.state = tracker.state.model_copy(update={"best": translated})
    text = summary_text(tracker, home)
    assert "it came from the translation of the reference" in text
    assert "No change made it faster." in text
    assert "fork" not in text


def test_the_report_of_a_run_in_which_every_question_failed_says_why(finished, history):
    tracker = tracked(finished, history)
    why = "a round without a kernel to judge: llm_auth: local/m does not take the key"
    changes = {"stop": StopReason.NO_PROPOSALS, "status_reason": why}
    tracker.state = tracker.state.model_copy(update=changes)
    assert why in summary_text(tracker, None, width=200)
    assert summary_json(tracker, None)["detail"] == why


def test_an_unfinished_run_without_an_owner_is_interrupted(finished, history):
    state = tracked(finished, history, 20).state
    assert [status_word(state, owned=owned) for owned in (True, False)] == ["running", "interrupted"]
    over = tracked(finished, history).state
    assert status_word(over, owned=False) == "completed"


def test_the_report_of_a_run_without_a_correct_kernel(home, finished, history):
    tracker = tracked(finished, history, 1)
    tracker.state = tracker.state.model_copy(
        update={"stop": StopReason.INITIAL_REJECTED, "status_reason": "incorrect: wrong"}
    )
    assert "found no correct kernel: incorrect: wrong" in summary_text(tracker, None)
    with LogReader.open(home) as reader:
        assert write_best_kernel(reader, home, finished, tracker.state, None) is None
    assert not (home / "results").exists()


def test_the_share_of_the_gap_that_was_closed(finished, history):
    state = tracked(finished, history).state
    tight = state.bounds.tight_ms
    halfway = (state.initial.latency_ms + tight) / 2
    benchmark = state.best.benchmark.model_copy(update={"latency_ms": halfway})
    best = state.best.model_copy(update={"benchmark": benchmark})
    assert gap_closed_percent(state.model_copy(update={"best": best})) == pytest.approx(50)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (61.9, "1:01"), (3599, "59:59"), (3600, "1:00:00"), (90_061, "25:01:01")],
)
def test_durations(seconds, text):
    assert formatting.format_duration(seconds) == text


def test_numbers_that_are_not_known_yet():
    assert [
        formatting.format_ms(None),
        formatting.format_speedup(None),
        formatting.format_percent(None),
        bound_percent(1.0, None),
    ] == [
        "-",
        "-",
        "-",
        None,
    ]
    assert formatting.format_ms(0.0123456) == "0.01235 ms"
    assert formatting.format_speedup(1.234) == "1.23x"
    assert formatting.format_percent(12.34) == "12.3 %"
    assert formatting.format_usd(1.5) == "$1.50"


def test_a_measured_latency_is_not_called_predicted(finished, history):
    benchmark = tracked(finished, history).state.best.benchmark
    assert formatting.format_latency(benchmark).endswith("predicted")
    assert formatting.format_latency(benchmark.model_copy(update={"predicted": False})).endswith("measured")


def with_interval(candidate: Candidate, lo_ms: float, hi_ms: float, **changed: float) -> Candidate:
    benchmark = candidate.benchmark.model_copy(update={"lo_ms": lo_ms, "hi_ms": hi_ms, **changed})
    return candidate.model_copy(update={"benchmark": benchmark})


def test_a_latency_is_given_with_its_interval(finished, history):
    tracker = tracked(finished, history)
    initial = with_interval(tracker.state.initial, 2.25, 2.5)
    best = with_interval(tracker.state.best, 1.9, 2.125)
    tracker.state = tracker.state.model_copy(update={"initial": initial, "best": best})
    text = summary_text(tracker, None)
    assert "initial  2.32 ms predicted (2.25 to 2.5)" in text
    assert f"{formatting.format_ms(best.latency_ms)} predicted (1.9 to 2.125), 1." in text
    numbers = as_view(run_view(finished, tracker.state))
    assert (numbers["initial_lo_ms"], numbers["initial_hi_ms"]) == (2.25, 2.5)
    assert (numbers["best_lo_ms"], numbers["best_hi_ms"]) == (1.9, 2.125)
    *_, last = summary_json(tracker, None)["lineage"]
    assert (last["lo_ms"], last["hi_ms"]) == (1.9, 2.125)


def with_draws(candidate: Candidate, *draws_ms: float) -> Candidate:
    return candidate.model_copy(
        update={"benchmark": candidate.benchmark.model_copy(update={"draws_ms": draws_ms})}
    )


def test_a_gain_is_given_with_the_share_of_draws_in_which_it_holds(finished, history):
    tracker = tracked(finished, history)
    initial = with_draws(tracker.state.initial, 3.0, 3.0, 3.0)
    best = with_draws(tracker.state.best, 2.0, 3.0, 4.0)
    tracker.state = tracker.state.model_copy(update={"initial": initial, "best": best})
    text = summary_text(tracker, None)
    assert "x, faster with 50.0 % confidence" in text
    assert as_view(run_view(finished, tracker.state))["best_wins_percent"] == 50.0


def test_a_gain_below_what_the_model_resolves_is_too_small_to_tell(finished, history):
    one = with_draws(tracked(finished, history).state.initial, 3.0, 3.0).benchmark
    near, far = (one.model_copy(update={"latency_ms": share * one.latency_ms}) for share in (0.996, 0.994))
    assert formatting.format_wins(near, one) == ", too small to tell"
    assert formatting.format_wins(far, one) == ", faster with 50.0 % confidence"


def test_the_report_counts_what_was_discarded_by_reason(finished, history):
    tracker = tracked(finished, history)
    tracker.discarded = Counter({"uncertain": 1, "not_selected": 3})
    assert "  discarded 4: 3 not selected, 1 uncertain\n" in summary_text(tracker, None, width=200)
    told = Counter(item.event.reason for item in history if isinstance(item.event, KernelDiscarded))
    assert summary_json(tracked(finished, history), None)["discarded"] == dict(told)


def test_without_draws_nothing_is_said_of_them(finished, history):
    tracker = tracked(finished, history)
    first = with_draws(tracker.state.initial)
    assert formatting.format_wins(first.benchmark, tracker.state.best.benchmark) == ""
    assert formatting.format_wins(first.benchmark, None) == ""


def test_an_interval_without_width_says_nothing(finished, history):
    exact = tracked(finished, history).state.initial.benchmark
    assert formatting.format_latency(exact) == formatting.format_brief_latency(exact) == "2.32 ms predicted"


@pytest.mark.parametrize(
    ("speedup", "text"),
    [
        (1.5, "1.50x"),
        (1.005, "1.00x"),
        (1.004, "slight (0.4 %)"),
        (1.0, "no gain by itself"),
        (1 + 1e-12, "no gain by itself"),
        (0.9, "slower by itself"),
    ],
)
def test_a_step_is_a_gain_only_when_it_is_one(speedup, text):
    assert format_gain(speedup) == text


def test_a_step_without_a_gain_is_marked_in_the_report(finished, history):
    tracker = tracked(finished, history)
    best = tracker.state.best
    same = best.model_copy(update={"id": "r9.b0.p0.k0.f0", "parent": best.id, "title": "for nothing"})
    tracker.state = tracker.state.model_copy(update={"best": same})
    lines = summary_text(tracker, None, width=200).splitlines()
    (line,) = [line for line in lines if "for nothing" in line]
    assert line.endswith(", no gain by itself")


def test_a_latency_below_the_tight_bound_is_called_impossible(finished, history):
    tracker = tracked(finished, history)
    assert "impossible" not in summary_text(tracker, None)
    assert formatting.explain_latency_below_bound(tracker.state) is None
    tight = tracker.state.bounds.tight_ms
    best = with_interval(tracker.state.best, tight / 3, tight, latency_ms=tight / 2)
    tracker.state = tracker.state.model_copy(update={"best": best})
    assert "impossible: 200.0 % of the model bound" in summary_text(tracker, None)
    assert "impossible: 200.0 % of the model bound" in formatting.format_run_state(tracker.state)
    measured = best.model_copy(update={"benchmark": best.benchmark.model_copy(update={"predicted": False})})
    state = tracker.state.model_copy(update={"best": measured})
    note = "200.0 % of the model bound: the device is faster than the constants of the model"
    assert formatting.explain_latency_below_bound(state) == note


def test_a_latency_on_the_tight_bound_is_possible(finished, history):
    state = tracked(finished, history).state
    tight = state.bounds.tight_ms
    best = with_interval(state.best, tight, tight, latency_ms=tight)
    assert formatting.explain_latency_below_bound(state.model_copy(update={"best": best})) is None
    assert formatting.explain_latency_below_bound(state.model_copy(update={"best": None})) is None


@pytest.mark.parametrize("width", [40, 60, 80])
def test_the_report_breaks_lines_between_words_only(finished, history, width):
    tracker = tracked(finished, history)
    text = summary_text(tracker, "a folder/best.py", width=width)
    assert text.split() == summary_text(tracker, "a folder/best.py", width=500).split()
    whole = ("The best kernel is in a folder/best.py", "Your own kernel", "Look further", "              ")
    broken = [line for line in text.splitlines() if not line.startswith(whole)]
    assert all(len(line) <= width or " " not in line.strip() for line in broken)
    assert "The best kernel is in a folder/best.py" in text.splitlines()


def test_one_round_is_not_rounds():
    assert [formatting.format_count(number, "round") for number in (0, 1, 2)] == [
        "0 rounds",
        "1 round",
        "2 rounds",
    ]


def test_every_end_of_a_run_has_words():
    assert set(formatting.STOP_REASONS) == set(StopReason)
    assert formatting.format_stop_reason(StopReason.ROUNDS, "1 rounds") == "all rounds done"
    assert formatting.format_stop_reason(StopReason.NO_PROPOSALS, "none") == "nothing left to try: none"
    assert formatting.format_stop_reason(StopReason.PLATEAU, "") == "no more gains"


@pytest.fixture
def script(tmp_path, monkeypatch):
    """An environment's `agentctl`, which is not on PATH."""
    path = tmp_path / "a folder" / "bin" / "agentctl"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.setattr("agentctl.formatting.sys.executable", str(path.with_name("python")))
    monkeypatch.setenv("PATH", str(tmp_path))
    return path


def test_a_command_is_given_as_it_can_be_typed(script, tmp_path, monkeypatch):
    assert formatting.format_command("status", "--home", "my home") == f"'{script}' status --home 'my home'"
    monkeypatch.chdir(tmp_path)
    assert formatting.format_command("status") == "'a folder/bin/agentctl' status"
    monkeypatch.setenv("PATH", str(script.parent))
    assert formatting.format_command("status") == "agentctl status"


def test_without_a_script_a_command_has_its_plain_name(script):
    script.unlink()
    assert formatting.format_command("status") == "agentctl status"
