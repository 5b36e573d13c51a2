"""Archives: one run as a self-checking file of its own, JSON Lines in gzip.

The first line lists the content. Then come the run's events exactly as in the log, hashes included, after
those of the runs that it continues; then every blob that they need. The last line counts the lines and holds
the SHA-256 of everything before it. Any program can read an archive; its hash chain is checked as in the log.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from state import blobs, queries, snapshots
from state.blobs import StoredBlob
from state.chain import GENESIS, ChainLink, check_link
from state.copying import find_digests, reachable_blobs
from state.crash import crash_point
from state.errors import BadArchive, LogDamaged, StreamUnknown, sqlite_errors
from state.home import HomeLayout
from state.json_bounds import has_too_much_structure, parse_utf8_json
from state.model import SYSTEM_STREAM, FrozenModel
from state.output_files import open_output
from state.queries import Segment
from state.readonly import ReadOnlyConnection
from state.records import EventRow, ProgressCallback, parse_row

_BYTES_COLUMNS = ("prev", "log_prev", "state_hash", "hash")
_PAYLOAD_MARK = ',"payload":'


MAX_LINE_BYTES = 96 << 20
"""The longest line: a blob as large as the largest command, in base64."""

MAX_STRUCTURE_BYTES = 4096
"""The most that a blob's line, or an event's columns, have beside their texts."""

MAX_PAYLOAD_BYTES = 64 << 20
MAX_PAYLOAD_STRUCTURE_BYTES = 16 << 20
"""The most that an event has beside its texts: the largest have about a MiB."""

MAX_MANIFEST_BYTES = 1 << 20


class ArchivePart(FrozenModel):
    """The events of one stream that an archive holds: run_seq from `after` + 1 to `upto`."""

    stream: str
    after: int
    upto: int


class ArchiveManifest(FrozenModel):
    """The first line: the run, the streams that hold its history (its own last), and whether it had ended."""

    format: Literal["nki-agent-archive"] = "nki-agent-archive"
    version: Literal[1] = 1
    run: str
    parts: tuple[ArchivePart, ...]
    ended: bool


class RunArchive(NamedTuple):
    """An archive that was read to its end and checked; `head` is the hash of the run's last event."""

    path: Path
    manifest: ArchiveManifest
    events: int
    blobs: int
    head: bytes
    sha256: str


ArchiveLine = EventRow | StoredBlob


def archive_run(
    home: Path, run: str, target: Path, *, replace: bool = False, progress: ProgressCallback | None = None
) -> RunArchive:
    """Write a run to the file `target`, whether its log's owner runs or not; then read it back.

    A run that has not ended is archived up to its last event. `progress` counts written events.

    Raises:
        StreamUnknown: there is no such run.
        BadTarget: `target` cannot be written; see `state.output_files.check_output`.
        LogError, HomeError: the log cannot be read, or its data of the run is damaged.
        StorageFull, StorageFailed: the file could not be written.
    """
    with (
        closing(ReadOnlyConnection(HomeLayout(home))) as handle,
        open_output(home, target, replace=replace, mode=0o600) as part,
        sqlite_errors(),
    ):
        manifest = _build_manifest(handle.connection(), run)
        with _open_archive_writer(part) as put:
            _write_content(handle.connection(), manifest, put, progress=progress)
        crash_point("archive.written")
        try:
            return read_archive(part)._replace(path=target)
        except BadArchive as error:  # the archive has the log's content
            raise LogDamaged(f"what it holds of {run} does not prove itself: {error.what}") from error


def _build_manifest(connection: sqlite3.Connection, run: str) -> ArchiveManifest:
    tip = snapshots.load_tip(connection, run) if run != SYSTEM_STREAM else None
    if tip is None:
        raise StreamUnknown(f"no run {run}")
    parts = [
        ArchivePart(stream=one.stream, after=one.after, upto=min(one.upto, tip.run_seq))
        for one in queries.lineage(connection, run)
    ]
    return ArchiveManifest(run=run, parts=tuple(parts), ended=tip.has_ended)


def _write_content(
    connection: sqlite3.Connection,
    manifest: ArchiveManifest,
    put: Callable[[str], None],
    *,
    progress: ProgressCallback | None,
) -> None:
    put(manifest.model_dump_json())
    named: set[str] = set()
    end = manifest.parts[-1].upto
    for part in manifest.parts:
        for row in queries.segment_rows(connection, Segment(part.stream, part.after, part.upto)):
            put(_encode_row(row))
            named |= find_digests(row.payload.encode())
            if progress is not None and row.run_seq % queries.PAGE == 0:
                progress(row.run_seq, end)
    for digest in sorted(reachable_blobs(connection, named)):
        put(_encode_blob(digest, blobs.fetch_blob(connection, digest)))


@contextmanager
def _open_archive_writer(path: Path) -> Iterator[Callable[[str], None]]:
    """Yield a function that writes lines; write the last line if the block succeeds."""
    hashed, count = hashlib.sha256(), 0
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:

        def put(line: str) -> None:
            nonlocal count
            data = f"{line}\n".encode()
            hashed.update(data)
            file.write(data)
            count += 1

        yield put
        file.write(json.dumps({"end": count, "sha256": hashed.hexdigest()}).encode() + b"\n")


def _encode_row(row: EventRow) -> str:
    """Return a row as JSON; the payload comes last, with exactly the bytes that were hashed."""
    columns: dict[str, Any] = row._asdict()
    payload = str(columns.pop("payload"))
    for name in _BYTES_COLUMNS:
        columns[name] = None if columns[name] is None else columns[name].hex()
    return json.dumps(columns, separators=(",", ":"))[:-1] + _PAYLOAD_MARK + payload + "}"


def _encode_blob(digest: str, data: bytes) -> str:
    try:
        content = {"blob": digest, "text": data.decode()}
    except UnicodeDecodeError:
        content = {"blob": digest, "base64": base64.b64encode(data).decode()}
    return json.dumps(content)


# --- reading ---------------------------------------------------------------------------------------


def read_archive(path: Path) -> RunArchive:
    """Read an archive to its end and check all of it: its lines, its hash chain, its blobs.

    Raises:
        BadArchive: it is not an archive, is cut short, or was edited.
    """
    manifest, content = open_archive(path)
    heads: dict[str, ChainLink] = {}
    stored = events = 0
    for line in content:
        if isinstance(line, StoredBlob):
            stored += 1
            continue
        try:
            check_link(line, heads.get(line.stream) or _expected_link(manifest, line, heads))
        except LogDamaged as error:
            raise BadArchive(path, f"{error.what} ({line.stream}@{line.run_seq})") from error
        heads[line.stream] = (line.run_seq, line.hash)
        events += 1
    for part in manifest.parts:
        if heads.get(part.stream, (0, b""))[0] != part.upto:
            raise BadArchive(path, f"events of {part.stream} up to {part.upto} are not all there")
    return RunArchive(path, manifest, events, stored, heads[manifest.run][1], _file_sha256(path))


def _expected_link(manifest: ArchiveManifest, row: EventRow, heads: dict[str, ChainLink]) -> ChainLink | None:
    """Return what a stream's first row must continue: the last row of the part before it."""
    place = [part.stream for part in manifest.parts].index(row.stream)
    return heads.get(manifest.parts[place - 1].stream) if place else (0, GENESIS)


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_archive(path: Path) -> tuple[ArchiveManifest, Iterator[ArchiveLine]]:
    """Return an archive's manifest, and an iterator over its rows and then its blobs.

    The iterator raises BadArchive at a line that cannot be read, and at the end if the content is not what
    was written.
    """
    lines = _checked_lines(path)
    try:
        first = next(lines)
        if len(first) > MAX_MANIFEST_BYTES:
            raise BadArchive(path, "is no archive of a run: its first line is too long")
        manifest = ArchiveManifest.model_validate_json(first)
    except (StopIteration, ValidationError) as error:
        raise BadArchive(path, "is no archive of a run, or of a newer version") from error
    if not manifest.parts or manifest.parts[-1].stream != manifest.run:
        raise BadArchive(path, f"holds no events of {manifest.run}")
    return manifest, (_parse_line(path, line, manifest) for line in lines)


def _checked_lines(path: Path) -> Iterator[bytes]:
    """Yield all lines except the last one, which must match them."""
    hashed, count = hashlib.sha256(), 0
    try:
        with gzip.open(path, "rb") as file:
            last = file.readline(MAX_LINE_BYTES)
            while line := file.readline(MAX_LINE_BYTES):
                if not last.endswith(b"\n"):
                    raise BadArchive(path, f"a line is longer than {MAX_LINE_BYTES >> 20} MiB")
                hashed.update(last)
                count += 1
                yield last
                last = line
            _require_end(path, last, count, digest=hashed.hexdigest())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadArchive(path, f"is cut short or no gzip file: {error}") from error
    except FileNotFoundError as error:
        raise BadArchive(path, "there is no such archive") from error
    except OSError as error:
        raise BadArchive(path, f"cannot be read: {error.strerror}") from error


def _require_end(path: Path, last: bytes, count: int, *, digest: str) -> None:
    try:
        said = json.loads(last) if len(last) < MAX_STRUCTURE_BYTES else None
    except (ValueError, RecursionError):
        said = None
    if said != {"end": count, "sha256": digest}:
        raise BadArchive(path, "its last line does not fit what is before it: it was cut short or edited")


def _parse_line(path: Path, line: bytes, manifest: ArchiveManifest) -> ArchiveLine:
    try:
        return (
            _parse_archived_blob(line)
            if line.startswith(b'{"blob"')
            else _parse_archived_row(line.decode(), manifest)
        )
    except LogDamaged as error:
        raise BadArchive(path, f"a line cannot be read: {error.what}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadArchive(path, f"a line cannot be read: {error}") from error


def _parse_archived_row(line: str, manifest: ArchiveManifest) -> EventRow:
    columns, payload = line.rstrip("\n")[:-1].split(_PAYLOAD_MARK, 1)
    if len(columns) > MAX_STRUCTURE_BYTES or len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError("an event is larger than a log can hold")
    if has_too_much_structure(payload.encode(), MAX_PAYLOAD_STRUCTURE_BYTES):
        raise ValueError("an event has more beside its texts than a log can hold")
    values = json.loads(columns + "}")
    for name in _BYTES_COLUMNS:
        values[name] = None if values[name] is None else bytes.fromhex(values[name])
    row = parse_row(EventRow(**values, payload=payload))
    if any(isinstance(value, int) and not -(2**63) <= value < 2**63 for value in row):
        raise ValueError("it has a number that a log cannot hold")
    if all(row.stream != part.stream for part in manifest.parts):
        raise ValueError(f"{row.stream} is not in the first line")
    return row


def _parse_archived_blob(line: bytes) -> StoredBlob:
    if has_too_much_structure(line, MAX_STRUCTURE_BYTES):
        raise ValueError("a blob has more than its digest and its text")
    content = parse_utf8_json(line)
    text, encoded = content.get("text", ""), content.get("base64", "")
    if not (isinstance(text, str) and isinstance(encoded, str)):
        raise ValueError(f"blob {content['blob']} is no text")  # noqa: TRY004 - of the file, not of a call
    packed = blobs.pack_blob(base64.b64decode(encoded) if encoded else text.encode())
    if packed.digest.hex() != content["blob"]:
        raise ValueError(f"blob {content['blob']} does not match its digest")
    return packed
