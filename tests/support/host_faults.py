"""One job's life on a host while something goes wrong, and what must be true afterwards whatever it was.

`run_job_through` sends inputs, has a job wait at a gate on the host, inflicts a fault, opens the gate,
fetches the result and forgets the job. The job counts its beginnings and ends in a file of the host, so that
a measurement that was made twice is seen. Faults are a table: tests run some, the benchmark prints all.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from remote.hostside import leases
from remote.ssh.channel import WorkerChannel
from remote.ssh.errors import HostError
from remote.ssh.job import JobSpec
from remote.ssh.jobs import JobClient
from tests.support.netns import Machine
from tests.support.sshd import Sshd, steps_of_tests, trust_host, until
from tests.support.tcp_proxy import Proxy

DAY_S = 86400.0
VERBS = ("hello", "lacking", "put", "submit", "wait", "fetch", "forget")
CUTS = ("before", "after")
LONGEST_S = 300.0
LEASE_S = 1000.0  # longer than any test machine stands still
_MISSED_S = LEASE_S + 1
_INPUT = random.Random(1).randbytes(300_000)


@dataclass
class Rig:
    """A host, the way to it, and a home."""

    sshd: Sshd
    proxy: Proxy
    jobs: JobClient
    home: Path
    folder: Path
    machine: Machine | None = None
    life: str = "life"
    lease_s: float = LEASE_S

    @property
    def gate(self) -> Path:
        return self.folder / f"gate of {self.life}"

    @property
    def tally(self) -> Path:
        return self.folder / f"tally of {self.life}"

    @property
    def clock(self) -> Path:
        return self.folder / "clock"

    def job(self) -> JobSpec:
        """The job that lives through it."""
        return JobSpec(
            key=hashlib.sha256(self.life.encode()).hexdigest(),
            step="gated",
            payload={"gate": str(self.gate), "tally": str(self.tally)},
            inputs={"input.bin": hashlib.sha256(_INPUT).hexdigest()},
            cores=1,
            deadline_s=LONGEST_S,
            lease_s=self.lease_s,
        )

    def count(self, word: str) -> int:
        """How often the job began, or came to its end."""
        text = self.tally.read_text() if self.tally.exists() else ""
        return sum(line.startswith(word) for line in text.splitlines())

    def result_there(self) -> bool:
        return (self.sshd.workdir / "jobs" / self.job().key / "result.json").exists()

    def set_clock(self, calendar_s: float, monotonic_s: float) -> None:
        part = self.clock.with_suffix(".part")
        part.write_text(f"{calendar_s} {monotonic_s}")
        part.replace(self.clock)

    def runner(self) -> int:
        """The process that runs the job: the parent of its step."""
        step = int(self.tally.read_text().split()[3])
        return int(Path(f"/proc/{step}/stat").read_text().rpartition(")")[2].split()[1])


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a job: `begun` and `ended` on the host, and what is left there afterwards."""

    status: str
    right: bool
    begun: int
    ended: int
    cores_free: bool
    litter: tuple[str, ...]
    seconds: float

    @property
    def is_sound(self) -> bool:
        """Whether the result is there and right, made once, and nothing is left."""
        return self.right and self.ended == 1 and self.cores_free and not self.litter


Inflict = Callable[[Rig], Awaitable[None]]


@dataclass(frozen=True)
class Fault:
    """What goes wrong while a job runs, and how often the job begins because of it."""

    inflict: Inflict
    begins: int = 1
    machine: bool = False
    delay_s: float = 0.0
    lease_s: float = LEASE_S
    words: str = field(default="")


@contextlib.asynccontextmanager
async def set_up_host(folder: Path, fault: Fault) -> AsyncIterator[Rig]:
    """Set a host up, with what the fault needs around it."""
    home, clock = folder / "home", {"NKI_TEST_CLOCK": str(folder / "clock")}
    machine = Machine(folder / "server", environment=clock) if fault.machine else None
    with machine or Sshd(folder / "server", environment=clock) as entered:
        sshd = machine.sshd if machine else entered
        async with Proxy(sshd.port, delay_s=fault.delay_s, dial=machine.dial if machine else None) as proxy:
            link = await trust_host(sshd.link(home, port=proxy.port), home)
            jobs = JobClient(link, worker=steps_of_tests(clock=True))
            try:
                yield Rig(sshd, proxy, jobs, home, folder, machine, lease_s=fault.lease_s)
            finally:
                await jobs.aclose()


async def run_job_through(there: Rig, inflict: Inflict) -> Outcome:
    """Have the job done while something goes wrong."""
    begun = time.monotonic()
    job, digest = there.job(), hashlib.sha256(_INPUT).hexdigest()
    await there.jobs.greet_host()
    await there.jobs.upload_blobs({digest: _INPUT})
    running = asyncio.create_task(there.jobs.run_job(job))
    try:
        await until(lambda: there.count("begin") or running.done(), "the job's beginning")
        await inflict(there)
        there.gate.touch()
        result = await running
        files = await there.jobs.fetch_files(job.key, ["input.bin"]) if result.status == "done" else {}
        status, right = result.status, result.answer == "through" and files == {"input.bin": _INPUT}
    except HostError as error:
        status, right = error.code, False
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await there.jobs.forget_job(job.key)
    return Outcome(
        status=status,
        right=right,
        begun=there.count("begin"),
        ended=there.count("end"),
        cores_free=cores_free(there.sshd),
        litter=list_litter(there.sshd),
        seconds=time.monotonic() - begun,
    )


def cores_free(sshd: Sshd) -> bool:
    """Whether every core of a host can be had."""
    before = os.environ.get("NKI_KERNEL_AGENT_LEASES")
    os.environ["NKI_KERNEL_AGENT_LEASES"] = str(sshd.leases)
    try:
        indices = [int(path.name.removeprefix("core-")) for path in sshd.leases.glob("core-*")]
        got = [leases.acquire_lease("core", [index]) for index in indices]
        for lease in got:
            if lease is not None:
                lease.release()
        return bool(got) and all(got)
    finally:
        if before is None:
            del os.environ["NKI_KERNEL_AGENT_LEASES"]
        else:
            os.environ["NKI_KERNEL_AGENT_LEASES"] = before


def list_litter(sshd: Sshd) -> tuple[str, ...]:
    """What is left on a host beside the worker and the contents that were sent."""
    folders = [sshd.workdir / name for name in ("jobs", "trash")]
    found = [path for folder in folders for path in folder.iterdir()]
    return tuple(str(path) for path in [*found, *sshd.workdir.rglob("*.part")])


async def _nothing(there: Rig) -> None:
    pass


async def _cut(there: Rig) -> None:
    there.sshd.cut()
    assert there.sshd.cuts


async def _restart(there: Rig) -> None:
    there.sshd.restart()


async def _freeze(there: Rig) -> None:
    """A peer that says nothing is given up, and one that comes back is found."""
    before = there.jobs.link.connections
    there.sshd.freeze()
    await until(lambda: not there.jobs.link.is_connected, "the silence being noticed")
    there.sshd.resume()
    there.gate.touch()
    await until(lambda: there.jobs.link.connections > before, "a new connection")


async def _half_open(there: Rig) -> None:
    before = there.jobs.link.connections
    there.proxy.forsake()
    await until(lambda: there.jobs.link.connections > before, "a new connection")


async def _partition(there: Rig) -> None:
    assert there.machine is not None
    there.machine.iptables("-A", "INPUT", "-p", "tcp", "-j", "DROP")
    await until(lambda: not there.jobs.link.is_connected, "the partition being noticed")
    there.machine.iptables("-F")


async def _loss(there: Rig, *chains: str) -> None:
    """A tenth of all packets is lost from here on."""
    assert there.machine is not None
    chance = ("-m", "statistic", "--mode", "random", "--probability", "0.1")
    for chain in chains or ("INPUT",):
        there.machine.iptables("-A", chain, "-p", "tcp", *chance, "-j", "DROP")


async def _long_loss(there: Rig) -> None:
    """A tenth is lost both ways, for as long as three leases: only renewals that arrive keep the job."""
    await _loss(there, "INPUT", "OUTPUT")
    await asyncio.sleep(3 * there.lease_s)


async def _kill_worker(there: Rig) -> None:
    workers = [pid for pid in there.sshd.connections() if _serves(pid)]
    assert workers
    for pid in workers:
        os.kill(pid, signal.SIGKILL)


def _serves(pid: int) -> bool:
    return b"serve" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


async def _kill_runner(there: Rig) -> None:
    os.kill(there.runner(), signal.SIGKILL)
    await until(lambda: there.count("begin") == 2, "another beginning")


async def _reboot(there: Rig) -> None:
    assert there.machine is not None
    there.machine.reboot()
    await until(lambda: there.count("begin") == 2, "another beginning")


async def _lease_lost(there: Rig) -> None:
    there.proxy.hold()
    there.set_clock(0, _MISSED_S)
    await until(there.result_there, "the host ending the job")
    there.proxy.let_go()
    await until(lambda: there.count("begin") == 2, "another beginning")


async def _finished_unheard(there: Rig) -> None:
    """The job ends while the link is away: its result is fetched later, not made again."""
    there.proxy.hold()
    there.gate.touch()
    await until(there.result_there, "the result")
    there.proxy.cut()
    there.proxy.let_go()


def _clock(days: float) -> Inflict:
    async def jump(there: Rig) -> None:
        there.set_clock(days * DAY_S, 0)
        there.sshd.cut()  # and the worker that is started next lives in the other day from its beginning

    return jump


FAULTS: dict[str, Fault] = {
    "nothing": Fault(_nothing),
    "link cut": Fault(_cut),
    "sshd killed and started again": Fault(_restart),
    "peer frozen": Fault(_freeze),
    "link half-open": Fault(_half_open),
    "result while the link is away": Fault(_finished_unheard),
    "partition (iptables)": Fault(_partition, machine=True),
    "a tenth of packets lost": Fault(_loss, machine=True),
    "a tenth lost both ways, for three leases": Fault(_long_loss, machine=True, lease_s=20.0),
    "300 ms of latency": Fault(_nothing, delay_s=0.15),
    "300 ms of latency, link cut": Fault(_cut, delay_s=0.15),
    "worker's connection process killed": Fault(_kill_worker),
    "job's runner killed": Fault(_kill_runner, begins=2),
    "host rebooted": Fault(_reboot, begins=2, machine=True),
    "away for longer than the lease": Fault(_lease_lost, begins=2),
    "clock a day ahead": Fault(_clock(1)),
    "clock a day behind": Fault(_clock(-1)),
}


async def _other_key(there: Rig) -> None:
    there.sshd.change_key()


async def _too_late(there: Rig) -> None:
    there.set_clock(0, LONGEST_S + 1)
    await until(there.result_there, "the deadline")


# What ends a job in another way, and how home is told.
ENDED_BY: dict[str, tuple[Fault, str]] = {
    "host key changed while the job ran": (Fault(_other_key), "host_key_changed"),
    "deadline passed": (Fault(_too_late), "deadline"),
}


@contextlib.contextmanager
def cut_at(verb: str, when: str, sshd: Sshd):  # type: ignore[no-untyped-def]
    """Cut the connection once, before a question of this kind is sent or when its answer is on the way."""
    original = WorkerChannel.ask
    done: list[str] = []

    async def ask(self: WorkerChannel, asked: str, **fields):  # type: ignore[no-untyped-def]
        if asked != verb or done:
            return await original(self, asked, **fields)
        done.append(asked)
        if when == "before":
            sshd.cut()
            return await original(self, asked, **fields)
        answer = asyncio.create_task(original(self, asked, **fields))
        await asyncio.sleep(0)  # it is written by now
        sshd.cut()
        return await answer

    WorkerChannel.ask = ask  # type: ignore[method-assign]
    try:
        yield done
    finally:
        WorkerChannel.ask = original  # type: ignore[method-assign]
