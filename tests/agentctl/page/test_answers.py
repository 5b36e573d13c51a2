"""What the page can ask: answers are the views of the log, and what cannot be asked is refused in words."""

from __future__ import annotations

import asyncio
import json

import pytest

from agentctl.page.event_list import PAGE
from agentctl.page.feed import Feed
from agentctl.page.following_reader import FollowingReader
from agentctl.page.json_responses import ViewResponse
from agentctl.views import as_json
from agentctl.views.run_at_event import run_at_event
from agentctl.views.series import candidate_series
from state.home import HomeLayout
from state.log import EventLog
from state.reader import LogReader
from tests.agentctl.page.conftest import OTHER, RUN
from tests.agentctl.page.serving import serving
from tests.support import simulated_logs as recorded


@pytest.fixture(scope="module")
def reader(recorded_home):
    with LogReader.open(recorded_home) as found:
        yield found


def plain(view):
    return json.loads(json.dumps(as_json(view)))


def test_the_home_says_what_there_is_and_what_to_do(served, recorded_home):
    home = served.get("/api/home").json
    assert [run["id"] for run in home["overview"]["runs"]] == [OTHER, RUN]
    assert home["overview"]["daemon"]["state"] == "stopped"
    assert (home["control"], home["waiting"], home["remedies"]) == (False, [], [])


def test_a_run_that_nobody_drives_gets_a_command_with_its_home(tmp_path):
    home = tmp_path / "home"
    world = recorded.world_of().finish(until=lambda state: state.round == 2)
    recorded.record(home, {RUN: world})
    with serving(home) as page:
        found = page.get("/api/home").json
    (remedy,) = found["remedies"]
    assert remedy["command"].endswith(f"resume --home {home} {RUN}")


def test_views_come_as_they_are(served, reader):
    assert served.get(f"/api/runs/{RUN}/series").json == plain(candidate_series(reader, RUN))
    assert served.get(f"/api/runs/{RUN}/series?at=40").json == plain(candidate_series(reader, RUN, at=40))
    assert served.get(f"/api/runs/{RUN}/moment?at=40").json == plain(run_at_event(reader, RUN, at=40))
    now = served.get(f"/api/runs/{RUN}/moment").json
    assert now["run"]["state"] == "completed"
    assert served.get(f"/api/runs/{RUN}/series?since={now['of']}").json["rows"] == []
    assert served.get(f"/api/runs/{RUN}/spending").json["figure"] is None  # no model was asked


def test_a_kernel_s_page_has_its_source_as_text_and_its_profile(served, reader):
    found = served.get(f"/api/runs/{RUN}/kernels/best").json
    text = "\n".join("".join(piece for _, piece in line) for line in found["lines"])
    assert text == found["candidate"]["source"]
    assert recorded.HOSTILE in text
    assert found["roofline"]["side"] == "compute"
    assert found["timeline"]["predicted"] is True
    assert found["candidate"]["id"] == reader.run_state(RUN).best.id


def test_a_comparison_leads_from_one_source_to_the_other(served):
    found = served.get(f"/api/runs/{RUN}/diff?a=initial&b=best").json
    assert found["added"] == found["removed"] > 0
    old, new = (
        served.get(f"/api/runs/{RUN}/kernels/{name}").json["candidate"]["source"].split("\n")
        for name in ("initial", "best")
    )
    for line in found["lines"]:
        text = "".join(piece for _, piece in line["pieces"])
        assert line["kind"] == "~" or text == (
            old[line["a"] - 1] if line["kind"] == "-" else new[line["b"] - 1]
        )
    assert sum(line["kind"] != "+" for line in found["lines"] if line["kind"] != "~") + sum(
        line["skipped"] for line in found["lines"]
    ) == len(old)


def test_events_are_found_by_run_family_text_and_place(served, reader):
    newest = served.get("/api/events").json
    assert len(newest["lines"]) == PAGE
    assert newest["lines"][0]["seq"] == reader.head.seq
    older = served.get(f"/api/events?before={newest['before']}").json
    assert older["lines"][0]["seq"] == newest["lines"][-1]["seq"] - 1
    kept = served.get(f"/api/events?run={RUN}&types=KernelKept,round").json["lines"]
    assert {line["type"] for line in kept} == {"KernelKept", "RoundStarted", "BeamSelected", "RoundCompleted"}
    assert {line["run"] for line in kept} == {RUN}
    some = served.get(f"/api/events?run={RUN}&text=BUFFERS").json
    assert some["lines"]
    assert all("BUFFERS" in line["text"] for line in some["lines"])
    assert some["before"] is None
    upto = kept[1]["seq"]
    past = served.get(f"/api/events?run={RUN}&types=KernelKept,round&before={upto + 1}").json["lines"]
    assert past == kept[1:]
    last = served.get(f"/api/events?run={RUN}&after={kept[0]['seq']}").json["lines"]
    assert all(line["seq"] > kept[0]["seq"] for line in last)


def test_an_event_opens_to_all_that_it_says(served, reader):
    item = next(one for one in reader.read(stream=RUN, types=("KernelProposed",)) if one.run_seq > 10)
    found = served.get(f"/api/events/{RUN}/{item.run_seq}").json
    assert found["event"] == item.event.model_dump(mode="json")
    assert recorded.HOSTILE in found["blobs"][item.event.source]


def test_two_runs_stand_beside_one_another(served):
    found = served.get(f"/api/compare?a={RUN}&b={OTHER}").json
    assert (found["a"]["run"]["id"], found["b"]["run"]["id"]) == (RUN, OTHER)
    assert found["settings"] == {}


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        (f"/api/runs/{RUN}x/series", 404, "unknown_run"),
        (f"/api/runs/{RUN}/moment?at=99999", 404, "unknown_event"),
        (f"/api/runs/{RUN}/moment?at=-1", 400, "bad_request"),
        (f"/api/runs/{RUN}/series?at=1e9", 400, "bad_request"),
        (f"/api/runs/{RUN}/kernels/r9.b9.p9.k9.f9", 404, "unknown_candidate"),
        (f"/api/runs/{RUN}/diff?a=initial&b=%3Cb%3E", 404, "unknown_candidate"),
        ("/api/events?types=nothing", 400, "bad_request"),
        ("/api/events?run=nobody", 404, "stream_unknown"),
        (f"/api/events?text={'x' * 201}", 400, "bad_request"),
        (f"/api/events/{RUN}/0", 400, "bad_request"),
        (f"/api/events/{RUN}/99999", 404, "unknown_event"),
        (f"/api/compare?a={RUN}&b=nobody", 404, "unknown_run"),
    ],
)
def test_what_there_is_not_is_said(served, path, status, code):
    reply = served.get(path)
    assert (reply.status, reply.code) == (status, code)
    assert reply.headers["content-type"] == "application/json"


def test_a_home_without_a_log_is_shown_until_there_is_one(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    with serving(home) as page:
        assert page.get("/api/home").json["overview"]["runs"] == []
        assert page.get(f"/api/runs/{RUN}/series").code == "no_log"
        recorded.record(home, {RUN: recorded.world_of().finish()})
        assert [run["id"] for run in page.get("/api/home").json["overview"]["runs"]] == [RUN]


def test_numbers_that_json_cannot_spell_are_null():
    assert ViewResponse({"a": [float("nan"), 1.5, float("inf")]}).body == b'{"a":[null,1.5,null]}'


def test_a_following_reader_says_what_any_reader_says(tmp_path):
    home = tmp_path / "home"
    world = recorded.world_of().finish()
    events = recorded.events_of(world)
    with EventLog.open(home) as log:
        recorded.store(log, RUN, events[:20], blobs=[*world.blobs.values()])
        with FollowingReader.open(home) as following, LogReader.open(home) as reader:
            for first in range(20, len(events), 40):
                assert following.run_state(RUN) == reader.run_state(RUN)
                recorded.store(log, RUN, events[first : first + 40])
            assert following.run_state(RUN) == reader.run_state(RUN)
            assert following.run_state(RUN, 25) == reader.run_state(RUN, 25)


def test_a_following_reader_notices_that_the_log_is_another(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    recorded.record(one, {RUN: recorded.world_of().finish()})
    recorded.record(other, {RUN: recorded.world_of(order=3).finish(until=lambda state: state.round == 2)})
    with FollowingReader.open(one) as following:
        before = following.run_state(RUN)
        for name in ("events.db", "events.db-wal", "events.db-shm"):
            (one / name).unlink(missing_ok=True)
        HomeLayout(other).database.rename(one / "events.db")
        after = following.run_state(RUN)
    assert before.has_ended
    assert not after.has_ended


async def test_the_feed_tells_of_each_change_and_ends_when_it_is_closed():
    seqs = [3]
    feed = Feed(lambda: seqs[0])
    told = []

    async def listener():
        async for message in feed.listen():
            told.extend([json.loads(message[6:])["seq"]] if message.startswith(b"data: ") else [])

    listening = [asyncio.create_task(listener()) for _ in range(3)]

    async def until(seq: int) -> None:
        async with asyncio.timeout(60):
            while told.count(seq) < 3:  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.01)

    await until(3)
    seqs[0] = 9
    await until(9)
    feed.close()
    async with asyncio.timeout(60):
        await asyncio.gather(*listening)
    assert told[-3:] == [9, 9, 9]
