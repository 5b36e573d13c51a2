"""What the tests with a real systemd share: a booted machine with the service installed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import seeds
from agentctl.systemd_unit import UNIT_NAME, ServiceScope, ServiceUnit
from daemon.command_models import Submit, run_id
from daemon.inbox import put_command
from state.model import RunConfig, SearchConfig
from state.reader import LogReader
from state.records import RecordedEvent
from tests.support.booted_systemd import BootedSystem, boot_systemd, find_obstacle, wait_until
from tests.support.home_users import acting_as_owner

BIN = Path(sys.executable).parent
DROP_INS = Path("/etc/systemd/system") / f"{UNIT_NAME}.d"
SECRET = "hush-51c0ffee"

SMALL = RunConfig(
    problem="silu",
    size="reduced",
    starts="kernel",
    search=SearchConfig(rounds=1, beam=2, plans=2, within_percent=0, lookahead_predictions=8),
)
"""A run of a few seconds, of less when the same kernels were judged before."""


class Service:
    """The installed service on a booted machine, and `agentctl` there."""

    def __init__(self, machine: BootedSystem, home: Path | None = None) -> None:
        self.machine = machine
        self.home = home or ServiceUnit(ServiceScope.SYSTEM).state_directory

    def ctl(self, *arguments: str, check: bool = True) -> Any:
        """Return the JSON that `agentctl` answers with."""
        done = self.machine.run(
            BIN / "agentctl", "--home", self.home, "--json", *map(str, arguments), check=check
        )
        return json.loads(done.stdout)

    def submit(self, seed: int = 0, *, rounds: int = 1, kernel: str | None = None) -> str:
        """Put a small run into the inbox as the home's user, as `agentctl` of root does; return its id."""
        search = SMALL.search.model_copy(update={"rounds": rounds})
        config = SMALL.model_copy(update={"seed": seed, "search": search})
        problem = seeds.load_problem(config.problem)
        command = Submit.model_construct(
            verb="submit", config=config, files=dict(problem.files), kernel=kernel or problem.kernel
        )
        with acting_as_owner(self.files):
            return run_id(put_command(self.files, command), config.problem)

    @property
    def files(self) -> Path:
        """The home, as seen from here."""
        return self.machine.root / str(self.home).lstrip("/")

    def row(self, run: str) -> dict[str, Any]:
        """Return a run's row of the read models; empty while there is no such run."""
        with LogReader.open(self.files) as reader:
            return next((row for row in reader.run_summaries() if row["run"] == run), {})

    def has_ended(self, run: str) -> bool:
        return bool(self.row(run).get("ended"))

    def events(self, run: str) -> list[RecordedEvent]:
        with LogReader.open(self.files) as reader:
            return reader.read(stream=run, limit=10_000)

    def under_way(self, run: str) -> bool:
        """Whether a run is in its first round."""
        return any(item.type == "PlanProposed" for item in self.events(run)) if self.row(run) else False

    def show(self, *properties: str) -> list[str]:
        found = self.machine.show(UNIT_NAME, *properties)
        return [found[name] for name in properties]

    @property
    def pid(self) -> int:
        return int(self.show("MainPID")[0])

    @property
    def active(self) -> bool:
        return self.show("ActiveState") == ["active"]

    def has_restarted(self, pid: int) -> bool:
        return self.active and self.pid not in (0, pid)

    def journal(self) -> list[dict[str, Any]]:
        """Return the JSON lines that the daemon logged, each with the journal's priority of it."""
        entries = [entry for entry in self.machine.journal(UNIT_NAME) if entry["MESSAGE"].startswith("{")]
        return [{**json.loads(entry["MESSAGE"]), "PRIORITY": entry["PRIORITY"]} for entry in entries]

    def with_settings(self, *settings: str, lasting: str = "") -> None:
        """Restart the service with settings that its next start does not have, but for `lasting`."""
        self.machine.write(DROP_INS / "once.conf", "\n".join(["[Service]", *settings, ""]))
        self.machine.write(DROP_INS / "lasting.conf", f"[Service]\n{lasting}\n")
        self.systemctl("daemon-reload")
        self.systemctl("restart", UNIT_NAME)
        self.machine.run("rm", DROP_INS / "once.conf")
        self.systemctl("daemon-reload")

    def systemctl(self, *arguments: str, check: bool = True) -> None:
        self.machine.run("systemctl", *arguments, check=check)


@pytest.fixture(scope="module")
def machine() -> Iterator[BootedSystem]:
    if reason := find_obstacle():
        pytest.skip(reason)
    with boot_systemd() as machine:
        yield machine


@pytest.fixture(scope="module")
def installed(machine) -> Service:
    machine.write("/etc/keys/model", SECRET)
    machine.run(BIN / "agentctl", "service", "install", "--credential", "model_key=/etc/keys/model")
    return Service(machine)


@pytest.fixture
def service(installed) -> Service:
    """The service, active, with nothing but its unit to say how."""
    machine = installed.machine
    if any((machine.root / str(DROP_INS).lstrip("/")).glob("*")):
        machine.run("rm", "-r", DROP_INS)
        installed.systemctl("daemon-reload")
        installed.systemctl("stop", UNIT_NAME)
    installed.systemctl("reset-failed", UNIT_NAME, check=False)
    installed.systemctl("start", UNIT_NAME)
    wait_until(lambda: installed.active, "the service is active")
    return installed
