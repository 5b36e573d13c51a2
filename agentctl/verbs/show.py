"""`agentctl show`: prints an event, or all that the log has about a kernel, including prompts and
answers as sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click

from agentctl.app import Session, common_options
from agentctl.completers import complete_runs
from agentctl.event_lookup import find_event
from agentctl.formatting import (
    LEVELS,
    format_counter,
    format_latency,
    format_speedup,
    format_usd,
    format_work_time,
    name_counter,
)
from agentctl.run_lookup import find_run, parse_event_number
from agentctl.terminal_style import style
from agentctl.verbs.why import format_story
from agentctl.views import as_json
from agentctl.views.candidate import CandidateView, load_candidate
from agentctl.views.exchange import Exchange, load_exchanges
from agentctl.views.profile_findings import busy_lines, profile_notes, wasted_messages
from agentctl.views.session import SessionView, load_planning, load_session
from daemon import exits
from daemon.errors import DaemonError
from state.errors import BlobMissing, BlobPruned
from state.fold import dump_semantic
from state.model import Level
from state.reader import LogReader

PROMPTS = "prompts"
"""The field that names a prompt set. It is long and mostly the same, and `agentctl prompts` shows it."""

MOST_ARGUMENTS = 400
"""How many characters of a tool call's arguments a dialogue shows; `--json` has all."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


@click.command(epilog=exits.epilog())
@click.argument("place", metavar="RUN[@SEQ]", shell_complete=complete_runs)
@click.argument("kernel", required=False, metavar="[CANDIDATE]")
@click.option("--state", "want_state", is_flag=True, help="The run's state after this event instead.")
@click.option(
    "--what",
    type=click.Choice(("all", "plan", "source", "profile", "judge", "prompt", "answer", "session")),
    default="all",
    show_default=True,
    help="What to show of the kernel; prompts and answers as they were sent, a session as a dialogue.",
)
@common_options
def show(session: Session, place: str, kernel: str | None, *, want_state: bool, what: str) -> None:
    """Show event RUN@SEQ with the blobs it names (`system@SEQ` for the system stream), or a kernel of a RUN.

    CANDIDATE is an id such as r1.b0.p2.k0.f0, `initial` or `best`.
    """
    run, mark, number = place.rpartition("@")
    if kernel is not None:
        if mark or want_state:
            raise click.UsageError("give RUN@SEQ, or RUN and a CANDIDATE")
        _show_kernel(session, place, kernel, what=what)
        return
    run_seq = parse_event_number(number)
    if not mark or run_seq is None:
        raise click.UsageError(f"{place}: expected RUN@SEQ, or RUN and a CANDIDATE")
    with LogReader.open(session.home) as reader:
        item = find_event(reader, run, run_seq)
        if want_state:
            with session.progress_bar("folding events"):
                state = dump_semantic(reader.run_state(run, run_seq))
            session.emit(state, json.dumps(state, indent=2))
            return
        event = item.event.model_dump(mode="json")
        read = {digest: _read_blob(reader, digest) for digest in _find_digests(event)}
    blobs = {digest: content for digest, content in read.items() if content is not None}
    head = {
        "seq": item.seq, "run": item.stream, "run_seq": item.run_seq, "time": item.time.isoformat(),
        "cause": item.cause, "hash": item.hash, "state_hash": item.state_hash,
    }  # fmt: skip
    text = [
        f"{item.stream}@{item.run_seq} {item.type} {head['time']} (seq {item.seq})",
        json.dumps(_without_counters(event, blobs), indent=2),
    ]
    text += [f"\nblob {digest}\n{content}" for digest, content in blobs.items()]
    session.emit({**head, "event": event, "blobs": blobs}, "\n".join(text))


# --- a kernel --------------------------------------------------------------------------------------


def _show_kernel(session: Session, run: str, name: str, *, what: str) -> None:
    with LogReader.open(session.home) as reader, session.progress_bar("reading the run"):
        run = str(find_run(reader, run)["run"])
        found = load_candidate(reader, run, name)
        asked = load_exchanges(reader, run, found.id) if what in ("prompt", "answer") else ()
        held = load_session(reader, run, found.id) if what == "session" else None
        planning = load_planning(reader, run, found.id) if what == "session" else None
    if what == "session":
        if held is None and planning is None:
            raise DaemonError(f"no session was held for {found.id}", code="no_session")
        content = {"run": run, "candidate": found.id, "session": as_json(held), "planning": as_json(planning)}
        session.emit(content, "\n".join(_dialogue_lines(planning, held, found.id)))
        return
    if what in ("prompt", "answer"):
        if not asked:
            raise DaemonError(f"no model was asked for {found.id}", code="no_exchange")
        lines = [line for one in asked for line in _EXCHANGE_LINES[what](one)]
        session.emit({"run": run, "candidate": found.id, "exchanges": as_json(asked)}, "\n".join(lines))
        return
    content = as_json(found)
    fields = _FIELDS.get(what)
    if fields is not None:
        content = {name: content[name] for name in ("run", "id", *fields)}
    session.emit(content, "\n".join(_PARTS[what](found)))


def _kernel_lines(found: CandidateView) -> Iterator[str]:
    yield from format_story(found)
    yield ""
    yield from _source_lines(found)


def _plan_lines(found: CandidateView) -> Iterator[str]:
    if found.planner_failed and found.failure is not None:
        yield f"there is no plan: {found.failure.message} [{found.failure.code}]"
        return
    if found.expected is None:
        yield "nobody planned it: a run starts from it, or a person proposed it"
        return
    yield f"{found.title} [{found.technique} at {found.site}], planned by {found.model or found.planner}"
    speedup = format_speedup(found.expected.speedup)
    yield f"  expects     {speedup} over {found.parent}{_expected_counter(found)}"
    if found.expected.reason:
        yield f"  because     {found.expected.reason}"
    for number, step in enumerate(found.steps, start=1):
        yield f"  step {number:<6} {step.title} [{step.technique}], {format_speedup(step.speedup)} predicted"
    if found.detail:
        yield f"  detail      {json.dumps(found.detail, indent=2)}"


def _expected_counter(found: CandidateView) -> str:
    expected = found.expected
    if expected is None or expected.counter is None:
        return ""
    return f", {expected.counter} {'rises' if expected.direction > 0 else 'falls'}"


def _source_lines(found: CandidateView) -> Iterator[str]:
    if found.source_digest is None:
        yield "no kernel was written"
        return
    yield (found.source or "its source is not in this log any more").rstrip("\n")


def _profile_lines(found: CandidateView) -> Iterator[str]:
    if not found.counters:
        yield f"{found.id} has no profile: it was not found correct"
        return
    kind = "predicted counters" if found.latency is None or found.latency.predicted else "counters"
    said = format_latency(found.benchmark) if found.benchmark else "no latency"
    yield f"{found.id}: {said}, {found.bottleneck or 'unknown'}-bound; {kind}:"
    names = {name: name_counter(name) for name in found.counters}
    width = max(map(len, names.values()))
    for name, value in found.counters.items():
        yield f"  {names[name]:{width}}  {format_counter(name, value):>14}"
    yield from _finding_lines(found.profile)
    yield from _score_lines(found.profile)


def _finding_lines(profile: object) -> Iterator[str]:
    """Yield what a profile says beside counters."""
    yield from (f"  in vain: {line}" for line in wasted_messages(profile))
    yield from (f"  {line}" for line in busy_lines(profile))
    yield from (f"  note: {line}" for line in profile_notes(profile))


def _score_lines(profile: object) -> Iterator[str]:
    """Yield the end-to-end score, if the profile has one."""
    match profile:
        case {
            "score": {
                "ratio": float(ratio),
                "noise_ratio": float(noise),
                "better": "lower" | "higher" as better,
                "candidate": {"p50": float(), "p90": float(), "p99": float()} as ours,
                "baseline": {"p50": float(), "p90": float(), "p99": float()} as theirs,
            }
        }:
            yield f"end to end: {format_speedup(ratio)} as good as the first kernel, give or take {noise:.1%}"
            for name, found in (("this kernel", ours), ("the first", theirs)):
                told = ", ".join(f"{of} {found[of]:.4g}" for of in ("p50", "p90", "p99"))
                yield f"  {name}: {told} ({better} is better)"


def _judgement_lines(found: CandidateView) -> Iterator[str]:
    if not found.judgements:
        yield f"{found.id} has no verdict"
    for one in found.judgements:
        reused = f", as {one.cached_from} had found" if one.cached_from else ""
        verdict = style(one.verdict, "good" if one.verdict == "correct" else "bad")
        how = f"judged on {LEVELS[Level(one.level)]}, up to stage {one.stage}"
        yield f"{one.role} ({one.place}): {verdict}, {how}{reused}"
        if one.error is not None:
            at = f"line {one.error.line}: " if one.error.line is not None else ""
            yield f"  {at}{one.error.message} [{one.error.code}]"
            yield from ([f"  {one.error.hint}"] if one.error.hint else [])
        if one.rel_l2:
            errors = ", ".join(f"{error:.2g} (seed {seed})" for seed, error in one.rel_l2.items())
            yield f"  relative error of its outputs: {errors}"
        if one.identity:
            yield f"  formula: {one.identity}{f', {one.identity_reason}' if one.identity_reason else ''}"
        stages = ", ".join(f"{name} {format_work_time(value)}" for name, value in one.stage_ms.items())
        if stages:
            yield f"  took: {stages}"


_PARTS: Mapping[str, Callable[[CandidateView], Iterator[str]]] = {
    "all": _kernel_lines, "plan": _plan_lines, "source": _source_lines, "profile": _profile_lines,
    "judge": _judgement_lines,
}  # fmt: skip

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "plan": ("parent", "planner", "model", "technique", "site", "title", "steps", "expected", "detail"),
    "source": ("source_digest", "source"),
    "profile": ("profile_digest", "latency", "bottleneck", "counters", "profile"),
    "judge": ("verdict", "refuted", "level", "judgements"),
}
"""The JSON fields of each part of a kernel, besides those that identify it."""


# --- prompts and answers ----------------------------------------------------------------------------


def _exchange_heading(one: Exchange) -> str:
    cost = "" if one.outcome in ("lost", "waits") else f", {format_usd(one.cost_usd)}"
    guessed = " (estimated)" if one.estimated else ""
    counted = f", {one.input_tokens} tokens in, {one.output_tokens} out{guessed}"
    tokens = counted if one.input_tokens is not None else ""
    again = f", attempt {one.attempt}" if one.attempt > 1 else ""
    question = f", question {one.question + 1}" if one.question else ""
    said = f"{one.role} to {one.model} ({one.place}){question}{again}: {one.outcome}{tokens}{cost}"
    return style(said, "head")


def _prompt_lines(one: Exchange) -> Iterator[str]:
    yield _exchange_heading(one)
    gone = "(not in this log any more)"
    yield from (style("--- guide", "dim"), (one.guide if one.guide is not None else gone).rstrip("\n"))
    yield from (style("--- case", "dim"), (one.case if one.case is not None else gone).rstrip("\n"), "")


def _answer_lines(one: Exchange) -> Iterator[str]:
    yield _exchange_heading(one)
    yield (one.answer or one.said or "no answer yet").rstrip("\n")
    yield ""


def _dialogue_lines(planning: SessionView | None, held: SessionView | None, kernel: str) -> Iterator[str]:
    if planning is not None:
        yield from _session_lines(planning, planning.candidate, "planner's session")
    if planning is not None and held is not None:
        yield ""
    if held is not None:
        yield from _session_lines(held, kernel, "session")


def _session_lines(held: SessionView, kernel: str, whose: str) -> Iterator[str]:
    ended = f"ended: {held.reason}" if held.reason else "goes on"
    detail = f", {held.detail}" if held.detail else ""
    turns = f"{held.turns_taken} of {held.most_turns} turns"
    yield f"{whose} with {held.model} ({held.place}): {turns}, {ended}{detail}"
    if held.candidate != kernel:
        yield f"  it is the session of {held.candidate}, which submitted {kernel} besides"
    if any(turn.exchange for turn in held.turns):
        guessed = " (some estimated)" if held.estimated else ""
        counted = f"{held.input_tokens} tokens in ({held.cached_tokens} cached), {held.output_tokens} out"
        yield f"  in all {counted}{guessed}, {format_usd(held.cost_usd)}"
    for number, turn in enumerate(held.turns, start=1):
        yield ""
        if turn.exchange is None:
            yield style(f"call {number} of the agent", "head")
        else:
            yield _exchange_heading(turn.exchange)
            text = (turn.exchange.text or turn.exchange.said or "").strip()
            yield from _indent(text) if text else ()
        for call in turn.calls:
            yield style(f"  {call.tool} {_short_arguments(call.arguments)}", "key")
            yield from _indent(call.result.strip() if call.result is not None else "(it runs)", by=4)


def _indent(text: str, by: int = 2) -> Iterator[str]:
    yield from (f"{'':{by}}{line}".rstrip() for line in text.split("\n"))


def _short_arguments(arguments: str) -> str:
    """Return a call's arguments on one line; a long source is cut."""
    flat = " ".join(arguments.split())
    return flat if len(flat) <= MOST_ARGUMENTS else f"{flat[: MOST_ARGUMENTS - 3]}..."


_EXCHANGE_LINES: Mapping[str, Callable[[Exchange], Iterator[str]]] = {
    "prompt": _prompt_lines,
    "answer": _answer_lines,
}


# --- an event --------------------------------------------------------------------------------------


def _without_counters(event: dict[str, Any], blobs: dict[str, str]) -> dict[str, Any]:
    """Return an event without its counters, if the profile shown below has them too."""
    if "counters" not in event or event.get("profile") not in blobs:
        return event
    return {**event, "counters": f"({len(event['counters'])}, in the profile below)"}


def _find_digests(value: Any) -> dict[str, None]:
    """Return all strings in a JSON value that could name a blob, each once, in order."""
    if isinstance(value, str):
        return {value: None} if _DIGEST.fullmatch(value) else {}
    if isinstance(value, dict):
        value = [item for name, item in value.items() if name != PROMPTS]
    items = value if isinstance(value, list) else ()
    return {digest: None for item in items for digest in _find_digests(item)}


def _read_blob(reader: LogReader, digest: str) -> str | None:
    """Return a blob as text; None if the digest names something else (a problem, a syntax tree)."""
    try:
        return reader.get_blob(digest).decode(errors="replace")
    except BlobPruned as error:
        return f"({error})"
    except BlobMissing:
        return None
