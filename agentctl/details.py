"""What `agentctl status` tells of a run besides its line, and of what all runs share."""

from __future__ import annotations

from collections.abc import Iterator

from agentctl.paint import STATE_STYLES, style
from agentctl.views.hosts import Host
from agentctl.views.overview import DayView, Overview, Provider, RunLine
from agentctl.words import count, duration, moment, ms, percentage, times, took, usd
from state.model import RESOLUTION_RATIO

LABEL = 10
"""Columns of what a line is about."""

ROLES = {
    "predictor": "looking ahead", "planner": "plan", "executor": "kernel", "evaluator": "evaluation",
    "verifier": "verification", "auditor": "audit", "summarizer": "summary", "reflector": "reflection",
}  # fmt: skip
"""What is in flight, by who answers it."""

SAID = 160
"""Characters of an error that are shown."""


def detail(run: RunLine) -> Iterator[str]:
    """Yield a run's best kernel, its spending, what it does now, and what went wrong lately."""
    yield style(run.id, "head")
    for label, text in (
        ("best", _best(run)),
        ("spent", _spent(run)),
        ("now", _now(run)),
        ("kernels", _kernels(run)),
        ("errors", _errors(run)),
    ):
        if text:
            yield f"  {label:{LABEL}}{text}"


def standing(found: Overview) -> Iterator[str]:
    """Yield how providers and hosts stand, and the budget of the day."""
    for place, one in enumerate(found.providers):
        yield _line("providers" if place == 0 else "", _provider(one))
    for place, host in enumerate(found.hosts):
        yield _line("hosts" if place == 0 else "", _host(host))
    if found.day is not None:
        yield _line("day", _day(found.day))


def _line(label: str, text: str) -> str:
    return f"{style(f'{label:{LABEL + 2}}', 'head')}{text}"


def _best(run: RunLine) -> str | None:
    if run.best_ms is None:
        return None
    kind = "predicted" if run.predicted else "measured"
    between = ""
    if run.best_lo_ms is not None and run.best_lo_ms != run.best_hi_ms:
        between = f" ({run.best_lo_ms:.4g} to {run.best_hi_ms:.4g})"
    gain, share = run.speedup, run.best_wins_percent
    sure = ""
    if share is not None and gain is not None and abs(gain - 1) > RESOLUTION_RATIO:
        sure = f", faster in {percentage(share)} of draws that differ"
    return f"{run.best}: {ms(run.best_ms)} {kind}{between}, {times(gain)}{sure}"


def _spent(run: RunLine) -> str | None:
    """Return what was spent, against the caps that there are."""
    if not (run.spent_calls or run.caps.usd or run.device_seconds):
        return None
    money = f"{usd(run.spent_usd)} of {usd(run.caps.usd)}"
    said = [money + (f", {usd(run.reserved_usd)} more reserved" if run.reserved_usd else "")]
    for number, cap, noun in (
        (run.spent_calls, run.caps.calls, "call"),
        (run.spent_tokens, run.caps.tokens, "token"),
    ):
        if number or cap is not None:
            said.append(count(number, noun) if cap is None else f"{number} of {count(cap, noun)}")
    return "; ".join(said)


def _now(run: RunLine) -> str | None:
    said = [f"{count(number, ROLES.get(role, role))}" for role, number in run.in_flight_roles.items()]
    text = f"{', '.join(said)} in flight" if said else ""
    if run.evaluations_per_hour is not None:
        rate = f"{count(round(run.evaluations_per_hour), 'evaluation')} an hour"
        text = f"{text}; {rate}" if text else rate
    return text or None


def _kernels(run: RunLine) -> str | None:
    if not run.proposed:
        return None
    said = [f"{run.proposed} proposed", f"{run.evaluated} evaluated", f"{run.failed} failed"]
    said += [f"{run.duplicates} duplicate"] if run.duplicates else []
    said += [f"{count(run.reverts, 'lineage')} reverted"] if run.reverts else []
    return ", ".join(said)


def _errors(run: RunLine) -> str | None:
    if run.errors is None:
        return None
    said = " ".join(run.errors.last.split())
    short = said if len(said) <= SAID else f"{said[: SAID - 3]}..."
    return f"{style(str(run.errors.count), 'bad')} lately, the last {run.errors.place}: {short}"


def _provider(one: Provider) -> str:
    state = style(one.state, STATE_STYLES.get(one.state))
    if one.resting is not None:
        return f"{one.name} {state}: {one.resting}"
    speed = f", {took(one.median_ms)} in the median" if one.median_ms is not None else ""
    return f"{one.name} {state}: {one.failed} of the last {count(one.calls, 'call')} failed{speed}"


def _host(one: Host) -> str:
    state = style(one.state.replace("_", " "), STATE_STYLES.get(one.state))
    until = f" until {moment(one.until)}" if one.until is not None else ""
    said = [f"{one.name} {state}{until}"]
    said += [one.device] if one.device else []
    said += [f"{one.in_flight} of {one.slots} busy, {one.done} done"] if one.slots else []
    said += [one.why] if one.why else []
    remedy = f"; {one.remedy}" if one.remedy and one.why else ""
    return f"{', '.join(said)}{remedy}"


def _day(day: DayView) -> str:
    reserved = f", {usd(day.reserved_usd)} more reserved" if day.reserved_usd else ""
    calls, tokens = count(day.spent_calls, "call"), count(day.spent_tokens, "token")
    clocked = [f"runs under way for {duration(day.spent_seconds)}"] if day.spent_seconds else []
    clocked += [f"{duration(day.spent_device_seconds)} on devices"] if day.spent_device_seconds else []
    return f"{day.date} (UTC): {usd(day.spent_usd)}{reserved}; {', '.join([calls, tokens, *clocked])}"
