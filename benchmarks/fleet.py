"""A fleet of hosts: evaluations per second, how much of the hosts is used, and what goes over the link.

`python benchmarks/fleet.py [--hosts 1 2 4 8] [--jobs 10] [--seconds 1.0] [--json] [--keep]` starts so many
real SSH servers, each in a network namespace and behind a link of 1 ms, with one core each. A fleet gives
them jobs that sleep holding the core, as this machine's CPUs would not scale with the hosts; a second job of
each host is made ready meanwhile, as evaluations are. `used` is how much of the time the cores were held,
`parallel` the evaluations per second by those of one host times the hosts. `home ms` and `host ms` are CPU
time for each job, which says more than the clock on a busy machine: of this process, with the links that it
stands in for, and of all processes of the host, sshd among them. Then jobs one at a time on one host: what
each takes beyond its sleep, and how much of that is not the host's own account of the job: link, protocol and
home. At last real kernels on one host: what goes over its link, both ways and encrypted, for the first
candidate of a problem, and for another. It needs root, for the namespaces. `--keep` writes
`benchmarks/results/fleet.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULT = Path(__file__).parent / "results" / "fleet.json"
sys.path[:1] = [str(ROOT)]  # as with `python -m`: the project's root, so that both spellings work

import seeds  # noqa: E402 - the path is set above
from remote.evaluator import EvaluationAnswer  # noqa: E402
from remote.fleet.fleet import Fleet  # noqa: E402
from remote.fleet.hosts import SshFleetMember  # noqa: E402
from remote.fleet.member import HostDescription  # noqa: E402
from remote.judge_service import JudgeService  # noqa: E402
from remote.ssh.job import JobSpec  # noqa: E402
from remote.ssh.jobs import JobClient  # noqa: E402
from remote.ssh.worker_archive import build_worker_archive  # noqa: E402
from state.model import (  # noqa: E402
    PERSON,
    Evaluation,
    EvaluationRequest,
    Level,
    ProblemRef,
    Verdict,
    digest_of,
)
from tests.support.blobs import Blobs  # noqa: E402
from tests.support.netns import Machine  # noqa: E402
from tests.support.sshd import descendants, trust_host  # noqa: E402
from tests.support.tcp_proxy import Proxy  # noqa: E402

ONE_WAY_S = 0.0005
ALONE = 5
"""Jobs that are done one at a time, to see what one takes."""

NAP = """
import json, time
from pathlib import Path

def nap(folder):
    job = json.loads((folder / "job.json").read_text())
    time.sleep(job["payload"]["seconds"])
    (folder / "answer.json").write_text("{}")

STEPS = {"nap": nap}
"""


@dataclass(frozen=True)
class Row:
    """What a fleet of `hosts` hosts came to; CPU times are not in results that were kept before."""

    hosts: int
    jobs: int
    seconds: float
    per_second: float
    used_percent: float
    home_cpu_ms: float | None = None
    host_cpu_ms: float | None = None


class Counted(Proxy):
    """A link of 1 ms that counts what goes over it, both ways."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine.sshd.port, delay_s=ONE_WAY_S, dial=machine.dial)
        self.carried = 0

    async def _pump(self, reader: Any, writer: asyncio.StreamWriter, *, counted: bool) -> None:
        await super()._pump(_Counting(reader, self), writer, counted=counted)  # type: ignore[arg-type]


class _Counting:
    def __init__(self, reader: asyncio.StreamReader, link: Counted) -> None:
        self._reader = reader
        self._link = link

    async def read(self, most: int) -> bytes:
        data = await self._reader.read(most)
        self._link.carried += len(data)
        return data


class Napper:
    """A host whose evaluations sleep, one at a time.

    `beyond_s` are what they took besides, `outside_s` what of it the host does not account for.
    """

    def __init__(self, jobs: JobClient, seconds: float) -> None:
        self._jobs = jobs
        self._seconds = seconds
        self.beyond_s: list[float] = []
        self.outside_s: list[float] = []

    @property
    def address(self) -> str:
        return self._jobs.host.address

    async def prepare(self) -> HostDescription:
        await self._jobs.greet_host()
        return HostDescription("a bed", "sleep", slots=2)

    async def evaluate(self, request: EvaluationRequest, _: Any, /) -> EvaluationAnswer:
        began = time.monotonic()
        key = hashlib.sha256(f"{request.candidate} {os.urandom(8).hex()}".encode()).hexdigest()
        spec = JobSpec(key=key, step="nap", payload={"seconds": self._seconds}, cores=1)
        result = await self._jobs.run_job(spec)
        took = time.monotonic() - began
        self.beyond_s.append(took - self._seconds)
        self.outside_s.append(took - result.queued_s - result.ran_s)
        await self._jobs.forget_job(key)
        found = Evaluation(
            verdict=Verdict.CORRECT, stage="nap", code=request.source, target="trn2", toolchain="sleep"
        )
        return EvaluationAnswer(found, {}, {})

    async def calibrate(self) -> float:
        return 1.0

    async def aclose(self) -> None:
        await self._jobs.aclose()


class Nobody:
    """Stands where predictions would be made."""

    async def aclose(self) -> None:
        pass


@asynccontextmanager
async def machines(folder: Path, count: int) -> AsyncIterator[list[tuple[Machine, Counted]]]:
    """Start machines, each behind its link."""
    async with AsyncExitStack() as stack:
        found = []
        for number in range(count):
            machine = stack.enter_context(Machine(folder / f"m{number}"))
            found.append((machine, await stack.enter_async_context(Counted(machine))))
        yield found


async def jobs_of(machine: Machine, link: Counted, home: Path, **options: Any) -> JobClient:
    return JobClient(await trust_host(machine.sshd.link(home, port=link.port, cores=(0,)), home), **options)


async def measure(hosts: int, jobs: int, seconds: float) -> Row:
    """Have a fleet of `hosts` hosts do `jobs` jobs for each of them."""
    async with napping(hosts, seconds) as (fleet, _, machines):
        home_s, hosts_s = time.process_time(), cpu_seconds(machines)
        began = time.monotonic()
        await _nap(fleet, jobs * hosts)
        took = time.monotonic() - began
        home_s, hosts_s = time.process_time() - home_s, cpu_seconds(machines) - hosts_s
    return Row(
        hosts=hosts,
        jobs=jobs * hosts,
        seconds=round(took, 3),
        per_second=round(jobs * hosts / took, 3),
        used_percent=round(100 * jobs * seconds / took, 1),
        home_cpu_ms=round(1000 * home_s / (jobs * hosts), 1),
        host_cpu_ms=round(1000 * hosts_s / (jobs * hosts), 1),
    )


def cpu_seconds(machines: Sequence[Machine]) -> float:
    """Return the CPU time of all processes that these machines had, user and system.

    Those that ended are in the times of their parents, and at last in those of their machine's first.
    """
    ticks = 0
    for machine in machines:
        for pid in descendants(machine.sshd.pid):
            with suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
                ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


async def alone(seconds: float) -> dict[str, float]:
    """Return what a job takes beyond its sleep, and how much of that is not the host's, in ms (medians)."""
    async with napping(1, seconds) as (fleet, (one,), _):
        one.beyond_s.clear()
        one.outside_s.clear()
        for _ in range(ALONE):
            await _nap(fleet, 1)
        return {
            "beyond_ms": round(1000 * median(one.beyond_s), 1),
            "outside_ms": round(1000 * median(one.outside_s), 1),
        }


@asynccontextmanager
async def napping(hosts: int, seconds: float) -> AsyncIterator[tuple[Fleet, list[Napper], list[Machine]]]:
    """Make a fleet of hosts that sleep, each of which has done so once."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        home.mkdir()
        worker = build_worker_archive({"remote/hostside/steps/__init__.py": NAP})
        async with machines(Path(folder), hosts) as found:
            nappers = [Napper(await jobs_of(*one, home, worker=worker), seconds) for one in found]
            fleet = Fleet(nappers, predictor=Nobody())  # type: ignore[arg-type]
            try:
                await fleet.prepare()
                await _nap(fleet, hosts)
                yield fleet, nappers, [machine for machine, _ in found]
            finally:
                await fleet.aclose()


async def _nap(fleet: Fleet, count: int) -> None:
    problem = ProblemRef(name="nap", digest=digest_of(b"nap"), files={})
    await asyncio.gather(*(
        fleet.evaluate(
            EvaluationRequest(
                candidate=f"n{number}", author=PERSON, source=digest_of(b"nap"), problem=problem, size="full",
                target="trn2", toolchain="sleep",
            ),
            Blobs(),
        )
        for number in range(count)
    ))  # fmt: skip


async def measure_transfers() -> dict[str, float]:
    """Return the kilobytes that go over the link for the first and for a repeated candidate of a problem."""
    silu = seeds.load_problem("silu")
    other = silu.kernel + "\n# another candidate\nANOTHER = 1\n"
    blobs = Blobs()
    for data in silu.files.values():
        blobs.put(data)
    carried = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        home.mkdir()
        async with machines(Path(folder), 1) as ((machine, link),):
            judge = JudgeService(home=home, slots=1, allow_weak_jail=True)
            jobs = await jobs_of(machine, link, home)
            host = SshFleetMember(jobs, judge=judge, target="trn2", allow_weak_jail=True)
            try:
                about = await host.prepare()
                for source in (silu.kernel, other):
                    before = link.carried
                    request = EvaluationRequest(
                        candidate="c",
                        author=PERSON,
                        source=blobs.put(source.encode()),
                        problem=silu.make_ref(),
                        size="reduced",
                        target="trn2",
                        toolchain=about.toolchain,
                        level=Level.SLICES,
                    )
                    await host.evaluate(request, blobs)
                    carried.append((link.carried - before) / 1000)
            finally:
                await host.aclose()
                await judge.aclose()
    return {"first_kb": round(carried[0], 1), "repeated_kb": round(carried[1], 1)}


_COLUMNS = "{:>5} {:>5} {:>8} {:>8} {:>8} {:>9} {:>8} {:>8}"


def table(found: dict[str, Any]) -> list[str]:
    """Return the results as text."""
    rows = [Row(**one) for one in found["rows"]]
    lines = [_COLUMNS.format("hosts", "jobs", "s", "per s", "used", "parallel", "home ms", "host ms")]
    for one in rows:
        parallel = f"{100 * one.per_second / (one.hosts * rows[0].per_second / rows[0].hosts):.1f} %"
        per_second, used = f"{one.per_second:.2f}", f"{one.used_percent:.1f} %"
        cpu = ("-" if ms is None else ms for ms in (one.home_cpu_ms, one.host_cpu_ms))
        lines.append(_COLUMNS.format(one.hosts, one.jobs, one.seconds, per_second, used, parallel, *cpu))
    by_itself, bytes_ = found["alone"], found["transferred"]
    beyond, outside = by_itself["beyond_ms"], by_itself["outside_ms"]
    first, again = bytes_["first_kb"], bytes_["repeated_kb"]
    return [
        *lines,
        f"a job by itself: {beyond} ms beyond its sleep, {outside} ms of it outside the host",
        f"over the link: {first} KB for the first candidate of a problem, {again} KB for another",
        f"{found['cpus']} CPUs for home and all hosts, load before {found['load']}",
    ]


async def run(hosts: Sequence[int], jobs: int, seconds: float) -> dict[str, Any]:
    """Measure all of it."""
    load = round(os.getloadavg()[0], 1)
    rows = []
    for count in hosts:
        rows.append(await measure(count, jobs, seconds))
        print(f"{count} hosts: cores held {rows[-1].used_percent} % of the time", file=sys.stderr)
    return {
        "job_seconds": seconds,
        "link_ms": 2000 * ONE_WAY_S,
        "cpus": os.cpu_count(),
        "load": load,
        "rows": [asdict(one) for one in rows],
        "alone": await alone(seconds),
        "transferred": await measure_transfers(),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--jobs", type=int, default=10, help="jobs per host")
    parser.add_argument("--seconds", type=float, default=1.0, help="what a job sleeps")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true", help=f"write {RESULT.relative_to(ROOT)}")
    options = parser.parse_args(arguments)
    found = asyncio.run(run(options.hosts, options.jobs, options.seconds))
    if options.keep:
        RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found) if options.json else "\n".join(table(found)))


if __name__ == "__main__":
    main()
