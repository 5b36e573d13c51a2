"""`agentctl`: the command line. It reads the log and drops commands into the inbox, and writes neither.

Verbs are small modules, imported when called, so that the start stays light. Open `app.py` first; exit
statuses are in `exits.py`.
"""

from __future__ import annotations

import os


def main() -> None:
    # The search for plugins reads what every installed package says of itself: a tenth of each start.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from agentctl.app import agentctl
    from daemon import exits

    exits.run_command(agentctl, "agentctl")
