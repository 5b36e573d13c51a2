"""What the tests of the page share: a browser, homes with runs, and their pages served."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from state.host_status import HostStatus, publish_host_status
from state.log import EventLog
from state.model import HostConfig
from tests.agentctl.page.browsing import ARGUMENTS, CHROMIUM
from tests.agentctl.page.serving import PATIENCE_S, Served, serving
from tests.support import simulated_logs as recorded
from tests.support.world import small

RUN, OTHER, FORK = "toy-a1b2c3", "toy-d4e5f6", "toy-f0f0f0"
expect.set_options(timeout=PATIENCE_S * 1000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def recorded_home(tmp_path_factory) -> Path:
    """A home with two finished runs, whose kernels hold markup."""
    home = tmp_path_factory.mktemp("page") / "home"
    recorded.record(home, {RUN: recorded.world_of().finish(), OTHER: recorded.world_of(order=7).finish()})
    return home


@pytest.fixture(scope="module")
def served(recorded_home) -> Iterator[Served]:
    with serving(recorded_home) as page:
        yield page


@pytest.fixture(scope="module")
def busy_home(tmp_path_factory) -> Iterator[Path]:
    """A home that is driven: a run that asked models and judged on hosts, its fork, and one in progress,
    which names the hosts: those that no such run names are not shown."""
    home = tmp_path_factory.mktemp("busy") / "home"
    places = tuple(HostConfig(address=one.address) for one in hosts())
    config = small(rounds=4).model_copy(update={"hosts": places})
    world, going = recorded.world_of().finish(), recorded.world_of(config, order=7)
    going.finish(until=lambda state: state.round == 3)
    events = recorded.asking(world)
    ends = [place for place, event in enumerate(events, 1) if event.type == "RoundCompleted"]
    with EventLog.open(home) as log:
        recorded.store(log, RUN, events, blobs=[*world.blobs.values()])
        recorded.fork(log, FORK, RUN, ends[1])
        recorded.store(log, OTHER, recorded.events_of(going), blobs=[*going.blobs.values()])
        publish_host_status(home, hosts())
        yield home


@pytest.fixture(scope="module")
def steered(busy_home) -> Iterator[Served]:
    """The page of that home, which may steer."""
    with serving(busy_home, control=True) as page:
        yield page


def hosts() -> tuple[HostStatus, ...]:
    """Hosts of each kind of trouble, with words that mean to do harm."""
    now = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    up = {"heard": now, "device": "trn2.3xlarge", "slots": 4, "running": 2, "done": 17}
    slow = f"1.4 times as slow {recorded.HOSTILE}"
    return (
        HostStatus(address="trn-a", state="up", since=now, **up),
        HostStatus(address="trn-b", state="resting", since=now, until=now, why="it does not answer"),
        HostStatus(address="trn-c", state="quarantined", since=now, why=slow, ratio=1.4),
    )
