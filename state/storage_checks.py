"""The checks of `verify` that look at single parts of the storage: pages, blobs and read models.

Each is a generator of findings; none keeps a query open while its caller handles a finding.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import zip_longest

from state import schema
from state.blobs import parse_blob, read_blob_columns, unpack_blob
from state.errors import BlobPruned, LogDamaged
from state.projections import TABLES, create_tables, is_current
from state.records import EventRow


@dataclass(frozen=True, slots=True)
class LogFinding:
    """Something that is not as it was written.

    `part` is page, chain, event, kind, state_hash, read_model, snapshot, blob or tail; the place is None if
    it is not in one row of the log.
    """

    part: str
    what: str
    seq: int | None = None
    stream: str | None = None
    run_seq: int | None = None

    def __str__(self) -> str:
        where = f" ({self.stream}@{self.run_seq})" if self.stream else ""
        place = "" if self.seq is None else f" at event {self.seq}{where}"
        return f"{self.part}{place}: {self.what}"


def finding_at_row(part: str, what: str, row: EventRow) -> LogFinding:
    return LogFinding(part, what, row.seq, row.stream, row.run_seq)


def finding_from_error(part: str, error: LogDamaged) -> LogFinding:
    return LogFinding(part, error.what, error.seq, error.stream, error.run_seq)


def check_pages(connection: sqlite3.Connection) -> Iterator[LogFinding]:
    """Let SQLite check its pages, tables and indexes, and compare the schema with what this program makes.

    The index of idempotency keys prevents second outcomes, so it must agree with its table; `quick_check`
    would not notice if it did not.
    """
    for (line,) in connection.execute("PRAGMA integrity_check(1)").fetchall():
        if line != "ok":
            yield LogFinding("page", line)
    yield from compare_schema(connection)


def compare_schema(connection: sqlite3.Connection) -> Iterator[LogFinding]:
    """Compare every table, index, trigger and view; a trigger or a view of others may hide or change rows.

    Read models of another version may be other tables, which the owner will make anew.
    """
    there = schema.stored_objects(connection)
    wanted = schema.expected_objects(schema.read_pragma(connection, "user_version"))
    current = is_current(connection)
    if current:
        with closing(sqlite3.connect("", isolation_level=None)) as made:
            create_tables(made)
            wanted |= schema.stored_objects(made)
    for name in sorted(there.keys() | wanted.keys()):
        found, made_so = there.get(name), wanted.get(name)
        if found is None:
            assert made_so is not None
            harm = ": rows were not guarded" if made_so.kind == "trigger" else ""
            yield LogFinding("page", f"the {made_so.kind} {name} is missing{harm}")
        elif made_so is None:
            if current or found.kind in ("trigger", "view"):
                yield LogFinding("page", f"the {found.kind} {name} is not of this program")
        elif found != made_so:
            yield LogFinding("page", f"the {found.kind} {name} is not as this program makes it")


def check_blobs(connection: sqlite3.Connection) -> Iterator[LogFinding]:
    """Check every blob's bytes against its digest."""
    for columns in read_blob_columns(connection):
        try:
            unpack_blob(parse_blob(columns))
        except BlobPruned:
            continue
        except LogDamaged as error:
            yield LogFinding("blob", error.what)


def compare_read_models(connection: sqlite3.Connection, rebuilt: sqlite3.Connection) -> Iterator[LogFinding]:
    """Compare the stored read models with rebuilt ones; yield the first difference of each table.

    Read models of another version are not compared: they are rebuilt when the owner next opens the log.
    """
    if not is_current(connection):
        return
    for table in TABLES:
        # Both have today's columns; in a fixed order, equal contents are equal sequences.
        query = f"SELECT * FROM {table} ORDER BY 1, 2"  # noqa: S608 - our own table names
        ours, theirs = connection.execute(query), rebuilt.execute(query)
        for stored, wanted in zip_longest(ours, theirs):
            if stored != wanted:
                yield LogFinding("read_model", f"{table}: {_describe_difference(stored, wanted)}")
                break


def _describe_difference(stored: tuple[object, ...] | None, wanted: tuple[object, ...] | None) -> str:
    if stored is None or wanted is None:
        row = stored or wanted or ()
        return f"row {row[:2]} is {'missing' if stored is None else 'not from the log'}"
    changed = [(a, b) for a, b in zip(stored, wanted, strict=True) if a != b]
    return f"row {stored[:2]} holds {changed[0][0]!r} where the log says {changed[0][1]!r}"
