"""`agentctl wait`: returns when a condition holds for a run, so that scripts need not poll."""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import click

from agentctl.app import Session, common_options
from agentctl.completers import complete_runs
from agentctl.formatting import format_command, format_ms, format_percent, format_speedup, format_usd
from agentctl.run_lookup import find_last_run, find_run
from agentctl.verbs.tail import AGE_PATTERN, parse_age
from agentctl.views import as_json
from agentctl.views.owner_process import find_owner_process
from agentctl.views.run import RunView, run_view
from daemon import exits
from daemon.errors import NotAnswered
from state.reader import LogReader
from targets.registry import roofline_name

LOOK_SECONDS = 0.2

_CONDITION = re.compile(r"(?P<name>[a-z]+)\s*(?P<sign><=|>=|==|=|<|>)\s*(?P<value>[^<>=]+)")
_VALUE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>x|ms|%|rounds?|\$|usd)?")

_SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq,
    "==": operator.eq,
}  # fmt: skip

_NUMBERS: Mapping[tuple[str, str], Callable[[RunView], float | None]] = {
    ("best", "x"): lambda run: run.speedup,
    ("best", "ms"): lambda run: run.best_ms,
    ("peak", "%"): lambda run: run.percent_of_peak,
    ("model", "%"): lambda run: run.percent_of_model_bound,
    ("tight", "%"): lambda run: run.percent_of_model_bound,
    ("round", ""): lambda run: run.round,
    ("spent", "$"): lambda run: run.spent_usd,
    ("evaluated", ""): lambda run: run.evaluated,
    ("failed", ""): lambda run: run.failed,
}
"""What can be compared, by name and unit."""

_UNITS = {"": "", "x": "x", "ms": "ms", "%": "%", "round": "", "rounds": "", "$": "$", "usd": "$"}
_DEFAULT_UNITS = {"best": "x", "peak": "%", "model": "%", "tight": "%", "spent": "$"}
"""The unit that is assumed if none is given."""

STATES = ("running", "paused", "interrupted", "completed", "cancelled", "approval")
ENDED = "ended"


@dataclass(frozen=True, slots=True)
class WaitCondition:
    """The condition as you typed it, and whether it holds for a run."""

    text: str
    holds: Callable[[RunView], bool]


def parse_condition(text: str) -> WaitCondition:
    """Parse a condition: a state, or a comparison such as `best>1.3x`, `best<=0.02ms` or `round>=3`.

    Raises:
        ValueError: it is no condition; the message lists the valid ones.
    """
    word = text.strip().lower()
    if word == ENDED:
        return WaitCondition(word, lambda run: run.state in ("completed", "cancelled"))
    if word == "approval":
        return WaitCondition(word, lambda run: bool(run.needs_approval))
    if word in STATES:
        return WaitCondition(word, lambda run: run.state == word)
    found = _CONDITION.fullmatch(word)
    value = _VALUE.fullmatch(found["value"]) if found else None
    if found is None or value is None:
        raise ValueError(_explain_conditions(text))
    unit = _UNITS[value["unit"] or ""] or _DEFAULT_UNITS.get(found["name"], "")
    number = _NUMBERS.get((found["name"], unit))
    if number is None:
        raise ValueError(_explain_conditions(text))
    compare, wanted = _SIGNS[found["sign"]], float(value["number"])

    def holds(run: RunView) -> bool:
        now = number(run)
        return now is not None and compare(now, wanted)

    return WaitCondition(text, holds)


def _explain_conditions(text: str) -> str:
    names = ", ".join(f"{name}>N{unit}" for name, unit in _NUMBERS)
    return f"{text!r} is none of {ENDED}, {', '.join(STATES)}, nor a comparison such as {names}"


def _read_condition(_: click.Context, __: click.Parameter, value: str) -> WaitCondition:
    try:
        return parse_condition(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _parse_timeout(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    found = AGE_PATTERN.fullmatch(f"{value.strip()}s" if value.strip().isdecimal() else value.strip())
    try:
        if found is not None:
            return parse_age(found).total_seconds()
    except OverflowError:
        found = None
    raise click.BadParameter(f"{value!r} is no time such as 90, 10 min or 2h")


@click.command(epilog=exits.epilog())
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option(
    "--for",
    "wanted",
    default=ENDED,
    show_default=True,
    callback=_read_condition,
    metavar="CONDITION",
    help="A state (ended, completed, paused, approval, ...), or best>1.3x, best<0.02ms, round>=3, peak>80%.",
)
@click.option(
    "--timeout",
    callback=_parse_timeout,
    metavar="TIME",
    help="Give up after this time: 90 (seconds), 10 min, 2h.",
)
@common_options
def wait(session: Session, run: str | None, wanted: WaitCondition, timeout: float | None) -> int:
    """Wait until a condition holds for RUN (default: the newest that has not ended).

    The status is 1 if the run ends before the condition holds, and 5 if the time is up.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    told = False
    with LogReader.open(session.home) as reader:
        name = str(find_run(reader, run)["run"]) if run is not None else find_last_run(reader)
        seen = -1
        while True:
            owned = find_owner_process(session.home).is_running
            if (last := reader.run_seq(name)) != seen or not owned:
                seen = last
                found = run_view(name, reader.run_state(name), owned=owned)
                if wanted.holds(found):
                    return _report_result(session, found, wanted, held=True)
                if found.state in ("completed", "cancelled"):
                    return _report_result(session, found, wanted, held=False)
            if not owned and not told:
                told = True
                go = format_command("resume", *session.home_words, name)
                click.echo(f"nobody drives {name} now; carry on with: {go}", err=True)
            if deadline is not None and time.monotonic() >= deadline:
                raise NotAnswered(f"{wanted.text} does not hold of {name} yet: {format_run_view(found)}")
            time.sleep(LOOK_SECONDS)


def _report_result(session: Session, run: RunView, wanted: WaitCondition, *, held: bool) -> int:
    how = "holds" if held else "does not hold, and the run is over"
    text = f"{run.id}: {wanted.text} {how}: {format_run_view(run)}"
    session.emit({"condition": wanted.text, "holds": held, **as_json(run)}, text)
    return exits.OK if held else exits.FAILURE


def format_run_view(run: RunView) -> str:
    """Return the state of a run, from its numbers alone."""
    said = [run.state, f"round {run.round}/{run.rounds}"]
    if run.best_ms is not None:
        kind = "predicted" if run.predicted else "measured"
        said.append(f"best {format_ms(run.best_ms)} {kind}, {format_speedup(run.speedup)}")
        said.append(f"{format_percent(run.percent_of_peak)} of the {roofline_name(run.target)}")
    if run.spent_usd != 0:
        said.append(f"spent {format_usd(run.spent_usd)}")
    return ", ".join(said)
