"""One pass over a run's events for several readers of them: decoding an event costs more than all they do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Protocol

from state.reader import LogReader
from state.records import Progress, Recorded


class Walk(Protocol):
    """Takes a run's events in, in order, its ancestors' first: those of `types` and no others."""

    @property
    def types(self) -> tuple[str, ...]: ...

    def take(self, item: Recorded) -> None: ...


def walk(
    reader: LogReader, run: str, *walks: Walk, upto: int | None = None, progress: Progress | None = None
) -> Iterator[Recorded]:
    """Show each event of a run, up to a global seq, to the walks that want its type; yield it then.

    Raises:
        StreamUnknown: there is no such run.
    """
    wanting: dict[str, list[Callable[[Recorded], None]]] = defaultdict(list)
    for one in walks:
        for kind in one.types:
            wanting[kind].append(one.take)
    for item in reader.history(run, tuple(wanting), upto=upto, progress=progress):
        for take in wanting[item.type]:
            take(item)
        yield item
