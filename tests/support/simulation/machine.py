"""The machine that a world's daemon runs on: its disk, its wall clock, and what a kill leaves.

What stands in here for the parts of the program that ask a real machine, or would only cost time, is in
`Machine.simulated`.
"""

from __future__ import annotations

import logging
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import structlog

import remote
import seeds
from daemon.config import FILE_NAME
from remote.cache import code_digest
from state import log, writer
from state.appender import Appender, AppendOutcome
from state.home import HomeLayout
from state.model import LatencyBounds, digest_of
from tests.support.simulation.clock import Clock
from tests.support.simulation.fates import Fates, SteppedWriter

BUGS = frozenset({"run_stalled", "command_failed"})
"""What the daemon logs when it meets a bug of its own and goes on."""

DAY_S = 86_400.0
PLENTY_BYTES = 1 << 40


@lru_cache(maxsize=1)
def _empty_log() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        log.EventLog.open(Path(folder)).close()
        return HomeLayout(Path(folder)).database.read_bytes()


class Machine:
    """A disk that may be full for a while, a wall clock that may be set, and homes: one for each life."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._lives = 0
        self._full_until = 0.0
        self._taken = False
        self._torn: tuple[int, bytes] | None = None
        self.home = folder / "home0"
        self.bugs: list[str] = []

    def begin(self) -> None:
        """Make a home that was used before: with a log, still empty, and a configuration file."""
        self.home.mkdir(mode=0o700)
        HomeLayout(self.home).database.write_bytes(_empty_log())
        (self.home / FILE_NAME).touch()

    # --- disk ---

    def fill(self, draw: random.Random) -> None:
        """Leave no space on the disk for a while; some take even what the reserve gives up."""
        self._full_until = self._clock.now + draw.uniform(1, 20)
        self._taken = draw.random() < 0.5

    def full(self) -> bool:
        """Return whether nothing can be written: there is no space, or it is in the reserve."""
        return self._free_bytes(self.home) == 0 and (self._taken or HomeLayout(self.home).reserve.exists())

    def _free_bytes(self, _: Path) -> int:
        return 0 if self._clock.now < self._full_until else PLENTY_BYTES

    # --- kills ---

    def tear(self) -> None:
        """Remember how the files are before a commit of which a part is to be left."""
        layout = HomeLayout(self.home)
        self._torn = layout.database.stat().st_mtime_ns, layout.wal.read_bytes()

    def save(self, draw: random.Random) -> None:
        """Take the files as a kill leaves them, as the home of the next life."""
        before, self._lives = self.home, self._lives + 1
        self.home = self._folder / f"home{self._lives}"
        shutil.copytree(before, self.home, ignore=shutil.ignore_patterns("reserve", "*-shm"))
        torn, self._torn = self._torn, None
        if torn is not None and torn[0] == HomeLayout(before).database.stat().st_mtime_ns:
            wal = HomeLayout(self.home).wal  # and all of the commit is in it, none in the database
            now = wal.read_bytes()
            upto = draw.randrange(len(now) + 1)
            wal.write_bytes(now[:upto] + torn[1][upto:])

    # --- clock ---

    def set_clock(self, draw: random.Random, how: str) -> None:
        """Set the wall clock, `how` being a name of `scenario.TO_THE_MACHINE`; midnight is UTC's."""
        far = draw.choice((1.0, 3600.0, 30 * DAY_S)) * draw.random()
        to_midnight = DAY_S - self._clock.wall() % DAY_S - draw.uniform(0, 5)
        self._clock.ahead += {
            "clock forward": far,
            "clock back": -far,
            "clock to midnight": to_midnight,
        }[how]

    # --- what stands in for the real ones ---

    @contextmanager
    def simulate_parts(
        self,
        fates: Fates,
        *,
        stored: Callable[[Appender], None],
        answered: Callable[[Sequence[AppendOutcome]], None],
    ) -> Iterator[None]:
        """Put the simulated parts in the places of the real ones.

        `stored` is called after each commit, `answered` with what appends are answered.
        """

        def answer(group: Sequence[writer.AppendRequest], outcomes: Sequence[AppendOutcome]) -> None:
            answered(outcomes)
            really(group, outcomes)

        def settle(event_log: log.EventLog) -> None:
            if not fates.ghost:  # else nobody will look at its files
                settled(event_log)

        really, settled = writer._answer_callers, log.EventLog._settle_log
        stand_ins: Mapping[str, object] = {
            "state.log.LogWriter": lambda appender, layout, **_: SteppedWriter(
                appender, layout, fates, stored
            ),
            "state.writer._answer_callers": answer,
            "state.log.EventLog._settle_log": settle,
            "state.crash._trigger": fates,
            "daemon.inbox._watch_folder": lambda folder, noticed: nullcontext(),
            "state.disk_reserve.free_bytes": self._free_bytes,
            "daemon.disk_full.free_bytes": self._free_bytes,
            "state.disk_reserve.DiskReserve._allocate_file": lambda reserve: reserve._path.touch(),
            "state.home._refuse_network": lambda home: None,
            "asyncio.to_thread": _call_at_once,
        }
        with ExitStack() as stack:
            stack.enter_context(self._clock.patch_time())
            stack.enter_context(listening(self.bugs))
            stack.enter_context(cache_pure_functions())
            stack.enter_context(looking_ahead())
            _put(stack, stand_ins)
            yield


async def _call_at_once(function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
    """Do what a thread would: the virtual clock would not wait for one."""
    return function(*args, **named)


def _put(stack: ExitStack, stand_ins: Mapping[str, object]) -> None:
    for place, stand_in in stand_ins.items():
        stack.enter_context(mock.patch(place, stand_in))


@contextmanager
def cache_pure_functions() -> Iterator[None]:
    """Work out once for all worlds of a process what follows from its arguments alone."""
    with ExitStack() as stack:
        _put(stack, _MEMOISED)
        yield


def looking_ahead() -> AbstractContextManager[object]:
    """Have the scripted proposer look ahead in those runs whose settings allow predictions."""
    return mock.patch("agent_core.round_view.can_look_ahead", return_value=True)


@contextmanager
def listening(bugs: list[str]) -> Iterator[None]:
    """Hear of bugs that the daemon logs, instead of having anything printed."""

    def hear(_: object, __: str, line: dict[str, Any]) -> dict[str, Any]:
        if line["event"] in BUGS:
            bugs.append(f"{line} {sys.exc_info()[1]!r}")
        raise structlog.DropEvent

    kept, level = structlog.get_config(), logging.root.manager.disable
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, hear], cache_logger_on_first_use=False
    )
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)
        structlog.configure(**kept)


_from_files, _bounds = seeds.build_problem, remote.compute_bounds
_known: dict[str, seeds.Problem] = {}


def _digest_of(files: Mapping[str, bytes]) -> str:
    return digest_of(b"\x1f".join(name.encode() + files[name] for name in sorted(files)))


def _problem_of(files: Mapping[str, bytes]) -> seeds.Problem:
    digest = _digest_of(files)
    if digest not in _known:
        _known[digest] = _from_files(files)
    return _known[digest]


@lru_cache(maxsize=64)
def _bounds_of(digest: str, size: str, target: str) -> LatencyBounds:
    return _bounds(_known[digest], size, target)


_code_of = lru_cache(maxsize=4096)(code_digest)
_MEMOISED: Mapping[str, object] = {
    "seeds.build_problem": _problem_of,
    "remote.bounds": lambda problem, size, target: _bounds_of(_digest_of(problem.files), size, target),
    "daemon.runner.code_digest": _code_of,
    "tests.support.fakes.code_digest": _code_of,
}
