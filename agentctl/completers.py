"""Shell completion of the names of runs."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem


def complete_runs(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the runs whose ids start with `incomplete`, newest first; none if no log can be read."""
    from agentctl.app import Session
    from state.errors import StateError
    from state.reader import LogReader

    session = context.find_object(Session) or Session()
    try:
        session.become_home_user()
        with LogReader.open(session.home) as reader:
            rows = reader.run_rows()
    except StateError:
        return []
    return [
        CompletionItem(str(row["run"]), help=f"{row['problem']}, {row['status']}")
        for row in rows
        if str(row["run"]).startswith(incomplete)
    ]
