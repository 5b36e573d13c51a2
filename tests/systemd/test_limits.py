"""The unit's limits under a real systemd: what eats memory or tasks is stopped within it, and runs go on."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from agentctl.systemd_unit import UNIT_NAME
from state.verify import verify_log
from tests.support.booted_systemd import CONTROLLERS, BootedSystem, wait_until
from tests.systemd.conftest import Service

pytestmark = pytest.mark.slow

MEMORY_MAX = 768 << 20
TASKS_MAX = 96

EATING = "held = []\nwhile True: held.append(b'x' * (8 << 20))"
"""Memory that is written to, so that it has to be there."""

FORKING = f"""import errno, os, signal, time
children = []
try:
    for _ in range(4 * {TASKS_MAX}):
        child = os.fork()
        if child == 0:
            time.sleep(600)
        children.append(child)
except OSError as error:
    print(len(children), error.errno)
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""

HUNGRY = """import threading, time
from pathlib import Path
def eat():
    while not Path("/run/eat").exists():
        time.sleep(0.05)
    held = []
    while True:
        held.append(b"x" * (8 << 20))
if __name__ == "__main__":
    threading.Thread(target=eat, daemon=True).start()
    from daemon.main import main
    main()
"""
"""The daemon, with a leak that opens when it is told to."""

LIMITS = {"memory": ("memory.max", "memory.limit_in_bytes"), "pids": ("pids.max",)}
"""The files that hold a limit: of the one hierarchy, and of a controller's own."""


@pytest.fixture
def service(service: Service) -> Service:
    """The service, where systemd has the controllers that its limits take."""
    for controller in CONTROLLERS:
        inside = service.machine.run("ls", service.machine.cgroup(UNIT_NAME, controller), check=False)
        if not set(inside.stdout.split()).intersection(LIMITS[controller]):
            pytest.skip(f"the cgroup of this process has no {controller} controller to hand on")
    return service


def limit(service: Service, controller: str) -> int:
    """Return the limit that the kernel goes by."""
    group = service.machine.cgroup(UNIT_NAME, controller)
    found = [service.machine.run("cat", group / name, check=False).stdout for name in LIMITS[controller]]
    return int("".join(found))


def in_the_unit(machine: BootedSystem, controller: str, program: str) -> list[str | Path]:
    """Return the command of a Python program that is a process of the unit, as far as the controller goes."""
    procs = machine.cgroup(UNIT_NAME, controller) / "cgroup.procs"
    return ["sh", "-c", f'echo $$ > {procs}; exec "$0" -c "$1"', sys.executable, program]


def test_the_limits_that_the_unit_names_are_those_of_the_kernel(service):
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert limit(service, "memory") == pytest.approx(0.9 * physical, rel=0.01)
    assert limit(service, "pids") == 4096


def test_a_process_that_eats_memory_is_ended_within_the_unit_and_the_runs_go_on(service):
    service.with_settings(lasting=f"MemoryMax={MEMORY_MAX}")
    assert limit(service, "memory") == MEMORY_MAX
    pid, run = service.pid, service.submit(51)
    wait_until(lambda: bool(service.row(run)), "the run is there")
    eater = service.machine.run(*in_the_unit(service.machine, "memory", EATING), check=False)
    assert eater.returncode == -signal.SIGKILL
    wait_until(lambda: service.has_ended(run), "the run ends")
    assert (service.pid, service.show("NRestarts")) == (pid, ["0"])


def test_a_daemon_that_eats_memory_is_ended_started_again_and_its_runs_recover(service):
    service.machine.write("/opt/hungry.py", HUNGRY)
    hungry = ("ExecStart=", f"ExecStart={sys.executable} /opt/hungry.py")
    service.with_settings(*hungry, lasting=f"MemoryMax={MEMORY_MAX}")
    run, pid = service.submit(52, rounds=2), service.pid
    wait_until(lambda: service.under_way(run), "the run is under way")
    service.machine.run("touch", "/run/eat")
    wait_until(lambda: service.has_restarted(pid), "the service is started again")
    told = "\n".join(entry["MESSAGE"] for entry in service.machine.journal(UNIT_NAME))
    assert re.search(r"Main process exited, code=killed, status=9/KILL", told)
    wait_until(lambda: service.has_ended(run), "the run ends")
    assert service.row(run)["reason"] == "rounds"
    assert verify_log(service.files).findings == ()


def test_a_process_that_forks_without_end_is_refused_within_the_unit_and_the_daemon_lives(service):
    service.with_settings(lasting=f"TasksMax={TASKS_MAX}")
    assert limit(service, "pids") == TASKS_MAX
    pid = service.pid
    told = service.machine.run(*in_the_unit(service.machine, "pids", FORKING)).stdout.split()
    assert 0 < int(told[0]) < TASKS_MAX
    assert int(told[1]) == errno.EAGAIN
    run = service.submit(53)
    wait_until(lambda: service.has_ended(run), "the run ends")
    assert (service.pid, service.show("NRestarts")) == (pid, ["0"])
