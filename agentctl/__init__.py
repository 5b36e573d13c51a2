"""`agentctl`: the command line. It reads the log and puts commands into the inbox, but never writes the
log.

Each verb is a module in `verbs/`, imported when it is called, so that the program starts fast. Open
`app.py` first. The exit statuses are in `daemon/exits.py`.
"""

from __future__ import annotations

import os


def main() -> None:
    # Pydantic's search for plugins reads the metadata of every installed package: a tenth of each start.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from agentctl.app import agentctl
    from daemon import exits

    exits.run_command(agentctl, "agentctl")
