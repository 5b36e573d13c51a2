"""`agentctl why`: tells a kernel's story in prose: what was planned, expected and found, and how it ended."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from shutil import get_terminal_size

import click

from agentctl.app import Session, common_options
from agentctl.completers import complete_runs
from agentctl.formatting import (
    LEVELS,
    format_confidence,
    format_count,
    format_discard_reason,
    format_latency,
    format_percent,
    format_speedup,
    format_start,
)
from agentctl.run_lookup import find_run
from agentctl.terminal_style import escape_marks, style
from agentctl.views import as_json
from agentctl.views.candidate import BEST, CandidateView, Judgement, load_candidate
from daemon import exits
from state.model import (
    INITIAL_KEY,
    PERSON,
    RESOLUTION_RATIO,
    SIMPLIFIED_SLOT,
    TRANSLATION_KEY,
    Level,
    Verdict,
)
from state.reader import LogReader

MAX_WIDTH = 100
"""The maximum width of prose, because longer lines are hard to read."""

GRADES = {
    "confirmed": "which confirms what was expected",
    "overstated": "which is less than was expected",
    "understated": "which is more than was expected",
    "refuted": "which refutes what was expected",
    "failed": "so that nothing of what was expected could be seen",
}
"""What each grade of a prediction means, in words that follow the outcome."""

VERDICTS = {
    "incorrect": "it computed something else",
    "lint_error": "it breaks a rule that is checked before anything runs",
    "compile_error": "it does not compile",
    "runtime_error": "it failed as it was traced",
    "timeout": "it took too long",
    "unstable": "its latency could not be settled",
}

DECISIONS = {
    "not_selected": "It was discarded: it is correct, but the beam was full of faster ones.",
    "slower": "It was discarded: it is not faster than what it was made from.",
    "refuted": "It was taken back: when more of its outputs was compared, it was wrong.",
    "infrastructure": "It was given up: it could not be judged, for no fault of its own.",
}


@click.command(epilog=exits.epilog())
@click.argument("run", shell_complete=complete_runs)
@click.argument("kernel", metavar="[CANDIDATE]", required=False, default=BEST)
@common_options
def why(session: Session, run: str, kernel: str) -> None:
    """Explain a kernel: its plan, prediction, outcome and lesson, with the events that say so.

    CANDIDATE is an id such as r1.b0.p2.k0.f0, `initial` or `best`; left out: the best.
    """
    with LogReader.open(session.home) as reader, session.progress_bar("reading the run"):
        run = str(find_run(reader, run)["run"])
        found = load_candidate(reader, run, kernel)
    session.emit(as_json(found), "\n".join(format_story(found)))


def format_story(found: CandidateView) -> Iterator[str]:
    """Yield a kernel's story as lines of paragraphs."""
    width = min(MAX_WIDTH, get_terminal_size().columns)
    yield style(f"{found.id} of {found.run}", "head")
    for sentences in (
        _origin_sentences(found),
        _plan_sentences(found),
        _outcome_sentences(found),
        _decision_sentences(found),
        _lesson_sentences(found),
    ):
        if text := " ".join(sentences):
            yield ""
            yield from textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def _origin_sentences(found: CandidateView) -> Iterator[str]:
    if found.id == INITIAL_KEY.candidate_id:
        yield "This is the kernel that the run started from."
        return
    if found.id == TRANSLATION_KEY.candidate_id:
        made = _event_reference(found, "kernel")
        yield f"This is the problem's reference, translated into a kernel{made}, from which the run started."
        return
    if found.author == PERSON:
        yield f"A person proposed it in round {found.round}{_event_reference(found, 'kernel')}"
        note = escape_marks(" ".join(found.note.split()))
        yield f'saying: "{note}".' if note else "without a note."
        return
    if found.slot == SIMPLIFIED_SLOT:
        made, note = _event_reference(found, "kernel"), found.note.partition(": ")[2] or found.note
        yield f"Before the run ended, {found.parent or 'its best kernel'} was simplified{made}: {note}."
        return
    if found.planner_failed:
        who = found.model or found.planner or "somebody"
        yield f"{who} was to plan it in round {found.round}, to improve {found.parent}."
        return
    line = f"It was made in round {found.round} from {found.parent}"
    steps = len(found.parents)
    yield f"{line}, {format_count(steps, 'step')} from {format_start(found.parents[0])}."
    if found.repair:
        yield f"It is repair {found.repair} of {found.repairs[0] if found.repairs else 'another'}."


def _plan_sentences(found: CandidateView) -> Iterator[str]:
    expected = found.expected
    if expected is None:
        return
    who = found.model or found.planner or "somebody"
    what = f"the technique {found.technique} at {found.site}"
    yield f'{who} planned{_event_reference(found, "plan")}: "{found.title}", {what}.'
    if len(found.steps) > 1:
        yield f"That is {format_count(len(found.steps), 'rewrite')} together."
    counter = ""
    if expected.counter is not None:
        counter = f", with {expected.counter} {'rising' if expected.direction > 0 else 'falling'}"
    reason = f": {expected.reason}" if expected.reason else ""
    speedup = format_speedup(expected.speedup)
    yield f"Before it was tried, {speedup} over its parent was expected{counter}{reason}."


def _outcome_sentences(found: CandidateView) -> Iterator[str]:
    if found.planner_failed and found.failure is not None:
        why_not = f"{found.failure.message} [{found.failure.code}]"
        yield f"There is no plan{_event_reference(found, 'plan')}: {why_not}."
        return
    if found.failure is not None:
        where = _event_reference(found, "evaluation" if "evaluation" in found.places else "kernel")
        yield f"It came to no verdict{where}: {found.failure.message} [{found.failure.code}]."
        return
    if not found.judgements:
        yield "It has no verdict yet."
        return
    if found.verdict != Verdict.CORRECT:
        yield from _refusal_sentences(found)
        return
    if found.benchmark is None:
        yield "It is correct, and has no latency: data decide how often one of its loops runs."
    else:
        bound = f" and bound by {found.bottleneck}" if found.bottleneck else ""
        latency = format_latency(found.benchmark)
        yield f"The judge found it correct{_event_reference(found, 'evaluator')}, at {latency}{bound}."
    if found.level is not None:
        yield f"It was compared on {LEVELS[Level(found.level)]}."
    yield from _identity_sentences(found.judgements[-1])
    yield from _gain_sentences(found)


def _refusal_sentences(found: CandidateView) -> Iterator[str]:
    last = next(one for one in reversed(found.judgements) if one.verdict == found.verdict)
    said = VERDICTS.get(last.verdict, last.verdict)
    before = "It looked correct at first; then " if found.refuted else ""
    error = ""
    if last.error is not None:
        line = f"line {last.error.line}: " if last.error.line is not None else ""
        error = f": {line}{last.error.message} [{last.error.code}]"
    text = f"{before}the judge refused it ({last.place}) in its stage {last.stage}, as {said}{error}."
    yield text[0].upper() + text[1:]
    if last.error is not None and last.error.hint:
        yield f"What would help: {last.error.hint}."


def _identity_sentences(last: Judgement) -> Iterator[str]:
    if last.identity == "proven":
        yield "Its formula was proven to be the reference's."
    elif last.identity is not None:
        why_not = f": {last.identity_reason}" if last.identity_reason else ""
        yield f"That it computes the reference's formula was tested in numbers only{why_not}."


def _gain_sentences(found: CandidateView) -> Iterator[str]:
    if found.history:
        yield "That was found before a fork that judges by something else: it compares with nothing after."
        return
    if found.speedup is None or found.parent is None:
        return
    share = found.wins_percent
    sure = ""
    if share is not None and abs(found.speedup - 1) > RESOLUTION_RATIO:
        sure = f", {format_confidence(share)}"
    initial = f", and {format_speedup(found.gain)} over the initial kernel" if found.gain is not None else ""
    yield f"That is {format_speedup(found.speedup)} over its parent{sure}{initial}."


def _decision_sentences(found: CandidateView) -> Iterator[str]:
    if found.planner_failed:
        return
    place = _event_reference(found, "decision")
    match found.decision, found.reason:
        case "kept", _ if found.slot == SIMPLIFIED_SLOT:
            yield f"It took the place of {found.parent}{place}: it is simpler, and as fast."
        case "discarded", "slower" if found.slot == SIMPLIFIED_SLOT:
            yield f"It was discarded{place}: it is simpler, but not as fast as {found.against}."
        case "kept", _:
            what = "explorer" if found.role == "explorer" else "one of the best"
            yield f"It was kept{place} as {'an' if what == 'explorer' else ''} {what}.".replace("as  ", "as ")
        case "discarded", "duplicate":
            yield f"It was discarded{place}: its code is the same as that of {found.duplicate_of}."
        case "discarded", "uncertain":
            share = format_percent(found.against_wins_percent)
            yield f"It was discarded{place} as uncertain: against {found.against}"
            yield f"it is faster with only {share} confidence."
        case "discarded", reason:
            usual = f"It was discarded: {format_discard_reason(str(reason))}."
            yield DECISIONS.get(str(reason), usual).replace(":", f"{place}:", 1)
        case _:
            yield "Nothing was decided about it yet."
    if found.children:
        verb = "was" if len(found.children) == 1 else "were"
        yield f"{format_count(len(found.children), 'kernel')} {verb} made from it."


def _lesson_sentences(found: CandidateView) -> Iterator[str]:
    lesson = found.lesson
    if lesson is not None:
        came = (
            "nothing came of it"
            if lesson.actual_speedup is None
            else f"{format_speedup(lesson.actual_speedup)} came"
        )
        predicted = format_speedup(lesson.predicted_speedup)
        grade = GRADES.get(lesson.grade, lesson.grade)
        noted = _event_reference(found, "reflection")
        yield f"Afterwards{noted}: {predicted} was expected, {came}, {grade}."
        yield f'The run noted: "{lesson.lesson}".'
    if found.experience:
        yield f'And for later{_event_reference(found, "experience")}: "{found.experience}".'


def _event_reference(found: CandidateView, what: str) -> str:
    """Return a reference to the event, to follow a sentence."""
    return f" ({found.places[what]})" if what in found.places else ""
