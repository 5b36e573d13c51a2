"""`agentctl doctor`: checks that everything a run needs is there, and says what to do if it is not."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import click

from agentctl.app import Session, common_options
from agentctl.endpoint_checks import BAD, GOOD, Check
from agentctl.environment_checks import run_checks
from agentctl.formatting import format_count
from agentctl.run_flags import target_option
from agentctl.terminal_style import style
from daemon import exits

MARKS = {GOOD: ("ok", "good"), BAD: ("bad", "bad")}
"""How a result is written; any other result means that you should take a look."""


@click.command(epilog=exits.epilog())
@target_option("A target to check too")
@common_options
def doctor(session: Session, target: str | None) -> int:
    """Check programs, home, disk, log, configuration, keys, jail, service and hosts.

    Nothing is changed, and no key is ever shown. The status is 1 if something keeps runs from working.
    """
    with session.progress_bar("examining"):
        found = list(run_checks(session.home, os.environ, session.home_words, target=target))
    bad = [one for one in found if one.result == BAD]
    session.emit(_checks_json(found), "\n".join(_format_checks(found)))
    return exits.FAILURE if bad else exits.OK


def _checks_json(found: Sequence[Check]) -> dict[str, Any]:
    from agentctl.views import as_json

    return {"ok": all(one.result != BAD for one in found), "checks": as_json(found)}


def _format_checks(found: Sequence[Check]) -> Iterator[str]:
    width = max(len(one.name) for one in found)
    for one in found:
        mark, colour = MARKS.get(one.result, ("look", "warn"))
        yield f"{style(f'{mark:4}', colour)}  {one.name:{width}}  {one.found}"
        if one.remedy:
            yield f"      {'':{width}}  {style('->', 'warn')} {one.remedy}"
    number = {result: sum(one.result == result for one in found) for result in (GOOD, BAD)}
    rest = len(found) - sum(number.values())
    said = [f"{format_count(len(found), 'check')}: {number[GOOD]} good"]
    said += [f"{rest} worth a look"] if rest else []
    said += [f"{number[BAD]} bad"] if number[BAD] else []
    yield ", ".join(said)
