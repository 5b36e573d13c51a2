"""Which jails what a reference gives is computed in, and what one that fails does to the others."""

from __future__ import annotations

import asyncio
import json

import pytest

import seeds
from remote import references
from remote.errors import InfrastructureError
from remote.jail_backends import JailStrength, jail_strength
from remote.references import ReferenceStore, list_damaged_references
from remote.sandbox import JailResult

SILU = seeds.load_problem("silu")
SETS = [*map(str, SILU.spec.seeds), "wide", "equal"]


class Jails:
    """Stand-ins for jails: what each was asked for, how many were there at a time, which were left alone."""

    def __init__(self, at_a_time):
        self.asked, self.ended, self.most, self.running = [], [], 0, 0
        self.full = asyncio.Event()
        self.at_a_time = at_a_time
        self.failing, self.endless = set(), set()
        self.killed = {}
        """How many steps a kind of work finishes before it is killed."""

    async def run(self, _program, request, *, on_answer, **_):
        asked = json.loads(request)
        kind = next(kind for kind in ("files", "excerpts", "expression") if asked[kind])
        self.asked.append((kind, list(asked[kind]) if kind != "expression" else []))
        self.running += 1
        self.most = max(self.most, self.running)
        if self.running == self.at_a_time:
            self.full.set()
        try:
            await self.full.wait()
            if kind in self.endless:
                await asyncio.Event().wait()
            if kind in self.killed:
                await on_answer(b"." * self.killed[kind])
                return JailResult(b"", -9, "", truncated=False, cpu_exhausted=False)
        finally:
            self.running -= 1
            self.ended.append(kind)
        status = 1 if kind in self.failing else 0
        return JailResult(b"", status, f"no {kind}", truncated=False, cpu_exhausted=False)


@pytest.fixture
def jails(monkeypatch):
    def made(at_a_time):
        found = Jails(at_a_time)
        monkeypatch.setattr(references, "run_jailed", found.run)
        return found

    return made


def store(home, jails):
    return ReferenceStore(home, strength=JailStrength.WEAK, secret="x" * 32, jails=jails)


@pytest.mark.parametrize("count", [1, 2])
async def test_as_many_jails_as_are_allowed_run_at_a_time(tmp_path, jails, count):
    seen = jails(at_a_time=count)
    found = await store(tmp_path, count).load_files(SILU, "full", wholes=["0"], tiles=SETS, expression=True)
    assert seen.most == count
    assert all(path.exists() for path in found.all_paths())
    tiles = [names for kind, names in seen.asked if kind == "excerpts"]
    assert len(tiles) == count
    assert sorted(name for names in tiles for name in names) == sorted(SETS)
    assert sorted(kind for kind, _ in seen.asked if kind != "excerpts") == ["expression", "files"]


async def test_two_problems_have_no_more_jails_than_one(tmp_path, jails):
    seen, shared = jails(at_a_time=2), store(tmp_path, 2)
    others = (SILU, seeds.load_problem("adamw"))
    await asyncio.gather(*(shared.load_files(problem, "full", tiles=SETS) for problem in others))
    assert (seen.most, len(seen.asked)) == (2, 4)


async def test_little_work_is_not_dealt_out(tmp_path, jails):
    seen = jails(at_a_time=1)
    await store(tmp_path, 4).load_files(SILU, "reduced", wholes=["0"], tiles=SETS, expression=True)
    assert seen.asked == [("files", ["0"])]


@pytest.fixture
def dealt(monkeypatch):
    """Small work is dealt out too."""
    monkeypatch.setattr(references, "_SMALL_BYTES", -1)


@pytest.mark.usefixtures("dealt")
async def test_the_first_failure_in_order_is_told_whichever_comes_first(tmp_path, jails):
    seen = jails(at_a_time=3)
    seen.failing = {"files", "excerpts"}
    with pytest.raises(InfrastructureError, match="no files") as caught:
        await store(tmp_path, 3).load_files(SILU, "reduced", wholes=["0"], tiles=["0"], expression=True)
    assert caught.value.code == "reference_failed"


@pytest.mark.usefixtures("dealt")
async def test_a_failure_ends_the_others_and_keeps_what_is_there(tmp_path, jails):
    seen, kept = jails(at_a_time=3), store(tmp_path, 3)
    seen.failing, seen.endless = {"excerpts"}, {"expression"}
    with pytest.raises(InfrastructureError, match="no excerpts"):
        await kept.load_files(SILU, "reduced", wholes=["0"], tiles=["0"], expression=True)
    assert seen.running == 0
    assert "expression" in seen.ended
    seen.asked.clear()
    assert all(path.exists() for path in (await kept.load_files(SILU, "reduced", wholes=["0"])).all_paths())
    assert not seen.asked


async def test_a_process_that_was_killed_has_done_what_it_had_finished(tmp_path, jails):
    seen, kept = jails(at_a_time=1), store(tmp_path, 3)
    seen.killed = {"files": 2}
    with pytest.raises(InfrastructureError, match="cut off"):
        await kept.load_files(SILU, "reduced", wholes=["0"], tiles=SETS, expression=True)
    seen.asked.clear()
    seen.killed = {}
    await kept.load_files(SILU, "reduced", wholes=["0"], tiles=SETS, expression=True)
    assert seen.asked == [("excerpts", list(SETS[1:]))]


@pytest.mark.usefixtures("dealt")
async def test_a_process_that_was_killed_stops_no_other(tmp_path, jails):
    seen, kept = jails(at_a_time=3), store(tmp_path, 3)
    seen.killed = {"excerpts": 0}
    with pytest.raises(InfrastructureError, match="cut off"):
        await kept.load_files(SILU, "reduced", wholes=["0"], tiles=["0"], expression=True)
    seen.asked.clear()
    seen.killed, seen.at_a_time = {}, 1
    await kept.load_files(SILU, "reduced", wholes=["0"], tiles=["0"], expression=True)
    assert seen.asked == [("excerpts", ["0"])]


@pytest.mark.usefixtures("dealt")
async def test_cancelling_ends_all_jails_and_leaves_nothing(tmp_path, jails):
    seen = jails(at_a_time=3)
    seen.endless = {"files", "excerpts", "expression"}
    asking = asyncio.create_task(
        store(tmp_path, 3).load_files(SILU, "reduced", wholes=["0"], tiles=["0"], expression=True)
    )
    await seen.full.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert seen.running == 0
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def zero_page(path):
    """Overwrite the middle of a file with zeros, as a bad disk does."""
    data = path.read_bytes()
    start = len(data) // 2
    path.write_bytes(data[:start] + bytes(len(data[start : start + 4096])) + data[start + 4096 :])


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-1])


def lose_digest(path):
    path.with_name(path.name + ".sha256").unlink()


@pytest.mark.parametrize("damage", [zero_page, cut_short, lose_digest])
async def test_a_reference_that_is_not_as_it_was_computed_is_computed_again(tmp_path, damage):
    def ask():
        kept = ReferenceStore(tmp_path, strength=jail_strength(), secret="x" * 32)
        return kept.load_files(SILU, "reduced", wholes=["0"], tiles=["0"], expression=True)

    found = await ask()
    before = {path: path.read_bytes() for path in found.all_paths()}
    assert list_damaged_references(tmp_path) == []
    for path, data in before.items():
        damage(path)
        assert list_damaged_references(tmp_path) == [path]
        await ask()
        assert path.read_bytes() == data
    assert list_damaged_references(tmp_path) == []
