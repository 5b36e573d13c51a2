"""Tells clients which resources of runs have changed: the log is looked at while anybody has subscribed.

Clients of the revision 2026-07-28 open a stream of changes (`subscriptions/listen`). Older ones subscribe to
one resource after the other; the server remembers for whom until they unsubscribe.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mcp.server import ServerRequestContext
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
)

from state.errors import StateError
from state.reader import LogReader

LOOK_SECONDS = 1.0
"""How often the log is looked at."""
MOST_SUBSCRIPTIONS = 1024
"""How many subscriptions to one resource are kept; the oldest is dropped for one more."""
SESSION_HEADER = "mcp-session-id"

RunMark = tuple[str, int, str | None]
"""A run's status, its last event while it has not ended, and its best kernel."""


class RunWatch:
    """The server's changes, published while there are listeners; it is the bus of the SDK's handler."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._bus = InMemorySubscriptionBus()
        self._watching: asyncio.Task[None] | None = None
        self._listeners = 0
        self._single: OrderedDict[tuple[str, str], Callable[[], None]] = OrderedDict()
        self._sending: set[asyncio.Task[None]] = set()
        self.listen = ListenHandler(self)

    @property
    def is_watching(self) -> bool:
        """Whether the log is looked at now."""
        return self._watching is not None

    async def publish(self, event: ServerEvent) -> None:
        """Deliver an event to all listeners."""
        await self._bus.publish(event)

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Register a listener, and watch the log from its first one on; return what takes it out again."""
        undo: Callable[[], None] | None = self._bus.subscribe(listener)
        self._listeners += 1
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch(self._read_marks()))

        def unsubscribe() -> None:
            nonlocal undo
            if undo is None:
                return
            undo()
            undo = None
            self._listeners -= 1
            if not self._listeners and self._watching is not None:
                self._watching.cancel()
                self._watching = None

        return unsubscribe

    # --- one resource, for clients of older revisions ----------------------------------------------

    def add_resource(self, context: ServerRequestContext[Any, Any], uri: str) -> None:
        """Notify a client whenever a resource has changed, until it unsubscribes."""
        session = context.session

        def notify(event: ServerEvent) -> None:
            if event == ResourceUpdated(uri):
                sending = asyncio.get_running_loop().create_task(session.send_resource_updated(uri))
                self._sending.add(sending)
                sending.add_done_callback(self._sending.discard)

        self.remove_resource(context, uri)
        self._single[_client_of(context), uri] = self.subscribe(notify)
        while len(self._single) > MOST_SUBSCRIPTIONS:
            self._single.popitem(last=False)[1]()

    def remove_resource(self, context: ServerRequestContext[Any, Any], uri: str) -> None:
        """Notify a client of a resource no more."""
        unsubscribe = self._single.pop((_client_of(context), uri), None)
        if unsubscribe is not None:
            unsubscribe()

    # --- the log -----------------------------------------------------------------------------------

    async def _watch(self, before: Mapping[str, RunMark]) -> None:
        """Publish what has changed since `before`, which was read when the first client subscribed."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = await asyncio.to_thread(self._read_marks)
            for event in _changes(before, now):
                await self.publish(event)
            before = now

    def _read_marks(self) -> Mapping[str, RunMark]:
        try:
            with LogReader.open(self._home) as reader:
                return {str(row["run"]): _mark_of(reader, row) for row in reader.run_rows()}
        except StateError:  # there is no log yet, or its owner is about to make it
            return {}

    async def aclose(self) -> None:
        """End all streams, and what watches the log."""
        self.listen.close()
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching


def _client_of(context: ServerRequestContext[Any, Any]) -> str:
    """Return which client asks: on HTTP its session, on stdio there is one."""
    headers = getattr(context.request, "headers", None)
    return headers.get(SESSION_HEADER, "") if headers is not None else ""


def _mark_of(reader: LogReader, row: Mapping[str, Any]) -> RunMark:
    return row["status"], 0 if row["ended"] else reader.run_seq(row["run"]), row["best"]


def _changes(before: Mapping[str, RunMark], now: Mapping[str, RunMark]) -> Iterator[ServerEvent]:
    if now.keys() - before.keys():
        yield ResourcesListChanged()
    for run, mark in now.items():
        if before.get(run) == mark:
            continue
        yield ResourceUpdated(f"report://{run}")
        if before.get(run, ("", 0, None))[-1] != mark[-1]:
            yield ResourceUpdated(f"kernel://{run}/best")
            yield ResourceUpdated(f"profile://{run}/best")
