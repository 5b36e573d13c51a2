"""One pass over a run's events for several collectors, because decoding an event costs more than all
their work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Protocol

from state.reader import LogReader
from state.records import ProgressCallback, RecordedEvent


class EventWalk(Protocol):
    """Collects from a run's events, in order, its ancestors' first; it gets only events of `types`."""

    @property
    def types(self) -> tuple[str, ...]: ...

    def add_event(self, item: RecordedEvent) -> None: ...


def walk_events(
    reader: LogReader,
    run: str,
    *walks: EventWalk,
    upto: int | None = None,
    progress: ProgressCallback | None = None,
) -> Iterator[RecordedEvent]:
    """Pass each event of a run, up to a global seq, to the walks that want its type; then yield it.

    Raises:
        StreamUnknown: there is no such run.
    """
    wanting: dict[str, list[Callable[[RecordedEvent], None]]] = defaultdict(list)
    for one in walks:
        for kind in one.types:
            wanting[kind].append(one.add_event)
    for item in reader.iterate_events(run, tuple(wanting), upto=upto, progress=progress):
        for take in wanting[item.type]:
            take(item)
        yield item
