"""How far a replica is behind its log: events are appended for a while, and each one's way there is timed.

    .venv/bin/python benchmarks/replica_lag.py --seconds 60 --rate 50
    .venv/bin/python benchmarks/replica_lag.py --sshd
    .venv/bin/python benchmarks/replica_lag.py --to ssh://user@host/folder

The lag of an event is the time from the answer to its append until the replica has stored its segment. With
`--sshd` the replica lies behind a real SSH server, which is started on this machine for the measurement.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT)]  # as with `python -m`: the project's root, so that both spellings work

from daemon.replication import ReplicaWatch  # noqa: E402
from remote.replica_stores import open_store  # noqa: E402
from state.log import EventLog  # noqa: E402
from state.records import NewEvent  # noqa: E402
from state.replica import ReplicaStore, SegmentName  # noqa: E402
from tests.support.scripted_runs import ScriptedRun  # noqa: E402 - the path is set above
from tests.support.sshd import Sshd, trust_host  # noqa: E402

PATIENCE_S = 30.0


class TimedStore:
    """A store that notes when it has stored up to which event."""

    def __init__(self, store: ReplicaStore) -> None:
        self._store = store
        self.stored: list[tuple[int, float]] = []
        self.list_names = store.list_names
        self.read = store.read

    def write(self, name: str, data: bytes, /) -> None:
        self._store.write(name, data)
        segment = SegmentName.parse(name)
        if segment is not None:
            self.stored.append((segment.last, time.monotonic()))


async def measure_lags(
    home: Path, destination: str, *, seconds: float, rate: float, config: Path | None = None
) -> dict[str, Any]:
    """Append at a rate; return the events, segments and the lags in seconds.

    `config` replaces the user's ssh_config.
    """
    stores: list[TimedStore] = []
    answered: list[tuple[int, float]] = []

    def open_timed(destination: str, home: Path) -> TimedStore:
        stores.append(TimedStore(open_store(destination, home, config=config)))
        return stores[-1]

    with EventLog.open(home) as log:
        copying = asyncio.create_task(ReplicaWatch(log, [destination], open_=open_timed).watch())
        began = time.monotonic()
        for number, step in enumerate(ScriptedRun(rounds=10_000).steps()):
            if number >= seconds * rate:
                break
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            (item,) = await log.append([NewEvent("run", step.event)], blobs=step.blobs)
            answered.append((item.seq, time.monotonic()))
        last, until = answered[-1][0], time.monotonic() + PATIENCE_S
        while not (stores and stores[0].stored and stores[0].stored[-1][0] >= last):
            if time.monotonic() > until:
                raise TimeoutError(f"the replica had not all events after {PATIENCE_S:g} s")
            await asyncio.sleep(0.05)
        copying.cancel()
        await asyncio.gather(copying, return_exceptions=True)
    stored = stores[0].stored
    lags = [next(at for upto, at in stored if upto >= seq) - answer for seq, answer in answered]
    return {"events": len(lags), "segments": len(stored), "lags_s": lags}


def format_lags(found: dict[str, Any]) -> str:
    lags_s = found["lags_s"]
    cuts = quantiles(lags_s, n=100, method="inclusive")
    return (
        f"{found['events']} events in {found['segments']} segments\n"
        f"behind by {cuts[49]:.2f} s (median), {cuts[98]:.2f} s (99 %), "
        f"{max(lags_s):.2f} s at most\n"
        f"load average {os.getloadavg()[0]:.0f}"
    )


@contextmanager
def serve_replica(folder: Path, home: Path) -> Iterator[tuple[str, Path]]:
    """Run an SSH server on this machine; yield a destination on it, and the ssh_config to reach it with."""
    home.mkdir()
    with Sshd(folder / "server") as server:
        link = asyncio.run(trust_host(server.link(home), home))
        yield f"ssh://{link.host.address}{folder}/replica", server.ssh_config


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=50.0, help="events per second (%(default)s)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--to", help="where to; default: a folder on the same disk")
    where.add_argument("--sshd", action="store_true", help="to an SSH server on this machine")
    options = parser.parse_args()
    measure = partial(measure_lags, seconds=options.seconds, rate=options.rate)
    with tempfile.TemporaryDirectory() as name:
        folder, home = Path(name), Path(name) / "home"
        if options.sshd:
            with serve_replica(folder, home) as (destination, config):
                found = asyncio.run(measure(home, destination, config=config))
        else:
            found = asyncio.run(measure(home, options.to or str(folder / "replica")))
    print(format_lags(found))


if __name__ == "__main__":
    main()
