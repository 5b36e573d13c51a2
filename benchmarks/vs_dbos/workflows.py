"""The other side of `benchmarks.vs_dbos`: the same steps as workflows of DBOS Transact on SQLite.

`python -m benchmarks.vs_dbos.workflows FOLDER` starts the workflows, or lets DBOS recover them, and leaves
when all have ended. The variant of the work says how SQLite keeps its journal: as DBOS has it, or as a WAL.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from dbos import DBOS, SetWorkflowID
from sqlalchemy import event
from sqlalchemy.pool import Pool

from benchmarks.vs_dbos.steps import PRAGMAS, Steps, Work, digest_of, tell_pragmas, tell_results

WAL = "wal"
EXTRA_THREADS = 8
"""Beyond those of the workflows: DBOS runs its own work in the same pool."""


def on_connect(folder: Path, variant: str) -> None:
    """Have every connection set up as the variant says, and write down what is then in force."""

    @event.listens_for(Pool, "connect")
    def connected(connection: Any, _: Any) -> None:
        if variant == WAL:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
        found = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in PRAGMAS}
        tell_pragmas(folder, found)


def main(folder: Path) -> None:
    work = Work.load(folder)
    steps = Steps(folder, work)
    on_connect(folder, work.variant)

    @DBOS.step()
    def step(name: str, number: str) -> str:
        with steps.body(name, number) as (seconds, text):
            time.sleep(seconds)
        return text

    @DBOS.workflow()
    def workflow(name: str) -> dict[str, str]:
        return {number: digest_of(step(name, number)) for number in map(str, range(work.length))}

    DBOS(
        config={
            "name": "durable",
            "system_database_url": f"sqlite:///{folder}/dbos.sqlite",
            "application_version": "1",
            "max_executor_threads": work.workflows + EXTRA_THREADS,
            "log_level": "WARNING",
        }
    )
    DBOS.launch()
    if not (folder / "started").exists():
        for name in work.names():
            with SetWorkflowID(name):
                DBOS.start_workflow(workflow, name)
        (folder / "started").touch()
    found: dict[str, dict[str, str]] = {
        name: DBOS.retrieve_workflow(name).get_result() for name in work.names()
    }
    tell_results(folder, found)
    DBOS.destroy()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
