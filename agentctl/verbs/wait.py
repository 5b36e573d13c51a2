"""`agentctl wait`: return when something holds of a run, for scripts that wait instead of looking."""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import click

from agentctl.app import Session, common
from agentctl.completing import complete_runs
from agentctl.runs import known_run, last_run
from agentctl.verbs.tail import AGE, age
from agentctl.views import as_json
from agentctl.views.process import process
from agentctl.views.run import RunView, run_view
from agentctl.words import ms, percentage, times, typed, usd
from daemon import exits
from daemon.errors import NotAnswered
from state.reader import LogReader

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
    ("tight", "%"): lambda run: run.percent_of_tight_bound,
    ("round", ""): lambda run: run.round,
    ("spent", "$"): lambda run: run.spent_usd,
    ("evaluated", ""): lambda run: run.evaluated,
    ("failed", ""): lambda run: run.failed,
}
"""What can be compared, by name and unit."""

_UNITS = {"": "", "x": "x", "ms": "ms", "%": "%", "round": "", "rounds": "", "$": "$", "usd": "$"}
_USUAL = {"best": "x", "peak": "%", "tight": "%", "spent": "$"}
"""The unit that is meant where none is given."""

STATES = ("running", "paused", "interrupted", "completed", "cancelled", "approval")
ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Condition:
    """What is waited for, as it was said, and whether it holds of a run."""

    text: str
    holds: Callable[[RunView], bool]


def condition(text: str) -> Condition:
    """Read a condition: a state, or a comparison such as `best>1.3x`, `best<=0.02ms` or `round>=3`.

    Raises:
        ValueError: it is none; the message says what may be asked for.
    """
    word = text.strip().lower()
    if word == ENDED:
        return Condition(word, lambda run: run.state in ("completed", "cancelled"))
    if word == "approval":
        return Condition(word, lambda run: bool(run.needs_approval))
    if word in STATES:
        return Condition(word, lambda run: run.state == word)
    found = _CONDITION.fullmatch(word)
    value = _VALUE.fullmatch(found["value"]) if found else None
    if found is None or value is None:
        raise ValueError(_expected(text))
    unit = _UNITS[value["unit"] or ""] or _USUAL.get(found["name"], "")
    number = _NUMBERS.get((found["name"], unit))
    if number is None:
        raise ValueError(_expected(text))
    compare, wanted = _SIGNS[found["sign"]], float(value["number"])

    def holds(run: RunView) -> bool:
        now = number(run)
        return now is not None and compare(now, wanted)

    return Condition(text, holds)


def _expected(text: str) -> str:
    names = ", ".join(f"{name}>N{unit}" for name, unit in _NUMBERS)
    return f"{text!r} is none of {ENDED}, {', '.join(STATES)}, nor a comparison such as {names}"


def _condition(_: click.Context, __: click.Parameter, value: str) -> Condition:
    try:
        return condition(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _timeout(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    found = AGE.fullmatch(f"{value.strip()}s" if value.strip().isdecimal() else value.strip())
    try:
        if found is not None:
            return age(found).total_seconds()
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
    callback=_condition,
    metavar="CONDITION",
    help="A state (ended, completed, paused, approval, ...), or best>1.3x, best<0.02ms, round>=3, peak>80%.",
)
@click.option("--timeout", callback=_timeout, metavar="TIME", help="Give up after so long: 90, 10 min, 2h.")
@common
def wait(session: Session, run: str | None, wanted: Condition, timeout: float | None) -> int:
    """Wait until a condition holds of RUN (left out: of the newest that has not ended).

    The status is 1 where the run ends before it holds, and 5 where the time is up.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    told = False
    with LogReader.open(session.home) as reader:
        name = str(known_run(reader, run)["run"]) if run is not None else last_run(reader)
        seen = -1
        while True:
            owned = process(session.home).running
            if (last := reader.run_seq(name)) != seen or not owned:
                seen = last
                found = run_view(name, reader.state(name), owned=owned)
                if wanted.holds(found):
                    return _said(session, found, wanted, held=True)
                if found.state in ("completed", "cancelled"):
                    return _said(session, found, wanted, held=False)
            if not owned and not told:
                told = True
                go = typed("resume", *session.home_words, name)
                click.echo(f"nobody drives {name} now; carry on with: {go}", err=True)
            if deadline is not None and time.monotonic() >= deadline:
                raise NotAnswered(f"{wanted.text} does not hold of {name} yet: {standing(found)}")
            time.sleep(LOOK_SECONDS)


def _said(session: Session, run: RunView, wanted: Condition, *, held: bool) -> int:
    how = "holds" if held else "does not hold, and the run is over"
    text = f"{run.id}: {wanted.text} {how}: {standing(run)}"
    session.emit({"condition": wanted.text, "holds": held, **as_json(run)}, text)
    return exits.OK if held else exits.FAILURE


def standing(run: RunView) -> str:
    """Return how a run stands, from its numbers alone."""
    said = [run.state, f"round {run.round}/{run.rounds}"]
    if run.best_ms is not None:
        kind = "predicted" if run.predicted else "measured"
        said.append(f"best {ms(run.best_ms)} {kind}, {times(run.speedup)}")
        said.append(f"{percentage(run.percent_of_peak)} of the NKIBench roofline")
    if run.spent_usd != 0:
        said.append(f"spent {usd(run.spent_usd)}")
    return ", ".join(said)
