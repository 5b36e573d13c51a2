"""The inbox: how other processes steer the one that owns the log.

A command is a file `<home>/inbox/<id>.json`, put there whole by atomic rename; ids sort by time, and the
owner takes files in id order. A file is removed only after its answer is in the log, so a crash at any
point means that it is looked at again, and the answer already stored makes that harmless. What is no
command at all is moved to `inbox/rejected/` with the reason beside it. Watchers lose events: the folder
is also scanned periodically.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog

from daemon.errors import BadFile
from daemon.verbs import Command, Submit
from state.home import prepare
from state.model import canonical_json
from state.turns import Turns

RESCAN_SECONDS = 2.0

log: structlog.stdlib.BoundLogger = structlog.get_logger("inbox")

Handle = Callable[[str, bytes], Awaitable[None]]
"""Carries out the command with this id; raises BadFile when the bytes are none."""


def folder(home: Path) -> Path:
    return home / "inbox"


def new_id() -> str:
    """Return a command id: sorts by time, and two made in the same nanosecond still differ."""
    return f"{time.time_ns():020d}-{secrets.token_hex(4)}"


def drop(home: Path, command: Command, *, id_: str | None = None) -> str:
    """Put `command` into the inbox of `home`, durably and whole; return its id.

    Only a submit makes a home that is not there: what steers a run must find one.

    Raises:
        state.errors.HomeError: the home cannot be used, or made.
    """
    id_ = id_ or new_id()
    box = folder(prepare(home, create=isinstance(command, Submit)).home)
    box.mkdir(mode=0o700, exist_ok=True)
    _write_whole(box / f"{id_}.json", command.model_dump_json().encode())
    return id_


def waiting(home: Path) -> list[Path]:
    """Return the files that wait, in the order in which they will be taken."""
    files = (path for path in folder(home).glob("*.json") if not path.name.startswith("."))
    return sorted(files, key=lambda path: path.stem)


def _write_whole(path: Path, data: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        os.fchmod(file.fileno(), 0o644)  # whatever root's umask is, the service reads it; the folder is shut
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _content(path: Path) -> bytes:
    try:
        if not path.is_file():  # a FIFO would hold up everything until somebody writes into it
            path.lstat()
            raise BadFile("not a regular file")
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BadFile(f"cannot be read: {error.strerror}") from error


class Inbox:
    """The owner's side: hands each waiting file to `handle`, in id order, one at a time."""

    def __init__(self, home: Path, handle: Handle, *, rescan_seconds: float = RESCAN_SECONDS) -> None:
        self._home = home
        self._handle = handle
        self._rescan_seconds = rescan_seconds
        self._noticed = asyncio.Event()
        self.turns = Turns()

    async def watch(self) -> None:
        """Take files as they come, until cancelled."""
        folder(self._home).mkdir(mode=0o700, parents=True, exist_ok=True)
        with _observed(folder(self._home), self._noticed):
            while True:
                self._noticed.clear()
                with self.turns:
                    await self.take_all()
                await self._rest()

    async def take_all(self) -> None:
        """Take every file that waits now."""
        for path in waiting(self._home):
            await self._take(path)
            self.turns.step()

    async def _rest(self) -> None:
        try:
            # Python 3.11's wait_for loses a cancellation that meets the event; a timeout does not.
            async with asyncio.timeout(self._rescan_seconds):
                await self._noticed.wait()
        except TimeoutError:
            return  # the periodic look: a watcher may have lost an event

    async def _take(self, path: Path) -> None:
        try:
            await self._handle(path.stem, _content(path))
        except FileNotFoundError:
            return  # whoever put it there took it back
        except BadFile as error:
            self._move_aside(path, error)
        else:
            path.unlink(missing_ok=True)  # noqa: ASYNC240 - microseconds, on a local disk

    def _move_aside(self, path: Path, error: BadFile) -> None:
        aside = folder(self._home) / "rejected"
        aside.mkdir(mode=0o700, exist_ok=True)
        _write_whole(aside / f"{path.stem}.error.json", canonical_json(error.info.model_dump()))
        path.rename(aside / path.name)
        log.warning("command_file_rejected", file=path.name, reason=str(error), moved_to=str(aside))


@contextmanager
def _observed(path: Path, noticed: asyncio.Event) -> Iterator[None]:
    """Set `noticed` when a file appears in `path`, from the watcher's own thread.

    Nothing else counts: our own look at the folder is an event too, and would never let us rest.
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
    except OSError as error:  # the system's watches are used up: looking now and then is enough
        log.warning("inbox_not_watched", folder=str(path), reason=str(error))
        yield
        return
    try:
        yield
    finally:
        observer.stop()
        observer.join()
