"""A process that does to a log what needs it stopped, or backs it up, and may be killed at any point of it.

A fork server, as `tests.state.killed_writer` is one: for each line of its input, `[CRASH_AT, VERB,
ARGUMENT...]` as JSON, it forks a child that does it, and writes the child's exit status. It opens no database
itself.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

from state import crash
from state.archive import archive_run
from state.archive_import import import_archive
from state.backup import backup_log, restore_log
from state.compact import compact_log
from state.log import EventLog
from state.log_rebuild import migrate_log
from state.online_compaction import compact_open_log
from state.repair import repair_log


def compact_open(home: Path, file: Path) -> None:
    with EventLog.open(home) as log:
        compact_open_log(log, [file])


VERBS = {
    "backup": lambda home, file: backup_log(home, file, replace=True),
    "restore": restore_log,
    "archive": lambda home, file: archive_run(home, "first", file, replace=True),
    "compact": lambda home, file: compact_log(home, [file]),
    "compact_open": compact_open,
    "import": import_archive,
    "repair": lambda home, _: repair_log(home),
    "migrate": lambda home, _: migrate_log(home),
}


def main() -> None:
    importlib.import_module("sqlite_utils.migrations")  # once here, not in every child
    for line in sys.stdin:
        at, verb, *arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            _child(at, verb, [Path(argument) for argument in arguments])
        _, status = os.waitpid(child, 0)
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _child(at: str, verb: str, arguments: list[Path]) -> None:
    try:
        crash._trigger = crash.parse_trigger(at)
        VERBS[verb](*arguments)
    except BaseException:  # noqa: BLE001 - the fork must not go on as a second server
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
