"""Worlds of real processes and files: a daemon with a real judge, jails and caches, and a machine that fails.

One seed decides what a home goes through: lives of a daemon, each with its faults, and damage to the cache
between them. Children do not start, are killed at once or at work; operations on files of the cache fail, or
leave half a file as the process dies; the daemon is killed at a crash point or after some time. Then the
machine is well, a person resumes what is paused, and the run must end as its undisturbed twin does. A seed
fixes what is done and when, but not how fast processes are: a seed that fails may need several tries.

`tests/daemon/test_process_worlds.py` runs some seeds, `benchmarks/process_worlds.py` any number.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.chaos import submit
from benchmarks.faults.kills import list_children
from daemon import home_owner
from daemon.command_models import Resume
from daemon.evaluation_retries import EvaluationRetryPolicy
from daemon.home_owner import create_workers, host_home
from daemon.inbox import put_command
from daemon.runner import EffectRunner
from daemon.stop_signal import StopSignal
from remote import pool, sandbox
from remote.processes import kill_group
from state.errors import NoLog
from state.log import EventLog
from state.model import RunConfig, RunStatus, SearchConfig
from state.reader import LogReader
from state.sealed_files import SUFFIX, SealChecker
from state.verify import verify_log
from tests.support import fakes
from tests.support.fork_server import ForkServer
from tests.support.twins import outcomes_per_effect, read_end

CONFIG = RunConfig(
    problem="silu",
    size="reduced",
    starts="kernel",
    planner=("scripted",),
    seed=2,
    search=SearchConfig(
        beam=1, plans=2, rounds=1, within_percent=0, reuse=False, lookahead_predictions=0, simplify=False
    ),
)
QUIET_LIVES = 8
"""How many lives a run gets on a machine that is well; each that ends paused is followed by a resume."""
LONGEST_LIFE_S = 600

ERRORS = {"no space": errno.ENOSPC, "I/O error": errno.EIO, "no handles": errno.EMFILE}
START_ERRORS = {"no handles": errno.EMFILE, "no processes": errno.EAGAIN, "no memory": errno.ENOMEM}
START_FAULTS = (*START_ERRORS, "killed", "killed at work")
FILE_FAULTS = (*ERRORS, "torn")
PATH_OPERATIONS = ("mkdir", "open", "rename", "replace", "write_bytes", "write_text")
OPERATIONS = ("start", "fsync", *PATH_OPERATIONS)
RETRY = EvaluationRetryPolicy(first_pause=0.02, factor=2.0)
"""As in a daemon, with shorter pauses: a world is not to last minutes."""
DAMAGES = ("delete", "cut", "zeros", "zeros in arrays", "exchange", "digest")


@dataclass(frozen=True)
class Fault:
    """What goes wrong at the `number`-th time of an operation in a life."""

    operation: str
    number: int
    kind: str


@dataclass(frozen=True)
class Life:
    """One life of the daemon: its faults, the damage before it, and how it ends if not by itself.

    It is killed at a crash point, when its run has so many events, or after so many seconds; the newest of
    its children may be killed too.
    """

    faults: tuple[Fault, ...] = ()
    damage: str | None = None
    crash: str | None = None
    kill_at: int | None = None
    kill_after: float | None = None
    child_kill_after: float | None = None


@dataclass
class Story:
    """What became of a home: its run, and what was done to it, by kind."""

    home: Path
    run: str
    done: Counter[str] = field(default_factory=Counter)


def draw_lives(chances: random.Random) -> list[Life]:
    """Return the lives of a home before its machine is well; fewer than make an effect look poisonous."""
    return [
        Life(
            faults=tuple(_draw_fault(chances) for _ in range(chances.choice((0, 1, 2, 4)))),
            damage=chances.choice(DAMAGES) if number else None,
            crash=str(chances.randint(1, 150)) if chances.random() < 0.3 else None,
            kill_at=chances.randint(2, 40) if chances.random() < 0.3 else None,
            kill_after=chances.uniform(0.1, 4.0) if chances.random() < 0.3 else None,
            child_kill_after=chances.uniform(0.1, 3.0) if chances.random() < 0.3 else None,
        )
        for number in range(chances.randint(1, 4))
    ]


def _draw_fault(chances: random.Random) -> Fault:
    operation = chances.choice(OPERATIONS)
    kinds = START_FAULTS if operation == "start" else FILE_FAULTS
    return Fault(operation, chances.choice((1, 1, 2, 3, 5, 8, 13)), chances.choice(kinds))


# --- in the daemon's process -----------------------------------------------------------------------


class FaultyMachine:
    """Makes the faults of a life, in the process that lives it, and notes each in a file beside the home."""

    def __init__(self, home: Path, faults: list[dict[str, Any]]) -> None:
        self._due = {(one["operation"], one["number"]): one["kind"] for one in faults}
        self._cache = str(home / "cache")
        self._notes = os.open(_notes_of(home), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
        self._counts: Counter[str] = Counter()

    def arm(self) -> None:
        """Put the faults in place, for as long as the process lives."""
        for module in (pool, sandbox):
            module.start_process = partial(self._start, module.start_process)
        for name in PATH_OPERATIONS:
            setattr(Path, name, self._wrap(name, getattr(Path, name)))
        os.fsync = partial(self._sync, os.fsync)

    def _strike(self, operation: str) -> str | None:
        self._counts[operation] += 1
        kind = self._due.get((operation, self._counts[operation]))
        if kind is not None:
            self.note(f"{operation}: {kind}")
        return kind

    def note(self, what: str) -> None:
        os.write(self._notes, f"{what}\n".encode())

    def kill_child(self) -> None:
        """Kill one of the processes that this one started, if there are any: the newest."""
        found = [(pid, name) for pid, name in list_children(os.getpid()) if "resource_tracker" not in name]
        if found:
            pid, name = found[-1]
            os.kill(pid, signal.SIGKILL)
            self.note(f"child killed: {name}")

    async def _start(self, start: Callable[..., Any], *command: str, **options: Any) -> Any:
        kind = self._strike("start")
        if kind in START_ERRORS:
            raise OSError(START_ERRORS[kind], os.strerror(START_ERRORS[kind]))
        process = await start(*command, **options)
        if kind == "killed":
            kill_group(process.pid)
        elif kind == "killed at work":
            asyncio.get_running_loop().call_later(0.3, kill_group, process.pid)
        return process

    def _wrap(self, operation: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def faulty(path: Path, *values: Any, **options: Any) -> Any:
            if not str(path).startswith(self._cache):
                return work(path, *values, **options)
            kind = self._strike(operation)
            if kind == "torn" and operation.startswith("write"):
                work(path, values[0][: len(values[0]) // 2], **options)
            if kind == "torn":
                os.kill(os.getpid(), signal.SIGKILL)
            if kind is not None:
                raise OSError(ERRORS[kind], os.strerror(ERRORS[kind]), str(path))
            return work(path, *values, **options)

        return faulty

    def _sync(self, sync: Callable[[int], None], descriptor: int) -> None:
        if not str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith(self._cache):
            sync(descriptor)
            return
        kind = self._strike("fsync")
        if kind == "torn":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind is not None:
            raise OSError(ERRORS[kind], os.strerror(ERRORS[kind]))
        sync(descriptor)


def _believe_damaged_files() -> None:
    SealChecker.is_sound = lambda _, path: path.exists()


def _take_deaths_for_failures() -> None:
    home_owner._retry_policy = lambda _: EvaluationRetryPolicy(tries=1, machine_tries=1)
    EffectRunner._is_needed = EffectRunner._is_last_hope = lambda *_: False


DEFECTS: Mapping[str, Callable[[], None]] = {
    "damaged files are believed": _believe_damaged_files,
    "deaths are failures": _take_deaths_for_failures,
}
"""Ways to break the program, each of which worlds find."""


def live(home: Path, run: str, job: Mapping[str, Any]) -> None:
    """Host a home until its run has ended or is paused, on a machine with the faults of a job."""
    signal.alarm(LONGEST_LIFE_S)
    machine = FaultyMachine(home, job["faults"])
    machine.arm()
    home_owner._retry_policy = lambda _: RETRY
    if (defect := job.get("defect")) is not None:
        DEFECTS[defect]()
    child_kill_after, kill_at = job.get("child_kill_after"), job.get("kill_at")

    async def host() -> None:
        stop, config = StopSignal(), fakes.daemon_config()
        if child_kill_after is not None:
            asyncio.get_running_loop().call_later(child_kill_after, machine.kill_child)
        with EventLog.open(home) as log:
            work = host_home(log, config, stop=stop, workers=create_workers(home, config))
            hosting = asyncio.create_task(work)
            while not hosting.done() and not _rests(log, run):
                if kill_at is not None and log.run_seq(run) >= kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                await asyncio.sleep(0.01)
            stop.request()
            await hosting

    asyncio.run(host())


def _rests(log: EventLog, run: str) -> bool:
    if not log.run_seq(run):
        return False
    state = log.run_state(run)
    return state.has_ended or (state.status is RunStatus.PAUSED and not any(log.home.glob("inbox/*.json")))


# --- around it -------------------------------------------------------------------------------------


def damage_cache(cache: Path, kind: str, chances: random.Random) -> str | None:
    """Damage a file of the cache, or all arrays whose format has no checksum; return in which folder."""
    paths = sorted(path for path in cache.rglob("*") if path.is_file())
    if not paths:
        return None
    if kind == "zeros in arrays":
        paths = [path for path in paths if path.suffix == ".npy"]
        for path in paths:
            path.write_bytes(_put_zeros(path.read_bytes(), at=path.stat().st_size // 2))
        return "references" if paths else None
    path, other = chances.choice(paths), chances.choice(paths)
    data = path.read_bytes()
    if kind == "delete":
        path.unlink()
    elif kind == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif kind == "zeros":
        path.write_bytes(_put_zeros(data, at=chances.randrange(len(data)) if data else 0))
    elif kind == "exchange":
        path.write_bytes(other.read_bytes())
        other.write_bytes(data)
    else:
        path.with_name(path.name.removesuffix(SUFFIX) + SUFFIX).unlink(missing_ok=True)
    return path.relative_to(cache).parts[0]


def _put_zeros(data: bytes, *, at: int) -> bytes:
    return data[:at] + bytes(min(4096, len(data) - at)) + data[at + 4096 :]


def run_world(
    lives: Sequence[Life],
    home: Path,
    server: ForkServer,
    *,
    chances: random.Random | None = None,
    defect: str | None = None,
) -> Story:
    """Let a home live through these lives, and then on a machine that is well to its run's end."""
    chances = chances or random.Random(0)
    story = Story(home, submit(home, CONFIG))
    for life in [*lives, *[Life()] * QUIET_LIVES]:
        if life.damage is not None and (where := damage_cache(home / "cache", life.damage, chances)):
            story.done[f"{life.damage}: {where}"] += 1
        status = _read_status(story)
        if status in (RunStatus.COMPLETED, RunStatus.CANCELLED):
            break
        if status is RunStatus.PAUSED:
            put_command(home, Resume(run=story.run))
            story.done["resumed"] += 1
        orders = {
            name: getattr(life, name) for name in ("crash", "kill_at", "kill_after", "child_kill_after")
        }
        orders |= {"faults": [asdict(one) for one in life.faults], "defect": defect}
        told = {name: value for name, value in orders.items() if value is not None}
        ended = server.run(home, story.run, **told)
        story.done[
            f"life ended by {signal.Signals(-ended).name}" if ended < 0 else f"life ended {ended}"
        ] += 1
    story.done.update(_notes_of(home).read_text().splitlines())
    return story


def _notes_of(home: Path) -> Path:
    return home.with_name(f"{home.name}.faults")


def run_seed(seed: int, folder: Path, server: ForkServer, *, defect: str | None = None) -> Story:
    """Let the home of a seed live through what that decides, with a program that has this defect."""
    chances = random.Random(seed)
    lives = draw_lives(chances)
    return run_world(lives, folder / str(seed), server, chances=chances, defect=defect)


def _read_status(story: Story) -> RunStatus | None:
    try:
        with LogReader.open(story.home) as reader:
            return reader.run_state(story.run).status if reader.run_seq(story.run) else None
    except NoLog:
        return None


def find_differences(story: Story, twin: Story) -> Iterator[str]:
    """Yield in which ways a home is not as it must be after a world."""
    status = _read_status(story)
    if status is not RunStatus.COMPLETED:
        yield f"the run is {status}"
    elif read_end(story.home, story.run) != read_end(twin.home, twin.run):
        yield "another state or best kernel than undisturbed"
    outcomes = outcomes_per_effect(story.home, story.run)
    if twice := [key for key, count in outcomes.items() if count > 1]:
        yield f"outcomes came twice: {twice}"
    yield from map(str, verify_log(story.home).findings)


def make_twin(folder: Path, server: ForkServer) -> Story:
    """Return the story of the same run on a machine that is always well."""
    return run_world([], folder / "twin", server)
