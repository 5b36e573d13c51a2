"""What came of the earlier deliveries of an effect: the parts that are done, and deliveries in vain.

A delivery is in vain if the effect was delivered again and nothing of it had been recorded meanwhile: no
part, no answer of a model. Where even its work had not begun, as on a slow machine whose processes had not
started yet, that speaks for the effect: what ended that process was not its work. A run that was resumed
starts to count anew.
"""

from __future__ import annotations

import sqlite3
from itertools import pairwise, takewhile
from typing import NamedTuple

from state import queries
from state.events import EffectProgressed, RunResumed, progress_prefix
from state.model import SYSTEM_STREAM
from state.upcast import decode_event


def read_parts(connection: sqlite3.Connection, run: str, key: str) -> list[EffectProgressed]:
    """Return the `EffectProgressed` events of an effect, in the order of their parts."""
    rows = queries.rows_by_prefix(connection, SYSTEM_STREAM, progress_prefix(run, key))
    return [event for row in rows if isinstance(event := decode_event(row), EffectProgressed)]


class VainDeliveries(NamedTuple):
    """Deliveries in a row, before the current one, that brought nothing; `begun`: those that began work.

    `blamed`: the last ones of these that all began work, without one in between that did not.
    """

    all: int = 0
    begun: int = 0
    blamed: int = 0


def count_vain_deliveries(connection: sqlite3.Connection, run: str, key: str) -> VainDeliveries:
    """Count the deliveries of an effect since anything of it was last recorded, without the current one."""
    parts = queries.rows_by_prefix(connection, SYSTEM_STREAM, progress_prefix(run, key))
    noted = [(row.seq, decode_event(row)) for row in parts]
    begun = [seq for seq, event in noted if isinstance(event, EffectProgressed) and not event.count]
    calls = queries.rows_by_prefix(connection, run, f"{key}#call")
    answered = [row.seq for row in calls if str(row.idem).endswith("#outcome")]
    begun += [row.seq for row in calls if not str(row.idem).endswith("#outcome")]
    resumed = connection.execute(
        "SELECT coalesce(max(seq), 0) FROM event WHERE stream = ? AND type = ?", (run, RunResumed.__name__)
    ).fetchone()[0]
    last = max([resumed, *answered, *(seq for seq, _ in noted if seq not in begun)])
    starts = [row.seq for row in queries.rows_by_prefix(connection, run, f"{key}#start")]
    vain = [life for life in pairwise(starts) if life[0] > last]
    had_begun = [life[0] == starts[0] or any(life[0] < seq < life[1] for seq in begun) for life in vain]
    blamed = len(list(takewhile(bool, reversed(had_begun))))
    return VainDeliveries(len(vain), sum(had_begun), blamed)
