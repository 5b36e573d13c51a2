"""Experiences in files: what is read of them, what is refused and why, and what becomes of them in a log."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon import experience_files
from daemon.command_models import MAX_SOURCE, MAX_SUMMARY, ExperienceEntry, Forget, Learn, parse_command
from daemon.errors import CommandRefused, DaemonError, UnknownExperience
from daemon.experience_files import apply_experience_command
from state.events import ExperiencesForgotten, ExperiencesLearnt
from state.learning import MAX_IMPORTED
from state.model import digest_of
from state.system import SystemState
from tests.support.learnt_sequences import (
    experience_context,
    imported_experience,
    learnt_experience,
    problem_tags,
)

SLOW = "def kernel(x):\n    nisa.activation(dst=x, op=nl.exp, data=x)\n"
EMPTY = SystemState()


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "rewrites.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def learn(*found: ExperienceEntry, **fields) -> Learn:
    return Learn(**{"file": "rewrites.json", "rewrites": found} | fields)


# --- reading ---


def test_the_original_format_is_read(file):
    found, without = experience_files.read_experiences(
        file([{"slow": SLOW, "fast": "b", "summary": "use larger tiles"}])
    )
    assert found == (ExperienceEntry(slow=SLOW, fast="b", summary="use larger tiles"),)
    assert without == 0


def test_keys_that_are_missing_null_or_unknown_are_no_fault(file):
    entries = [
        {"summary": "only words"},
        {"slow": "a", "fast": "b"},
        {"slow": "a", "summary": ""},
        {"slow": None, "fast": "b", "summary": "c", "about": None, "score": 3},
    ]
    found, without = experience_files.read_experiences(file(entries))
    assert found == (ExperienceEntry(summary="only words"), ExperienceEntry(fast="b", summary="c"))
    assert without == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("nonsense", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ({"slow": "a"}, "a list of objects"),
        (["a"], "a list of objects"),
        ([], "no entry has a summary"),
        ([{"slow": "a"}], "no entry has a summary"),
        ([{"summary": "a"}] * (MAX_IMPORTED + 1), f"a home keeps {MAX_IMPORTED}"),
        ([{"summary": "a"}, {"summary": 3, "slow": ["b"]}], r"\[1\]\.slow: .*; \[1\]\.summary: "),
        ([{"summary": "a" * (MAX_SUMMARY + 1)}], r"\[0\]\.summary: "),
        ([{"summary": "a", "fast": "b" * (MAX_SOURCE + 1)}], r"\[0\]\.fast: "),
        ([{"summary": "\ud800"}], r"\[0\]\.summary: "),
        ([{"summary": "a", "about": {"speedup": -1}}], r"\[0\]\.about\.tags: .*\[0\]\.about\.speedup: "),
        (
            [{"summary": "a", "about": {"tags": problem_tags(*["x" * 99] * 99).model_dump()}}],
            r"\[0\]\.about: .*longer than",
        ),
    ],
)
def test_what_is_no_such_list_is_refused_with_every_fault(file, content, said):
    with pytest.raises(DaemonError, match=said) as refused:
        experience_files.read_experiences(file(content))
    assert refused.value.code == "bad_rewrites"


def test_a_file_that_is_too_large_is_not_read(file, monkeypatch):
    monkeypatch.setattr(experience_files, "MAX_FILE_BYTES", 10)
    with pytest.raises(OSError, match="larger than 10 bytes"):
        experience_files.read_experiences(file([{"summary": "a"}]))


# --- taking in ---


def test_an_entry_becomes_an_experience_that_is_found_by_its_kernel():
    event, blobs, said = apply_experience_command(
        learn(ExperienceEntry(slow=SLOW, fast="b", summary="larger tiles")), EMPTY
    )
    (one,) = event.experiences
    assert (one.origin, one.imported, one.summary) == ("rewrites.json", True, "larger tiles")
    assert one.tags.operators == ("activation", "exp")
    assert (one.tags.target, one.tags.dtypes, one.tags.extents) == ("", (), ())
    assert (one.about.kind, one.about.speedup, one.about.predicted) == (None, None, None)
    assert {digest_of(blob) for blob in blobs} == {one.slow, one.fast}
    assert SLOW.encode() in blobs
    assert said == {"learnt": [one.id], "known": 0}


def test_without_kernels_it_is_advice_for_its_target():
    event, blobs, _ = apply_experience_command(
        learn(ExperienceEntry(summary="larger tiles"), target="trn1"), EMPTY
    )
    (one,) = event.experiences
    assert (one.slow, one.fast, blobs) == (None, None, ())
    assert (one.tags.target, one.tags.operators) == ("trn1", ())


def test_what_it_says_that_it_is_about_holds():
    event, _, _ = apply_experience_command(
        learn(ExperienceEntry(summary="a", about=experience_context(technique="a\nb")), target="trn1"), EMPTY
    )
    assert event.experiences[0].about == experience_context(technique="a b")


def test_what_is_known_is_not_learnt_again():
    known = imported_experience(1)
    command = learn(*(ExperienceEntry(summary=one, about=known.about) for one in ("new", "new")))
    event, _, said = apply_experience_command(command, EMPTY)
    assert len(event.experiences) == 1
    system = SystemState(experiences=event.experiences)
    assert apply_experience_command(command, system) == (None, (), {"learnt": [], "known": 1})
    assert said["learnt"] == [event.experiences[0].id]


def test_nobody_hides_anything_in_what_is_imported():
    hidden = "tiles\x1b[31m\u202e\x00"
    command = learn(
        ExperienceEntry(summary=hidden, slow=hidden, about=experience_context(problem=hidden)),
        file="a\n\x1bb",
    )
    event, blobs, _ = apply_experience_command(command, EMPTY)
    (one,) = event.experiences
    assert (one.summary, one.about.problem, one.origin) == ("tiles[31m", "tiles[31m", "a b")
    assert blobs == (b"tiles[31m",)


def test_a_summary_that_nobody_sees_is_none():
    with pytest.raises(CommandRefused, match="nothing in it"):
        apply_experience_command(learn(ExperienceEntry(summary="\u202e\x00 ")), EMPTY)


@given(st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=5), st.text(max_size=60))
def test_any_text_is_taken_or_refused(summaries, source):
    command = learn(*(ExperienceEntry(summary=one, slow=source, fast=source[::-1]) for one in summaries))
    again = parse_command(command.model_dump_json().encode())
    assert again == command
    try:
        event, blobs, _ = apply_experience_command(again, EMPTY)
    except CommandRefused:
        return
    named = {digest for one in event.experiences for digest in one.source_digests}
    assert {digest_of(blob) for blob in blobs} == named
    assert all(mark.isprintable() or mark in "\n\t" or ord(mark) > 127 for one in event.experiences
               for mark in one.summary)  # fmt: skip


# --- forgetting ---


def test_what_is_there_is_forgotten_and_what_is_not_is_named():
    one = learnt_experience()
    system = SystemState(experiences=(one, imported_experience(1)))
    event, blobs, said = apply_experience_command(Forget(ids=(one.id,)), system)
    assert event == ExperiencesForgotten(ids=(one.id,))
    assert (blobs, said) == ((), {"forgotten": [one.id]})
    with pytest.raises(UnknownExperience, match="'0123'"):
        apply_experience_command(Forget(ids=(one.id, "0123")), system)


# --- writing ---


class Kernels:
    """Reads as a log does that has these blobs and has lost all others."""

    def __init__(self, *blobs: str) -> None:
        self._blobs = {digest_of(one.encode()): one.encode() for one in blobs}

    def get_blob(self, digest: str) -> bytes:
        from state.errors import BlobMissing

        if digest not in self._blobs:
            raise BlobMissing(digest)
        return self._blobs[digest]


def test_what_is_written_is_read_back_as_it_was(file):
    found = [
        learnt_experience(slow=digest_of(SLOW.encode()), fast=digest_of(b"b")),
        imported_experience(
            1, slow=None, of=problem_tags().model_copy(update={"target": "", "operators": ()})
        ),
    ]
    path = file(experience_files.render_experiences(found, Kernels(SLOW, "b")))
    rows = json.loads(path.read_text())
    assert [(row["slow"], row["fast"], row["summary"]) for row in rows] == [
        (SLOW, "b", "what donor found"),
        ("", "", "advice 1"),
    ]
    read, _ = experience_files.read_experiences(path)
    event, _, _ = apply_experience_command(learn(*read), EMPTY)
    assert isinstance(event, ExperiencesLearnt)
    assert [one.id for one in event.experiences] == [one.id for one in found]
    assert [one.about for one in event.experiences] == [one.about for one in found]
    assert {one.origin for one in event.experiences} == {"rewrites.json"}


def test_a_kernel_that_is_lost_is_left_empty():
    (row,) = json.loads(experience_files.render_experiences([learnt_experience()], Kernels()))
    assert (row["slow"], row["fast"]) == ("", "")
