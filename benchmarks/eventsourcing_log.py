"""The `eventsourcing` package on SQLite, doing what `event_log.py` measures: saves and aggregate replay."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event


class Run(Aggregate):
    """An aggregate with one event type that carries a payload, and the cheapest state there is."""

    def __init__(self) -> None:
        self.count = 0

    @event("Noted")
    def note(self, payload: str) -> None:
        self.count += len(payload) > 0


def _application(path: Path) -> Application:
    return Application(env={"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": str(path)})


def save_rate(path: Path, callers: int, texts: list[str]) -> float:
    """Events per second of `Application.save`: one event per save, a thread and an aggregate per caller."""
    application = _application(path)
    runs = [Run() for _ in range(callers)]
    for run in runs:
        application.save(run)

    def work(run: Run) -> None:
        for text in texts:
            run.note(payload=text)
            application.save(run)

    threads = [threading.Thread(target=work, args=(run,)) for run in runs]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return callers * len(texts) / (time.perf_counter() - start)


def replay_rate(path: Path, texts: list[str]) -> float:
    """Events per second of `repository.get` on one aggregate with an event per text."""
    application = _application(path)
    run = Run()
    for text in texts:
        run.note(payload=text)
    application.save(run)
    start = time.perf_counter()
    application.repository.get(run.id)
    return len(texts) / (time.perf_counter() - start)
