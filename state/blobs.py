"""Content-addressed blobs: kernel sources, prompts, profiles and requests, stored once and compressed.

A blob is stored in the transaction of the event that names it, so neither exists without the other.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from state.errors import BlobMissing, BlobPruned, LogDamaged
from state.events import (
    EVENT_TYPES,
    AgentEnded,
    CallCompleted,
    CallStarted,
    CommandReceived,
    ConfigChanged,
    EffectProgressed,
    EffectStarted,
    EvaluationCompleted,
    Event,
    KernelProposed,
    KernelTried,
    PredictionBatch,
    ProfileRecorded,
    RoundStarted,
    RunCreated,
    SessionEnded,
    ToolCallCompleted,
    ToolCallStarted,
)
from state.model import digest_of
from state.records import RowParser, require_rising

RAW_BELOW_BYTES = 256
"""Smaller blobs gain nothing from compression."""

_PAGE = 200
_PAGE_BYTES = 16 << 20

_LEVEL = 1  # the writer compresses between commits, so speed matters most


class StoredBlob(NamedTuple):
    """One row of the table `blob`."""

    digest: bytes
    size: int
    encoding: str
    data: bytes


parse_blob = RowParser(StoredBlob)


MAX_BLOB_BYTES = 256 << 20
"""No blob is larger: a row that says so was not written by this program."""


def pack_blob(data: bytes) -> StoredBlob:
    """Return the row that stores `data`, compressed if that makes it smaller."""
    digest = bytes.fromhex(digest_of(data))
    if len(data) >= RAW_BELOW_BYTES:
        packed = zlib.compress(data, _LEVEL)
        if len(packed) < len(data):
            return StoredBlob(digest, len(data), "zlib", packed)
    return StoredBlob(digest, len(data), "raw", data)


def unpack_blob(blob: StoredBlob) -> bytes:
    """Return the bytes that were stored.

    Raises:
        LogDamaged: they do not match their digest.
        BlobPruned: they are no longer kept.
    """
    if blob.encoding in TOMBSTONE_REASONS:
        raise BlobPruned(f"blob {blob.digest.hex()} ({blob.size} bytes) {TOMBSTONE_REASONS[blob.encoding]}")
    try:
        data = _decompress(blob) if blob.encoding == "zlib" else blob.data
    except zlib.error as error:
        raise LogDamaged(f"blob {blob.digest.hex()} cannot be read: {error}") from error
    if len(data) != blob.size or digest_of(data) != blob.digest.hex():
        raise LogDamaged(f"blob {blob.digest.hex()} does not match its digest: it was edited")
    return data


def _decompress(blob: StoredBlob) -> bytes:
    """Return what was compressed, or one byte more than the row says there is."""
    return zlib.decompressobj().decompress(blob.data, min(blob.size, MAX_BLOB_BYTES) + 1)


def read_blob_columns(connection: sqlite3.Connection) -> Iterator[list[Any]]:
    """Yield the columns of every blob, unchecked; a page of them has some MiB, and no query stays open.

    Raises:
        LogDamaged: they are out of order.
    """
    after = 0
    query = "SELECT rowid, * FROM blob WHERE rowid > ? ORDER BY rowid LIMIT ?"
    while page := _take_page(connection.execute(query, (after, _PAGE))):
        for rowid, *columns in page:
            after = require_rising(after, rowid)
            yield columns


def _take_page(found: sqlite3.Cursor) -> list[Any]:
    page: list[Any] = []
    size = 0
    for row in found:
        page.append(row)
        size += len(row[-1]) if isinstance(row[-1], bytes) else 0
        if size > _PAGE_BYTES:
            break
    found.close()
    return page


TOMBSTONE_REASONS = {
    "pruned": "was pruned: no event of this log names it any more; import the archive of a run that did",
    "lost": "was lost: its bytes were damaged and no other copy was there when the log was repaired",
}
"""Why a blob's bytes are missing, by the encoding of the tombstone kept in its place."""

_STORE = """INSERT INTO blob VALUES (?, ?, ?, ?) ON CONFLICT(digest) DO UPDATE SET
    size = excluded.size, encoding = excluded.encoding, data = excluded.data
    WHERE encoding IN ('pruned', 'lost')"""


def make_tombstone(blob: StoredBlob, encoding: str) -> StoredBlob:
    """Return a tombstone that records that `blob` was here; `encoding` is a key of TOMBSTONE_REASONS."""
    return blob._replace(encoding=encoding, data=b"")


def store_blobs(connection: sqlite3.Connection, blobs: Iterable[StoredBlob]) -> None:
    """Insert blobs. Those already stored stay as they are; tombstones are replaced."""
    connection.executemany(_STORE, blobs)


def fetch_blob(connection: sqlite3.Connection, digest: str) -> bytes:
    """Return a blob's bytes.

    Raises:
        BlobMissing: no blob has this digest.
        BlobPruned: its bytes are no longer kept.
        LogDamaged: its bytes were edited.
    """
    return unpack_blob(find_blob(connection, digest))


def find_blob(connection: sqlite3.Connection, digest: str) -> StoredBlob:
    """Return a blob as it is stored, which may be a tombstone.

    Raises:
        BlobMissing: no blob has this digest.
    """
    try:
        key = bytes.fromhex(digest)
    except ValueError:
        raise BlobMissing(f"{digest!r} is not a digest") from None
    row = connection.execute("SELECT * FROM blob WHERE digest = ?", (key,)).fetchone()
    if row is None:
        raise BlobMissing(f"no blob {digest}")
    return parse_blob(row)


def has_blob(connection: sqlite3.Connection, digest: str) -> bool:
    """Return whether a blob is stored, or recorded as lost; a pruned one does not count."""
    key = bytes.fromhex(digest)
    query = "SELECT 1 FROM blob WHERE digest = ? AND encoding <> 'pruned'"
    return connection.execute(query, (key,)).fetchone() is not None


_BLOB_FIELDS: dict[type[Event], tuple[str, ...]] = {
    RunCreated: ("kernel", "problem.files", "prompts"),
    RoundStarted: ("prompts",),
    ConfigChanged: ("prompts",),
    CommandReceived: ("payload",),
    KernelProposed: ("source",),
    EvaluationCompleted: ("evaluation.profile",),
    ProfileRecorded: ("profile",),
    PredictionBatch: ("variants",),
    EffectProgressed: ("answers",),
    CallStarted: ("request", "prompts"),
    CallCompleted: ("answer",),
    ToolCallStarted: ("arguments",),
    ToolCallCompleted: ("result", "sources"),
    KernelTried: ("source", "evaluation.profile"),
    SessionEnded: ("submitted",),
    AgentEnded: ("transcript",),
    **{cls: ("request",) for cls in EVENT_TYPES.values() if issubclass(cls, EffectStarted)},
}
"""The fields that name blobs, by type of event. Each has a digest, several, or None."""

_NOTHING = digest_of(b"")
"""What an event names that has no bytes to store, such as the transcript of an agent that was lost."""


def referenced_digests(event: Event) -> tuple[str, ...]:
    """Return the digests of the blobs that an event names, without digests of things stored elsewhere."""
    named = (attrgetter(path)(event) for path in _BLOB_FIELDS.get(type(event), ()))
    return tuple(digest for value in named for digest in _list_digests(value) if digest != _NOTHING)


def _list_digests(value: str | Mapping[str, str] | Iterable[str] | None) -> Iterable[str]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    return value.values() if isinstance(value, Mapping) else value
