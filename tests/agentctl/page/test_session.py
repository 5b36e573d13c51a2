"""A kernel's session on the page: turns, tool calls, what they gave and cost; all of it bounded text."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import expect

from agentctl.page import dialogues
from state.events import KernelProposed
from state.log import EventLog
from state.reader import LogReader
from tests.agentctl.page.browsing import EDGES, visit
from tests.agentctl.page.serving import serving
from tests.daemon.calls import fake_models
from tests.daemon.calls.fake_models import LOOP, FakeProvider, answer_request
from tests.support import simulated_logs as recorded

LONG = "x" * (dialogues.MOST_CHARS + 1)
EVIL = f"{recorded.HOSTILE} {recorded.TRICKS}"


def script(request, delivery):
    """A model that tries two changes, submits both, and says and sends what means to do harm."""
    if not request.tools or any(tool.name == "submit_plans" for tool in request.tools):
        return answer_request(request, delivery)

    def change(name: str, old: int, new: int) -> dict:
        edit = {"find": f"{name} = {old}\n", "replace": f"{name} = {new}\n"}
        return {"source": "v0", "edits": [edit]}

    turns = [
        ("It may be the rows.", [("evaluate", change("TILE_K", 32, 64))]),
        (f"Now {EVIL}", [("evaluate", change("TILE_N", 64, 128)), ("lookup", {"query": EVIL, "more": True})]),
        (LONG, [("nothing_of_this_name", {EVIL: 1}), ("check", "no JSON " + EVIL)]),
        ("Both.", [("submit", {"source": "v2", "also": [{"version": "v1", "title": EVIL}]})]),
        *[("", [("give_up", {"reason": "another kernel"})])] * 4,
    ]
    text, calls = turns[len(request.dialogue)]
    sent = [(name, said if isinstance(said, str) else json.dumps(said)) for name, said in calls]
    return fake_models.complete_turn(request, text, sent)


@pytest.fixture(scope="module")
def session_home(tmp_path_factory):
    home = tmp_path_factory.mktemp("session") / "home"
    search, llm = LOOP.search, LOOP.llm.model_copy(update={"planner_form": "loop"})
    config = LOOP.model_copy(update={"search": search.model_copy(update={"rounds": 1}), "llm": llm})

    def finish() -> str:
        with EventLog.open(home) as log:
            return asyncio.run(fake_models.finish_run(log, FakeProvider(script), config))

    with ThreadPoolExecutor(1) as pool:  # the browser's loop may hold this thread
        return home, pool.submit(finish).result()


@pytest.fixture(scope="module")
def held(session_home):
    """The run, the first kernel of a session, and one that it submitted besides."""
    home, run = session_home
    with LogReader.open(home) as reader:
        events = [item.event for item in reader.read(stream=run, limit=10_000)]
    one = next(one for one in events if isinstance(one, KernelProposed) and one.beside is not None)
    return run, str(one.beside).rpartition(".")[0], one.key.rpartition(".")[0]


@pytest.fixture(scope="module")
def session_page(session_home):
    with serving(session_home[0]) as page:
        yield page


def test_a_session_comes_turn_by_turn_with_what_was_sent_and_answered(session_page, held):
    run, first, further = held
    found = session_page.get(f"/api/runs/{run}/kernels/{first}/session").json
    assert (found["kernel"], found["session"]["candidate"]) == (first, first)
    assert (found["session"]["reason"], found["session"]["turns_taken"]) == ("submitted", 4)
    assert [len(turn["calls"]) for turn in found["turns"]] == [1, 2, 2, 1]
    assert found["session"]["cost_usd"] == pytest.approx(sum(turn["cost_usd"] for turn in found["turns"]))
    evaluated = found["turns"][0]["calls"][0]
    assert (evaluated["tool"], evaluated["verdict"], evaluated["code"]) == ("evaluate", "correct", None)
    assert dict(evaluated["arguments"])["source"] == "v0"
    assert evaluated["latency_ms"] > 0
    besides = session_page.get(f"/api/runs/{run}/kernels/{further}/session").json
    assert (besides["kernel"], besides["session"]) == (further, found["session"])


def test_the_session_that_planned_a_kernel_comes_with_it(session_page, held):
    run, first, further = held
    found = session_page.get(f"/api/runs/{run}/kernels/{first}/session").json
    planning = found["planning"]
    assert planning["session"]["role"] == "planner_session"
    assert (planning["session"]["reason"], planning["left_out"]) == ("submitted", 0)
    assert [call["tool"] for turn in planning["turns"] for call in turn["calls"]][-1] == "submit_plans"
    assert not any(turn["text"].startswith("{") for turn in planning["turns"]), "prose, without the calls"
    besides = session_page.get(f"/api/runs/{run}/kernels/{further}/session").json
    assert besides["planning"] == planning
    initial = session_page.get(f"/api/runs/{run}/kernels/initial/session").json
    assert (initial["session"], initial["planning"]) == (None, None)


def test_texts_are_bounded_and_a_call_that_is_no_json_comes_as_it_is(session_page, held):
    run, first, _ = held
    turn = session_page.get(f"/api/runs/{run}/kernels/{first}/session").json["turns"][2]
    assert turn["text"].endswith(f"(cut: {len(LONG)} characters)")
    assert len(turn["text"]) < len(LONG) + 40
    unknown, unreadable = turn["calls"]
    assert unknown["code"] == "unknown_tool"
    assert [len(name) for name, _ in unknown["arguments"]] == [dialogues.MOST_NAME]
    assert unreadable["arguments"] == [["", f"no JSON {EVIL}"]]


def test_no_more_turns_are_sent_than_a_page_can_show(session_page, held, monkeypatch):
    run, first, _ = held
    monkeypatch.setattr(dialogues, "MOST_TURNS", 3)
    found = session_page.get(f"/api/runs/{run}/kernels/{first}/session").json
    assert (len(found["turns"]), found["left_out"], found["session"]["turns_taken"]) == (3, 1, 4)


def test_a_kernel_without_a_session_has_none_and_the_past_is_as_it_was(session_page, session_home, held):
    run, first, _ = held
    assert session_page.get(f"/api/runs/{run}/kernels/initial/session").json["session"] is None
    assert session_page.get(f"/api/runs/{run}/kernels/none/session").status == 404
    with LogReader.open(session_home[0]) as reader:
        events = reader.read(stream=run, limit=10_000)
    made = next(
        item.run_seq
        for item in events
        if isinstance(item.event, KernelProposed) and item.event.key.startswith(f"{first}.")
    )
    path = f"/api/runs/{run}/kernels/{first}/session"
    assert session_page.get(f"{path}?at={made - 1}").status == 404
    assert session_page.get(f"{path}?at={made}").json == session_page.get(path).json


@pytest.mark.needs("chromium", package="chromium")
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_a_session_is_read_as_a_dialogue_and_its_markup_is_text(browser, session_page, held, width, scheme):
    run, first, further = held
    found = visit(browser, session_page, width=width, scheme=scheme)
    page = found.open(f"#/run/{run}")
    page.goto(f"{session_page.origin}/#/run/{run}/kernel/{further}")
    planning, session = page.locator(".session").first, page.locator(".session").last
    expect(planning.get_by_role("heading", name="Planner's session")).to_be_visible()
    expect(planning.locator("summary", has_text="submit_plans").first).to_be_visible()
    expect(session.get_by_role("heading", name="Session", exact=True)).to_be_visible()
    expect(session.locator(".dialogue > li")).to_have_count(4)
    expect(session).to_contain_text(f"{fake_models.MODEL}: 4 of 8 turns")
    expect(session.locator("summary", has_text="evaluate").first).to_contain_text("correct")
    expect(session.locator("pre").first).to_be_hidden()
    session.locator("summary", has_text="lookup").click()
    expect(session.locator("details[open] pre").first).to_contain_text("window.harmed = 1")
    expect(session).to_contain_text("\\u202e")
    assert page.evaluate("window.harmed") is None
    assert page.locator("main img, main script").count() == 0
    assert page.evaluate(EDGES) == []
    found.shot(f"session-{width}-{scheme}")
    session.get_by_role("link", name=first).click()
    expect(page.locator("main h2")).to_have_text(f"Kernel {first}")
    expect(page.locator(".session")).to_have_count(2)
    expect(page.locator(".session").last).not_to_contain_text("besides.")
    found.clean()
