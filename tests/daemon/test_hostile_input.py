"""What others wrote, read with bounds: commands, archives and backups; each is read, or refused by name.

The examples of each property are kept: files that once took an error of another kind, or too much memory.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from daemon.command_models import MAX_MESSAGE, parse_command
from daemon.commands import LARGE_BYTES, CommandHandler
from daemon.errors import BadFile, CommandRefused
from daemon.home_paths import inbox_folder
from daemon.inbox import MAX_REJECTED, REJECTED, Inbox, new_command_id
from state import blobs, queries
from state.archive import MAX_LINE_BYTES, archive_run, read_archive
from state.archive_import import import_archive
from state.backup import backup_log, restore_log
from state.errors import BadArchive, LogDamaged, StateError
from state.json_bounds import cut_text, has_too_much_structure, inflate_json
from state.log import EventLog
from state.verify import verify_log
from tests.support import fakes
from tests.support.scripted_runs import append_run

fuzz = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@st.composite
def edits(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Return a few edits of bytes: at a place (a share of the length), so many replaced by others."""
    steps = draw(
        st.lists(
            st.tuples(st.floats(0, 1), st.integers(0, 40), st.binary(max_size=40)), min_size=1, max_size=4
        )
    )

    def edit(data: bytes) -> bytes:
        for place, gone, new in steps:
            at = int(place * len(data))
            data = data[:at] + new + data[at + gone :]
        return data

    return edit


# --- commands ---

VERBS = st.sampled_from(["submit", "pause", "set", "fork", "learn", "forget", "propose", "stop", ""])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@fuzz
@given(
    VERBS, st.dictionaries(st.sampled_from(["run", "settings", "files", "config", "seq", "x"]), JSON), edits()
)
@example("pause", {"run": "r", **{f"unknown{number}": 1 for number in range(500)}}, lambda data: data)
@example("fork", {"run": "r", "files": {"a": "%"}}, lambda data: data)
@example("set", {"run": "r", "settings": {"\ud800": 1}}, lambda data: data)
@example("pause", {"run": "r"}, lambda data: data[:-1] + b"[" * 100_000)
@example("pause", {"run": "r"}, lambda data: b"\xff\xfe" + data)
def test_any_command_is_parsed_or_refused(verb: str, fields: dict, edit: Callable[[bytes], bytes]) -> None:
    data = edit(json.dumps({"verb": verb, **fields}).encode())
    try:
        parse_command(data)
    except (BadFile, CommandRefused) as error:
        assert len(str(error)) <= MAX_MESSAGE  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize(
    "data",
    [
        b'{"verb": "pause", "run": "r", "x": [' + b"[]," * 400_000 + b"[]]}",
        b'{"verb": "pause", "run": "r"'
        + b"".join(b',"%s%d":1' % (b"k" * 60, i) for i in range(300_000))
        + b"}",
        b'{"verb": "", "a": "", "x":' + b"[" * (1 << 20) + b'"a"' + b"]" * (1 << 20) + b', "b": ""}',
    ],
    ids=["lists", "keys", "depth"],
)
def test_a_command_with_too_much_beside_its_texts_is_not_even_parsed(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BadFile, match="more than 1 MiB"):
            parse_command(data)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(data)
    finally:
        tracemalloc.stop()


def test_structure_is_what_stands_outside_of_texts() -> None:
    data, left = b'{"a\\"b": "' + b"x" * 1000 + b'", "c": [1]}', len(b'{"": "", "": [1]}')
    assert has_too_much_structure(data, left - 1)
    assert not has_too_much_structure(data, left)
    assert cut_text("x" * 10, 10) == "x" * 10
    assert len(cut_text("x" * 9000, 4096)) == 4096


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16", "utf-32"])
def test_a_command_in_another_encoding_hides_no_structure(encoding: str) -> None:
    text = '{"verb": "pause", "a": "\u2200", "x": [' + "[]," * 1_000_000 + "[]]}"  # U+2200 has a quote's byte
    data = text.encode(encoding)
    tracemalloc.start()
    try:
        with pytest.raises(BadFile):
            parse_command(data)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(data)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b'"' + b"x" * (8 << 20) + b'"', "more than 4194304 bytes"),
        (b"[" * (2 << 20), "beside its texts"),
        (None, "cut short"),
    ],
)
def test_what_is_unpacked_is_bounded(text: bytes | None, what: str) -> None:
    data = zlib.compress(b"{}" * 1000)[:-5] if text is None else zlib.compress(text)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=what):
            inflate_json(data, 4 << 20, 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("end", [b"", b"\\"])
def test_a_text_without_an_end_is_looked_through_once(end: bytes) -> None:
    data = b'{"verb": "pause", "run": "' + b'\\"' * 400_000 + end
    began = time.process_time()
    assert not has_too_much_structure(data, 1 << 20)
    with pytest.raises(BadFile):
        parse_command(data)
    assert time.process_time() - began < 2  # it took half an hour once, and nothing else could run


async def test_the_answer_to_a_command_with_many_faults_is_short(home: Path) -> None:
    data = json.dumps({"verb": "pause", **{f"{'k' * 200}{number}": 1 for number in range(2000)}}).encode()
    assert len(data) > LARGE_BYTES  # parsed in a thread
    with EventLog.open(home) as log:
        handler = CommandHandler(log, fakes.fake_workers(), touched=lambda *_: None)
        await handler.handle("c1", data)
        answer = log.read(types=("CommandRejected",))[0]
    assert len(answer.event.error.message) <= MAX_MESSAGE
    assert "unknown" not in answer.event.error.code


def test_a_reason_is_short(home: Path) -> None:
    with pytest.raises(CommandRefused, match="reason"):
        parse_command(json.dumps({"verb": "pause", "run": "r", "reason": "x" * 5000}).encode())


async def test_only_the_newest_rejected_files_are_kept(home: Path) -> None:
    async def refuse(id_: str, data: bytes) -> None:
        raise BadFile("no command")

    box = inbox_folder(home)
    box.mkdir(parents=True)
    for _ in range(MAX_REJECTED):
        (box / f"{new_command_id()}.json").write_text("{}")
    await Inbox(home, refuse).take_all()
    kept = sorted(path.name for path in (box / REJECTED).iterdir())
    assert len(kept) == MAX_REJECTED
    assert {name.partition(".")[0] for name in kept} == {name[:-5] for name in kept if "error" not in name}


# --- archives and backups ---


class Originals(dict[str, bytes]):
    """Files by name, too long to show."""

    def __repr__(self) -> str:
        return f"<{', '.join(self)}>"


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Originals:
    folder = tmp_path_factory.mktemp("originals")
    with EventLog.open(folder / "home") as log:
        append_run(log, "r", rounds=1)
    archive_run(folder / "home", "r", folder / "archive")
    backup_log(folder / "home", folder / "backup")
    return Originals(
        lines=gzip.decompress((folder / "archive").read_bytes()),
        archive=(folder / "archive").read_bytes(),
        backup=(folder / "backup").read_bytes(),
    )


@fuzz
@given(edits(), st.booleans())
@example(lambda lines: lines.replace(b'"blob": "', b'"blob": 1, "x": "', 1), True)
@example(lambda lines: lines.replace(b'"seq":', b'"seq":1e999,"x":', 1), True)
@example(lambda lines: lines.replace(b'"run_seq":2', b'"run_seq":-2', 1), True)
@example(lambda lines: b"\n" + lines, True)
@example(lambda data: data[:100], False)
def test_any_archive_is_read_or_refused(
    tmp_path: Path, originals: Originals, edit: Callable[[bytes], bytes], inside: bool
) -> None:
    data = gzip.compress(edit(originals["lines"]), 1) if inside else edit(originals["archive"])
    (tmp_path / "archive").write_bytes(data)
    try:
        read_archive(tmp_path / "archive")
    except BadArchive as error:
        assert len(str(error)) < 2 * MAX_MESSAGE  # noqa: PT017


@settings(fuzz, max_examples=30)
@given(edits())
@example(lambda data: data[:4096] + bytes(4096) + data[8192:])
@example(lambda data: data[:-1])
@example(lambda data: b"SQLite format 3\0" + bytes(100))
@example(lambda data: data.replace(b"indexgap_upto", b"indexg\x80p_upto"))  # SQLite's own message quotes it
def test_any_backup_is_restored_or_refused(
    tmp_path: Path, originals: Originals, edit: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "backup").write_bytes(edit(originals["backup"]))
    try:
        restore_log(tmp_path / "restored", tmp_path / "backup")
    except StateError:
        return
    assert verify_log(tmp_path / "restored").is_ok


READ = """
import resource, sys
from pathlib import Path
from state.archive import read_archive
from state.errors import BadArchive
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_archive(Path(sys.argv[1]))
except BadArchive as error:
    print(error.what)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.slow
@pytest.mark.parametrize("line", [b"x", b'{"blob": [', b"[],"], ids=["long", "blob", "lists"])
def test_a_small_archive_of_a_huge_line_takes_little_memory(
    tmp_path: Path, originals: Originals, line: bytes
) -> None:
    first = originals["lines"].splitlines(keepends=True)[0]
    with gzip.open(tmp_path / "archive", "wb") as file:
        file.write(first)
        for _ in range(3 * MAX_LINE_BYTES // (len(line) << 16)):
            file.write(line * (1 << 16))
    assert (tmp_path / "archive").stat().st_size < 2 << 20
    done = subprocess.run(
        [sys.executable, "-c", READ, tmp_path / "archive"], capture_output=True, text=True, check=True
    )
    what, grown = done.stdout.splitlines()
    assert "longer" in what
    assert int(grown) < 4 * MAX_LINE_BYTES >> 20


def test_an_event_of_an_archive_hides_no_structure(tmp_path: Path, originals: Originals) -> None:
    first, second, *_ = originals["lines"].splitlines(keepends=True)
    columns = second.partition(b',"payload":')[0]
    payload = b'{"x":[' + b"[]," * (6 << 20) + b"[]]}"
    with gzip.open(tmp_path / "archive", "wb", compresslevel=1) as file:
        file.writelines((first, columns, b',"payload":', payload, b"}\n", b"the end\n"))
    with pytest.raises(BadArchive, match="more beside its texts"):
        read_archive(tmp_path / "archive")


def test_a_blob_that_unpacks_to_more_than_it_says_is_refused() -> None:
    packed = blobs.pack_blob(bytes(1 << 20))
    with pytest.raises(LogDamaged, match="does not match"):
        blobs.unpack_blob(packed._replace(size=10))


def test_long_rows_make_short_pages(home: Path, monkeypatch) -> None:
    monkeypatch.setattr(queries, "PAGE_BYTES", 100)
    with EventLog.open(home) as log:
        stored = append_run(log, "r", rounds=2)
    assert verify_log(home).events == len(stored)
    archive_run(home, "r", home.with_name("run.gz"))
    import_archive(home.with_name("other"), home.with_name("run.gz"))
    assert verify_log(home.with_name("other")).is_ok
