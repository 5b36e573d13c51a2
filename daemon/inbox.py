"""The inbox: how other processes send commands to the one that owns the log.

A command is a file `<home>/inbox/<id>.json`, written atomically by rename. Ids sort by time, and the
owner takes files in id order. A file is removed only after its answer is in the log. So after a crash at
any point the file is read again, and the stored answer makes that harmless.

A file that is not a command, or whose name is not an id, is moved to `inbox/rejected/` under a new name,
with a file beside it that gives the reason and the old name. If even that fails, it is left alone.
Hidden files are still being written and are left alone too, until they are too old for that. Because
file watchers lose events, the folder is also scanned periodically.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import stat
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from daemon.command_models import Command, Learn, Submit
from daemon.errors import BadFile, EvaluatorPreparing
from daemon.home_paths import INBOX, inbox_folder, waiting_commands
from daemon.safe_read import read_regular_file
from daemon.structured_log import structlog
from state.errors import HomeLocked, HomeUnreadable, StorageBusy
from state.home import prepare_home
from state.home_files import open_home_folder
from state.log import EventLog
from state.model import canonical_json
from state.progress_counter import ProgressCounter

RESCAN_SECONDS = 2.0

REJECTED = "rejected"

MAX_BYTES = 64 << 20
"""The largest command: more than the files of the largest problem."""

MAX_REJECTED = 200
MAX_REJECTED_BYTES = 64 << 20
"""How many rejected files, with those that give the reasons, and how many bytes of them are kept."""

ABANDONED_SECONDS = 3600.0
"""The age (seconds) at which a hidden file counts as abandoned."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", re.ASCII)

log: structlog.stdlib.BoundLogger = structlog.get_logger("inbox")

CommandCallback = Callable[[str, bytes], Awaitable[None]]
"""Carries out the command with this id. Raises BadFile if it is no command, EvaluatorPreparing if it
must wait.
"""


def new_command_id() -> str:
    """Return a new command id. Ids sort by time, and two made in the same nanosecond still differ."""
    return f"{time.time_ns():020d}-{secrets.token_hex(4)}"


def put_command(home: Path, command: Command, *, id_: str | None = None) -> str:
    """Write `command` into the inbox of `home`, durably and atomically; return its id.

    Only `Submit` and `Learn` create a missing home; other commands need an existing one.

    Raises:
        state.errors.HomeError: the home cannot be used or created.
    """
    id_ = id_ or new_command_id()
    makes = isinstance(command, Submit | Learn)
    layout = prepare_home(home, create=makes)
    if makes and not layout.database.exists():
        with suppress(HomeLocked, StorageBusy):  # another process makes it
            EventLog.open(home).close()
    with open_home_folder(home, INBOX, create=True) as box:
        _write_atomically(box, f"{id_}.json", command.model_dump_json().encode())
    return id_


def _abandoned_files(home: Path) -> Iterator[Path]:
    """Yield the hidden files whose writer is gone."""
    for path in inbox_folder(home).glob(".*"):
        with suppress(FileNotFoundError):  # it was finished or withdrawn just now
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and time.time() - found.st_mtime > ABANDONED_SECONDS:
                yield path


def _write_atomically(folder: int, name: str, data: bytes) -> None:
    """Write a new file to the folder with this descriptor: under a hidden name first, then renamed."""
    part = f".{name}.part"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(part, flags, 0o600, dir_fd=folder), "wb") as file:  # noqa: PTH123 - a descriptor
            os.fchmod(
                file.fileno(), 0o644
            )  # its owner can read it whatever our umask is; the folder is private
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(FileNotFoundError):
            os.unlink(part, dir_fd=folder)
        raise
    handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(handle)  # `folder` only names its place, and cannot be synced
    finally:
        os.close(handle)


def _read_command_file(path: Path) -> bytes:
    if _ID.fullmatch(path.stem) is None:
        raise BadFile("its name is no id: letters, digits, '_' and '-', at most 100, and then '.json'")
    try:
        return read_regular_file(path, most=MAX_BYTES)
    except FileNotFoundError:
        if not path.is_symlink():
            raise
        raise BadFile("a link that leads nowhere") from None
    except OSError as error:
        raise BadFile(f"cannot be read: {error.strerror}") from error


class Inbox:
    """The owner's side: passes each waiting file to `handle`, in id order, one at a time."""

    def __init__(
        self, home: Path, handle: CommandCallback, *, rescan_seconds: float = RESCAN_SECONDS
    ) -> None:
        self._home = home
        self._handle = handle
        self._rescan_seconds = rescan_seconds
        self._noticed = asyncio.Event()
        self._stuck: set[str] = set()
        self._later: dict[str, asyncio.Future[None]] = {}
        self.turns = ProgressCounter()

    async def watch(self) -> None:
        """Take files as they come, until cancelled."""
        with open_home_folder(self._home, INBOX, create=True):
            pass
        with _watch_folder(inbox_folder(self._home), self._noticed):
            while True:
                self._noticed.clear()
                with self.turns:
                    await self.take_all()
                await self._wait_for_files()

    async def take_all(self) -> None:
        """Take every file that waits now."""
        for path in waiting_commands(self._home):
            if path.name not in self._stuck and not self._is_deferred(path):
                await self._take_file(path)
            self.turns.step()
        for path in _abandoned_files(self._home):
            if path.name not in self._stuck:
                self._remove_file(path, BadFile("hidden, as what is being written, and never finished"))

    async def _wait_for_files(self) -> None:
        try:
            # Python 3.11's wait_for loses a cancellation that coincides with the event; a timeout does not.
            async with asyncio.timeout(self._rescan_seconds):
                await self._noticed.wait()
        except TimeoutError:
            return  # rescan: the watcher may have lost an event

    def _is_deferred(self, path: Path) -> bool:
        """Return whether a command waits for a slow preparation; later commands need not wait for it."""
        done = self._later.get(path.name)
        if done is not None and done.done():
            del self._later[path.name]
        return path.name in self._later

    async def _take_file(self, path: Path) -> None:
        bad = None
        try:
            await self._handle(path.stem, _read_command_file(path))
        except EvaluatorPreparing as waits:
            self._later[path.name] = waits.done
            waits.done.add_done_callback(lambda _: self._noticed.set())
            return
        except FileNotFoundError:
            return  # its writer withdrew it
        except BadFile as error:
            bad = error
        self._remove_file(path, bad)

    def _remove_file(self, path: Path, bad: BadFile | None) -> None:
        """Remove or reject a handled file; one that cannot be moved is not read again."""
        try:
            if bad is None:
                path.unlink(missing_ok=True)
            else:
                self._reject_file(path, bad)
        except (OSError, HomeUnreadable) as error:
            self._stuck.add(path.name)
            log.warning("command_file_stuck", file=_printable_name(path), reason=str(bad), error=str(error))

    def _reject_file(self, path: Path, bad: BadFile) -> None:
        aside = inbox_folder(self._home) / REJECTED
        fresh = new_command_id()
        said = {"file": _printable_name(path), **bad.info.model_dump()}
        with (
            open_home_folder(self._home, INBOX) as box,
            open_home_folder(self._home, f"{INBOX}/{REJECTED}", create=True) as folder,
        ):
            os.rename(path.name, f"{fresh}.json", src_dir_fd=box, dst_dir_fd=folder)
            _write_atomically(folder, f"{fresh}.error.json", canonical_json(said))
            _drop_oldest(folder)
        log.warning(
            "command_file_rejected",
            file=_printable_name(path),
            reason=str(bad),
            moved_to=str(aside / f"{fresh}.json"),
        )


def _drop_oldest(folder: int) -> None:
    """Keep the newest rejected files only; their names sort by time."""
    handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        names = os.listdir(handle)  # noqa: PTH208 - pathlib takes no descriptor
    finally:
        os.close(handle)
    size = 0
    for kept, name in enumerate(sorted(names, reverse=True), start=1):
        size += os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
        if kept > MAX_REJECTED or (kept > 2 and size > MAX_REJECTED_BYTES):  # the newest one stays
            with suppress(FileNotFoundError, IsADirectoryError, PermissionError):
                os.unlink(name, dir_fd=folder)


def _printable_name(path: Path) -> str:
    """Return a file's name as printable text for logs; not every name is UTF-8 or printable."""
    return path.name if path.name.isprintable() else ascii(path.name)


@contextmanager
def _watch_folder(path: Path, noticed: asyncio.Event) -> Iterator[None]:
    """Set `noticed` when a file appears in `path`; the watcher's own thread reports it.

    Other events are ignored: our own scan of the folder causes events too, and would wake us forever.
    """
    from watchdog.events import FileSystemEvent, FileSystemEventHandler
    from watchdog.observers import Observer

    loop = asyncio.get_running_loop()

    class Notice(FileSystemEventHandler):
        def on_moved(self, event: FileSystemEvent) -> None:  # noqa: ARG002 - the library's signature
            loop.call_soon_threadsafe(noticed.set)

        on_created = on_moved

    observer: Any = Observer()
    try:
        observer.schedule(Notice(), str(path), recursive=False)
        observer.start()
    except OSError as error:  # the system has no watches left; the periodic scan is enough
        log.warning("inbox_not_watched", folder=str(path), reason=str(error))
        yield
        return
    try:
        yield
    finally:
        observer.stop()
        observer.join()
