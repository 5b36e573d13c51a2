"""The replicas of an open home: they keep up, and a replica that cannot be reached holds nothing up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from daemon import replication
from daemon.replication import ReplicaWatch
from state.log import EventLog
from state.replica import FolderStore, restore_replica
from tests.support.scripted_runs import append_run


class Unreachable(FolderStore):
    def __init__(self, folder: Path, failures: int) -> None:
        super().__init__(folder)
        self.failures = failures

    def list_names(self) -> list[str]:
        self.failures -= 1
        if self.failures >= 0:
            raise OSError("no route to host")
        return super().list_names()


@pytest.fixture
def event_log(home):
    with EventLog.open(home) as log:
        yield log


def has_event(folder: Path, last: int) -> bool:
    return any(f"-{last:012}-" in path.name for path in folder.glob("*.seg"))


async def wait_for_event(folder: Path, last: int) -> None:
    async with asyncio.timeout(60):
        while not has_event(folder, last):  # noqa: ASYNC110 - another process would poll as well
            await asyncio.sleep(0.02)


async def test_replicas_keep_up_while_one_of_them_cannot_be_reached(event_log, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(replication, "PAUSE_SECONDS", 0.01)
    folders = {"near": tmp_path / "near", "far": tmp_path / "far"}
    stores = {"near": FolderStore(folders["near"]), "far": Unreachable(folders["far"], failures=2)}
    watch = ReplicaWatch(event_log, ("near",), open_=lambda name, _: stores[name])
    watching = asyncio.create_task(watch.watch())
    watch.set_destinations(tuple(stores))
    try:
        for number in range(3):
            append_run(event_log, f"run{number}", rounds=1)
            for folder in folders.values():
                await wait_for_event(folder, event_log.head.seq)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    for name, store in stores.items():
        done = restore_replica(tmp_path / f"from-{name}", store)
        assert done.report.events == event_log.head.seq + 1
    assert stores["far"].failures < 0
