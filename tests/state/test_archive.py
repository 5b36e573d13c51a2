"""Archives: a run as a file that proves itself; taken out of its log, and brought into any."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest

from state.archive import archive_run, read_archive
from state.archive_import import import_archive
from state.compact import compact_log
from state.errors import (
    BadArchive,
    BadTarget,
    BlobPruned,
    HomeLocked,
    LogDamaged,
    RunExists,
    RunKept,
    StreamUnknown,
)
from state.events import EvaluationStarted, KernelProposed, RunCancelled, RunCreated, RunForked, RunPaused
from state.log import EventLog
from state.model import digest_of
from state.reader import LogReader
from state.records import NewEvent, RecordedEvent
from state.verify import verify_log
from tests.support.scripted_runs import ScriptedRun, append_run


def fork(log: EventLog, child: str, parent: RecordedEvent) -> None:
    event = RunForked(parent=parent.stream, parent_seq=parent.run_seq, parent_hash=parent.hash)
    log.append_now([NewEvent(child, event), NewEvent(child, RunPaused(reason="look"))])


@pytest.fixture
def family(home: Path, stored: list[RecordedEvent]) -> list[RecordedEvent]:
    """A home with two runs and a fork of the first one; the events of the first."""
    with EventLog.open(home) as log:
        fork(log, "child", stored[19])
    return [item for item in stored if item.stream == "first"]


def lines(path: Path) -> list[bytes]:
    return gzip.decompress(path.read_bytes()).splitlines(keepends=True)


def contents(home: Path, run: str) -> list[tuple[int, int, object]]:
    with LogReader.open(home) as reader:
        return [(item.run_seq, item.ts_us, item.event) for item in reader.read(stream=run, limit=10_000)]


# --- writing and reading ---


def test_an_archive_holds_a_run_and_all_that_it_needs(
    home: Path, stored: list[RecordedEvent], tmp_path: Path
) -> None:
    made = archive_run(home, "first", tmp_path / "a.gz")
    mine = [item for item in stored if item.stream == "first"]
    assert (made.events, made.head.hex(), made.manifest.ended) == (len(mine), mine[-1].hash, True)
    said = [json.loads(line) for line in lines(tmp_path / "a.gz")]
    assert [line["hash"] for line in said if "payload" in line] == [item.hash for item in mine]
    digests = {line["blob"] for line in said if "blob" in line}
    assert digests >= {item.event.source for item in mine if isinstance(item.event, KernelProposed)}
    assert read_archive(tmp_path / "a.gz")._replace(path=made.path) == made


def test_the_same_run_makes_the_same_file(home: Path, stored: list[RecordedEvent], tmp_path: Path) -> None:
    first, second = (archive_run(home, "first", tmp_path / name).sha256 for name in ("a.gz", "b.gz"))
    assert first == second


def test_blobs_that_only_blobs_name_come_along(home: Path, tmp_path: Path) -> None:
    inner, outer = b"the stable part of a prompt", b"unnamed"
    outer = json.dumps({"parts": [digest_of(inner)]}).encode()
    with EventLog.open(home) as log:
        step = next(ScriptedRun().steps())
        asked = EvaluationStarted(key="r0.b0.p0.k0.f0.evaluator", request=digest_of(outer))
        log.append_now([NewEvent("r", step.event), NewEvent("r", asked)], blobs=[*step.blobs, inner, outer])
    made = archive_run(home, "r", tmp_path / "a.gz")
    assert made.blobs == len(step.blobs) + 2
    assert not made.manifest.ended


def test_an_archive_of_a_fork_holds_what_it_continues(home: Path, family, tmp_path: Path) -> None:
    made = archive_run(home, "child", tmp_path / "a.gz")
    assert [(part.stream, part.after, part.upto) for part in made.manifest.parts] == [
        ("first", 0, 20),
        ("child", 20, 22),
    ]


def test_unknown_runs_and_files_that_are_there_are_refused(home: Path, stored, tmp_path: Path) -> None:
    with pytest.raises(StreamUnknown):
        archive_run(home, "nobody", tmp_path / "a.gz")
    with pytest.raises(StreamUnknown):
        archive_run(home, "system", tmp_path / "a.gz")
    assert not (tmp_path / "a.gz").exists()
    archive_run(home, "first", tmp_path / "a.gz")
    with pytest.raises(BadTarget):
        archive_run(home, "second", tmp_path / "a.gz")


def rewritten(path: Path, change) -> None:
    path.write_bytes(gzip.compress(b"".join(change(lines(path)))))


@pytest.mark.parametrize(
    "change",
    [
        lambda all_: all_[:-1],
        lambda all_: all_[:10] + all_[11:],
        lambda all_: [line.replace(b"hoist", b"hoisT") for line in all_],
        lambda all_: all_[1:],
        lambda all_: [],
        lambda all_: [b"nonsense\n"],
        lambda all_: [*all_[:5], b"{}\n", *all_[5:]],
    ],
    ids=["no end", "a line less", "edited", "no manifest", "empty", "nonsense", "a line more"],
)
def test_an_archive_that_is_not_what_was_written_is_refused(
    home: Path, stored: list[RecordedEvent], tmp_path: Path, change
) -> None:
    archive_run(home, "first", tmp_path / "a.gz")
    rewritten(tmp_path / "a.gz", change)
    with pytest.raises(BadArchive):
        read_archive(tmp_path / "a.gz")
    with pytest.raises(BadArchive):
        import_archive(tmp_path / "other", tmp_path / "a.gz")
    assert not (tmp_path / "other").exists()


def test_an_edit_with_the_right_last_line_breaks_the_chain(home: Path, stored, tmp_path: Path) -> None:
    import hashlib

    archive_run(home, "first", tmp_path / "a.gz")

    def forge(all_: list[bytes]) -> list[bytes]:
        body = [line.replace(b"hoist", b"hoisT") for line in all_[:-1]]
        end = {"end": len(body), "sha256": hashlib.sha256(b"".join(body)).hexdigest()}
        return [*body, json.dumps(end).encode() + b"\n"]

    rewritten(tmp_path / "a.gz", forge)
    with pytest.raises(BadArchive, match="does not match"):
        read_archive(tmp_path / "a.gz")


@pytest.mark.parametrize("part", [0.0, 0.3, 0.99])
def test_a_file_that_was_cut_short_is_refused(home: Path, stored, tmp_path: Path, part: float) -> None:
    archive_run(home, "first", tmp_path / "a.gz")
    content = (tmp_path / "a.gz").read_bytes()
    (tmp_path / "a.gz").write_bytes(content[: int(len(content) * part)])
    with pytest.raises(BadArchive):
        read_archive(tmp_path / "a.gz")


# --- compaction ---


def test_a_run_that_is_archived_leaves_the_log(
    home: Path, stored: list[RecordedEvent], tmp_path: Path
) -> None:
    mine = [item for item in stored if item.stream == "first"]
    archive_run(home, "first", tmp_path / "a.gz")
    size = (home / "events.db").stat().st_size
    done = compact_log(home, [tmp_path / "a.gz"])
    assert done.event.taken_out == len(mine)
    assert (home / "events.db").stat().st_size < size
    report = verify_log(home)
    assert (report.is_ok, report.taken_out) == (True, len(mine))
    assert report.pruned > 0
    with LogReader.open(home) as reader:
        assert [row["run"] for row in reader.run_summaries()] == ["second"]
        assert [item.hash for item in reader.read(stream="second", limit=999)] == [
            item.hash for item in stored if item.stream == "second"
        ]
        source = next(item.event.source for item in mine if isinstance(item.event, KernelProposed))
        with pytest.raises(BlobPruned, match="import the archive"):
            reader.get_blob(source)


def test_the_log_goes_on_after_its_last_number(
    home: Path, stored: list[RecordedEvent], tmp_path: Path
) -> None:
    archive_run(home, "second", tmp_path / "a.gz")  # the last events of the log are this run's
    compact_log(home, [tmp_path / "a.gz"])
    with EventLog.open(home, full_check=True) as log:
        assert log.read(stream="system")[0].seq == len(stored) + 1
        append_run(log, "third")
    assert verify_log(home).is_ok
    compact_log(home)
    assert verify_log(home).taken_out == sum(item.stream == "second" for item in stored)


def test_runs_that_others_continue_stay_unless_those_leave_too(home: Path, family, tmp_path: Path) -> None:
    archive_run(home, "first", tmp_path / "a.gz")
    with pytest.raises(RunKept, match="child continues it"):
        compact_log(home, [tmp_path / "a.gz"])
    archive_run(home, "child", tmp_path / "b.gz")
    with pytest.raises(RunKept, match="has not ended"):
        compact_log(home, [tmp_path / "a.gz", tmp_path / "b.gz"])
    with EventLog.open(home) as log:
        log.append_now([NewEvent("child", RunCancelled(reason="x"))])
    with pytest.raises(RunKept, match="went on after"):
        compact_log(home, [tmp_path / "a.gz", tmp_path / "b.gz"])
    archive_run(home, "child", tmp_path / "b.gz", replace=True)
    compact_log(home, [tmp_path / "a.gz", tmp_path / "b.gz"])
    with LogReader.open(home) as reader:
        assert [row["run"] for row in reader.run_summaries()] == ["second"]
    assert verify_log(home).is_ok


def test_a_run_of_another_log_is_not_taken_out(
    home: Path, stored: list[RecordedEvent], tmp_path: Path
) -> None:
    archive_run(home, "first", tmp_path / "a.gz")
    other = tmp_path / "other"
    with EventLog.open(other) as log:
        append_run(log, "third")
    with pytest.raises(StreamUnknown, match="no run first in this log"):
        compact_log(other, [tmp_path / "a.gz"])


def test_a_log_in_use_is_not_compacted(log: EventLog, home: Path) -> None:
    append_run(log, "r", rounds=1)
    with pytest.raises(HomeLocked):
        compact_log(home)


# --- import ---


def test_an_imported_run_is_what_it_was(home: Path, stored: list[RecordedEvent], tmp_path: Path) -> None:
    archive_run(home, "first", tmp_path / "a.gz")
    with EventLog.open(tmp_path / "other") as log:
        append_run(log, "third")
    import_archive(tmp_path / "other", tmp_path / "a.gz")
    assert verify_log(tmp_path / "other").is_ok
    assert contents(tmp_path / "other", "first") == contents(home, "first")
    with LogReader.open(home) as here, LogReader.open(tmp_path / "other") as there:
        assert there.run_state("first") == here.run_state("first")
        kernel = next(item.event.kernel for item in stored if isinstance(item.event, RunCreated))
        assert there.get_blob(kernel) == here.get_blob(kernel)


def test_a_run_comes_back_to_the_log_that_it_left(home: Path, stored, tmp_path: Path) -> None:
    before = contents(home, "first")
    archive_run(home, "first", tmp_path / "a.gz")
    compact_log(home, [tmp_path / "a.gz"])
    import_archive(home, tmp_path / "a.gz")
    report = verify_log(home)
    assert (report.is_ok, report.pruned) == (True, 0)
    assert contents(home, "first") == before


def test_a_run_that_is_there_is_not_imported_again(home: Path, stored, tmp_path: Path) -> None:
    archive_run(home, "first", tmp_path / "a.gz")
    with pytest.raises(RunExists, match="first is in this log already"):
        import_archive(home, tmp_path / "a.gz")
    assert verify_log(home).is_ok


def test_a_fork_brings_what_it_continues_and_nothing_starts_by_itself(
    home: Path, family, tmp_path: Path
) -> None:
    archive_run(home, "child", tmp_path / "a.gz")
    import_archive(tmp_path / "other", tmp_path / "a.gz")
    assert verify_log(tmp_path / "other").is_ok
    with LogReader.open(tmp_path / "other") as reader:
        status = {row["run"]: row["status"] for row in reader.run_summaries()}
        assert status == {"first": "cancelled", "child": "paused"}
        with LogReader.open(home) as there:
            assert reader.run_state("child") == there.run_state("child")


def test_a_run_that_went_on_is_imported_paused(home: Path, tmp_path: Path) -> None:
    with EventLog.open(home) as log:
        step = next(ScriptedRun().steps())
        log.append_now([NewEvent("r", step.event)], blobs=step.blobs)
    archive_run(home, "r", tmp_path / "a.gz")
    import_archive(tmp_path / "other", tmp_path / "a.gz")
    with LogReader.open(tmp_path / "other") as reader:
        assert [(row["status"], row["reason"]) for row in reader.run_summaries()] == [("paused", "imported")]


def test_a_fork_finds_the_run_that_it_continues(home: Path, family, tmp_path: Path) -> None:
    archive_run(home, "first", tmp_path / "a.gz")
    archive_run(home, "child", tmp_path / "b.gz")
    import_archive(tmp_path / "other", tmp_path / "a.gz")
    import_archive(tmp_path / "other", tmp_path / "b.gz")
    assert verify_log(tmp_path / "other").is_ok
    with LogReader.open(tmp_path / "other") as reader:
        assert {row["run"]: row["status"] for row in reader.run_summaries()} == {
            "first": "completed",
            "child": "paused",
        }


def test_a_fork_is_not_hung_on_another_history(home: Path, family, tmp_path: Path) -> None:
    archive_run(home, "child", tmp_path / "b.gz")
    with EventLog.open(tmp_path / "other") as log:
        append_run(log, "first", seed=99)
    with pytest.raises(RunExists, match="has another history here"):
        import_archive(tmp_path / "other", tmp_path / "b.gz")
    assert verify_log(tmp_path / "other").is_ok


# --- forks of what a fork had from its parent ---


@pytest.mark.parametrize("at", [5, 20])
def test_a_fork_at_an_event_of_an_ancestor_is_archived_and_comes_back(
    home: Path, family, tmp_path: Path, at: int
) -> None:
    """`grandchild` is cut from `child` at an event that `child` has from `first`."""
    with EventLog.open(home) as log:
        event = RunForked(parent="child", parent_seq=at, parent_hash=family[at - 1].hash)
        log.append_now([NewEvent("grandchild", event), NewEvent("grandchild", RunPaused(reason="look"))])
    made = archive_run(home, "grandchild", tmp_path / "g.gz")
    assert [(part.stream, part.after, part.upto) for part in made.manifest.parts] == [
        ("first", 0, at),
        ("grandchild", at, at + 2),
    ]
    compact_log(home)
    assert verify_log(home).is_ok
    import_archive(tmp_path / "other", tmp_path / "g.gz")
    assert verify_log(tmp_path / "other").is_ok
    with LogReader.open(home) as here, LogReader.open(tmp_path / "other") as there:
        assert there.run_state("grandchild") == here.run_state("grandchild")
    with EventLog.open(home) as log:
        fork(log, "last", log.read(stream="grandchild", after=0, limit=at + 1)[-1])
        log.append_now([NewEvent("grandchild", RunCancelled(reason="x"))])
    archive_run(home, "last", tmp_path / "l.gz")
    import_archive(tmp_path / "other", tmp_path / "l.gz")
    assert verify_log(tmp_path / "other").is_ok


def test_a_fork_keeps_the_parent_that_it_names_where_that_is(home: Path, family, tmp_path: Path) -> None:
    with EventLog.open(home) as log:
        event = RunForked(parent="child", parent_seq=5, parent_hash=family[4].hash)
        log.append_now([NewEvent("grandchild", event), NewEvent("grandchild", RunPaused(reason="look"))])
    archive_run(home, "child", tmp_path / "c.gz")
    archive_run(home, "grandchild", tmp_path / "g.gz")
    for name in ("c.gz", "g.gz"):
        import_archive(tmp_path / "other", tmp_path / name)
    assert verify_log(tmp_path / "other").is_ok
    with LogReader.open(tmp_path / "other") as reader:
        begun = reader.read(stream="grandchild", limit=1_000)[5].event
    assert isinstance(begun, RunForked)
    assert begun.parent == "child"


# --- lines of other types ---


def seal_archive(path: Path, said: list[bytes]) -> None:
    body = b"".join(said)
    end = {"end": len(said), "sha256": hashlib.sha256(body).hexdigest()}
    path.write_bytes(gzip.compress(body + json.dumps(end).encode() + b"\n"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"run_seq":3,', b'"run_seq":"a",'),
        (b'"run_seq":3,', b'"run_seq":null,'),
        (b'"run_seq":3,', b'"run_seq":true,'),
        (b'"seq":3,', b'"seq":1' + b"0" * 30 + b","),
        (b'"sv":', b'"sv":' + b"[" * 100_000),
        (b'"text": "', b'"text": 7, "rest": "'),
        (b'{"blob": "', b'{"blob": 5, "rest": "'),
    ],
)
def test_values_of_other_types_are_refused(
    home: Path, stored, tmp_path: Path, old: bytes, new: bytes
) -> None:
    archive_run(home, "first", tmp_path / "a.gz")
    said = lines(tmp_path / "a.gz")[:-1]
    place = next(number for number, line in enumerate(said) if old in line)
    seal_archive(tmp_path / "b.gz", [*said[:place], said[place].replace(old, new, 1), *said[place + 1 :]])
    with pytest.raises(BadArchive, match=r"b\.gz: a line cannot be read"):
        import_archive(tmp_path / "other", tmp_path / "b.gz")


def test_a_folder_is_no_archive(home: Path, stored, tmp_path: Path) -> None:
    with pytest.raises(BadArchive, match="cannot be read: Is a directory"):
        import_archive(home, tmp_path)


def test_a_damaged_run_makes_no_archive(home: Path, stored, damage, tmp_path: Path) -> None:
    damage("UPDATE event SET payload = payload || ' ' WHERE seq = 20")
    with pytest.raises(LogDamaged, match="does not match its hash") as caught:
        archive_run(home, "first", tmp_path / "a.gz")
    assert ".part" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
