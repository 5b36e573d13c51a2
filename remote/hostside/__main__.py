"""The worker's two commands: `serve WORKDIR` answers one home, `step NAME FOLDER` does one job's work."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

USAGE_STATUS = 64


def main(arguments: list[str]) -> int:
    """Run a command and return its exit status."""
    if len(arguments) == 2 and arguments[0] == "serve":
        return _serve(Path(arguments[1]))
    if len(arguments) == 3 and arguments[0] == "step":
        return _step(arguments[1], Path(arguments[2]))
    sys.stderr.write(f"this is a worker of nki-kernel-agent; it knows no {arguments}\n")
    return USAGE_STATUS


def _serve(workdir: Path) -> int:
    from remote.hostside.place import Place
    from remote.hostside.server import Server

    hears, says = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # whoever prints does not speak the protocol
    place = Place(workdir)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        Server(place, os.path.abspath(sys.argv[0]), hears=hears, says=says).serve()  # noqa: PTH100
    return 0


def _step(name: str, folder: Path) -> int:
    from remote.hostside.steps import STEPS

    if name not in STEPS:
        sys.stderr.write(f"this worker has no step {name!r}, only {', '.join(sorted(STEPS))}\n")
        return USAGE_STATUS
    STEPS[name](folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
