"""The detail lines of `agentctl status`: each run beyond its summary line, and the state that all runs
share.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentctl.formatting import (
    format_confidence,
    format_count,
    format_duration,
    format_moment,
    format_ms,
    format_speedup,
    format_usd,
    format_work_time,
)
from agentctl.terminal_style import STATE_STYLES, style
from agentctl.views.hosts import HostView
from agentctl.views.overview import DayView, HomeOverview, ProviderStatus, RunSummary
from state.model import RESOLUTION_RATIO

LABEL_WIDTH = 10
"""Width of the label column."""

ROLES = {
    "predictor": "look-ahead", "planner": "plan", "executor": "kernel", "evaluator": "evaluation",
    "verifier": "verification", "auditor": "audit", "summarizer": "summary", "reflector": "reflection",
}  # fmt: skip
"""Names of effects in flight, by the role that answers them."""

ERROR_WIDTH = 160
"""Characters of an error that are shown."""


def format_run_details(run: RunSummary) -> Iterator[str]:
    """Yield a run's best kernel, its spending, its current activity, and recent errors."""
    yield style(run.id, "head")
    for label, text in (
        ("best", _format_best(run)),
        ("spent", _format_spending(run)),
        ("now", _format_activity(run)),
        ("kernels", _format_kernels(run)),
        ("errors", _format_errors(run)),
    ):
        if text:
            yield f"  {label:{LABEL_WIDTH}}{text}"


def format_shared_state(found: HomeOverview) -> Iterator[str]:
    """Yield the state of providers and hosts, and the budget of the day."""
    for place, one in enumerate(found.providers):
        yield _labelled_line("providers" if place == 0 else "", _format_provider(one))
    for place, host in enumerate(found.hosts):
        yield _labelled_line("hosts" if place == 0 else "", _format_host(host))
    if found.day is not None:
        yield _labelled_line("day", _format_day(found.day))


def _labelled_line(label: str, text: str) -> str:
    return f"{style(f'{label:{LABEL_WIDTH + 2}}', 'head')}{text}"


def _format_best(run: RunSummary) -> str | None:
    if run.best_ms is None:
        return None
    kind = "predicted" if run.predicted else "measured"
    between = ""
    if run.best_lo_ms is not None and run.best_lo_ms != run.best_hi_ms:
        between = f" ({run.best_lo_ms:.4g} to {run.best_hi_ms:.4g})"
    gain, share = run.speedup, run.best_wins_percent
    sure = ""
    if share is not None and gain is not None and abs(gain - 1) > RESOLUTION_RATIO:
        sure = f", {format_confidence(share)}"
    return f"{run.best}: {format_ms(run.best_ms)} {kind}{between}, {format_speedup(gain)}{sure}"


def _format_spending(run: RunSummary) -> str | None:
    """Return the run's spending, with its caps where they are set."""
    if not (run.spent_calls or run.caps.usd or run.device_seconds):
        return None
    money = f"{format_usd(run.spent_usd)} of {format_usd(run.caps.usd)}"
    said = [money + (f", {format_usd(run.reserved_usd)} more reserved" if run.reserved_usd else "")]
    for number, cap, noun in (
        (run.spent_calls, run.caps.calls, "call"),
        (run.spent_tokens, run.caps.tokens, "token"),
    ):
        if number or cap is not None:
            said.append(
                format_count(number, noun) if cap is None else f"{number} of {format_count(cap, noun)}"
            )
    return "; ".join(said)


def _format_activity(run: RunSummary) -> str | None:
    said = [f"{format_count(number, ROLES.get(role, role))}" for role, number in run.in_flight_roles.items()]
    text = f"{', '.join(said)} in flight" if said else ""
    if run.evaluations_per_hour is not None:
        rate = f"{format_count(round(run.evaluations_per_hour), 'evaluation')} an hour"
        text = f"{text}; {rate}" if text else rate
    return text or None


def _format_kernels(run: RunSummary) -> str | None:
    if not run.proposed:
        return None
    said = [f"{run.proposed} proposed", f"{run.evaluated} evaluated", f"{run.failed} failed"]
    said += [f"{run.duplicates} duplicate"] if run.duplicates else []
    said += [f"{format_count(run.reverts, 'lineage')} reverted"] if run.reverts else []
    return ", ".join(said)


def _format_errors(run: RunSummary) -> str | None:
    if run.errors is None:
        return None
    said = " ".join(run.errors.last.split())
    short = said if len(said) <= ERROR_WIDTH else f"{said[: ERROR_WIDTH - 3]}..."
    return f"{style(str(run.errors.count), 'bad')} lately, the last {run.errors.place}: {short}"


def _format_provider(one: ProviderStatus) -> str:
    state = style(one.state, STATE_STYLES.get(one.state))
    if one.resting is not None:
        return f"{one.name} {state}: {one.resting}"
    speed = f", {format_work_time(one.median_ms)} in the median" if one.median_ms is not None else ""
    return f"{one.name} {state}: {one.failed} of the last {format_count(one.calls, 'call')} failed{speed}"


def _format_host(one: HostView) -> str:
    state = style(one.state.replace("_", " "), STATE_STYLES.get(one.state))
    until = f" until {format_moment(one.until)}" if one.until is not None else ""
    said = [f"{one.name} {state}{until}"]
    said += [one.device] if one.device else []
    said += [f"{one.in_flight} of {one.slots} busy, {one.done} done"] if one.slots else []
    said += [one.why] if one.why else []
    remedy = f"; {one.remedy}" if one.remedy and one.why else ""
    return f"{', '.join(said)}{remedy}"


def _format_day(day: DayView) -> str:
    reserved = f", {format_usd(day.reserved_usd)} more reserved" if day.reserved_usd else ""
    calls, tokens = format_count(day.spent_calls, "call"), format_count(day.spent_tokens, "token")
    clocked = [f"runs under way for {format_duration(day.spent_seconds)}"] if day.spent_seconds else []
    clocked += [f"{format_duration(day.spent_device_seconds)} on devices"] if day.spent_device_seconds else []
    return f"{day.date} (UTC): {format_usd(day.spent_usd)}{reserved}; {', '.join([calls, tokens, *clocked])}"
