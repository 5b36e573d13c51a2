"""The page in a real browser: what it shows is what the log says, by mouse and by keyboard, now and then."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import expect

from agentctl.views.run_at_event import run_at_event
from state.log import EventLog
from state.reader import LogReader
from tests.agentctl.page.browsing import PAINTED, visit
from tests.agentctl.page.conftest import OTHER, RUN
from tests.agentctl.page.serving import serving
from tests.support import fakes
from tests.support import simulated_logs as recorded
from tests.support.world import small

pytestmark = [
    pytest.mark.needs("chromium", package="chromium"),
]


@pytest.fixture(scope="module")
def reader(recorded_home):
    with LogReader.open(recorded_home) as found:
        yield found


def test_a_run_proceeds_before_one_s_eyes(browser, tmp_path):
    home, world = tmp_path / "home", recorded.world_of().finish()
    events = recorded.events_of(world)
    with EventLog.open(home) as log:
        recorded.store(log, RUN, events[:60], blobs=[*world.blobs.values()])
        with serving(home) as served:
            found = visit(browser, served)
            page = found.open()
            expect(page.locator("#live")).to_have_text("live")
            expect(page.locator("h2 .pill")).to_have_text("running")
            page.click("#tab-events")
            for upto in (61, 150, len(events)):
                recorded.store(log, RUN, events[log.run_seq(RUN) : upto])
                expect(page.locator("#moment-said")).to_contain_text(f"{upto} of {upto}")
                expect(page.locator(".events li").first).to_contain_text(f"{RUN}@{upto}")
            expect(page.locator("h2 .pill")).to_have_text("completed")
            expect(page.locator(".runs .pill")).to_have_text("completed")
            page.click("#tab-candidates")
            rows = len(LogReader.open(home).attempt_rows(RUN))
            expect(page.locator("[role=tabpanel] [role=status]")).to_contain_text(f"{rows} candidates")
            found.clean()
            assert page.evaluate(PAINTED, page.query_selector(".plot canvas")) > 5
        expect(page.locator("#live")).to_have_text("reconnecting")


def test_a_best_latency_below_the_model_bound_has_a_note(browser, tmp_path):
    world = recorded.world_of(small(rounds=1), tight_ms=1000)
    judge = world.judge

    def measure(source):
        found = judge(source)
        benchmark = found.benchmark and found.benchmark.model_copy(update={"predicted": False})
        return found.model_copy(update={"benchmark": benchmark})

    world.judge = measure
    recorded.record(tmp_path / "home", {RUN: world.finish()})
    with serving(tmp_path / "home") as served:
        found = visit(browser, served)
        figure = found.open().locator(".figures > div", has_text="of the model bound")
        expect(figure).to_contain_text("the device is faster than the constants of the model")
        found.clean()


def test_any_moment_can_be_looked_at(browser, served, reader):
    found = visit(browser, served)
    page = found.open(f"#/run/{RUN}")
    last = run_at_event(reader, RUN).of
    for at in (last // 2, last // 4):
        page.locator("#moment").fill(str(at))
        then = run_at_event(reader, RUN, at=at)
        expect(page.locator("#moment-said")).to_contain_text(f"{at} of {last}: {then.type}")
        expect(page.locator("#moment-said")).to_contain_text("the past")
        rows = reader.attempt_rows(RUN, upto=at)
        expect(page.locator("[role=tabpanel] [role=status]")).to_contain_text(f"{len(rows)} candidate")
        expect(page.locator(".candidates tbody tr")).to_have_count(min(50, len(rows)))
        figure = page.locator(".figures > div", has_text="round").last
        expect(figure).to_contain_text(f"{then.run.round} of {then.run.rounds}")
        expect(page).to_have_url(re.compile(rf"at={at}\b"))
    page.click("#tab-events")
    expect(page.locator(".events li").first).to_contain_text(f"{RUN}@{last // 4} ")
    page.reload()
    expect(page.locator("#moment-said")).to_contain_text(f"{last // 4} of {last}")
    page.get_by_role("button", name="One event ahead").click()
    expect(page.locator("#moment-said")).to_contain_text(f"{last // 4 + 1} of {last}: ")
    page.get_by_role("button", name="Now", exact=True).click()
    expect(page.locator("#moment-said")).to_contain_text(f"{last} of {last}: RunCompleted")
    expect(page).not_to_have_url(re.compile("at="))
    found.clean()


def test_candidates_and_events_are_filtered(browser, served, reader):
    found = visit(browser, served)
    page = found.open(f"#/run/{RUN}")
    rows = reader.attempt_rows(RUN)
    kept = [row for row in rows if row["decision"] == "kept"]
    status = page.locator("[role=tabpanel] [role=status]")
    page.select_option("#which", "kept")
    expect(status).to_contain_text(f"{len(kept)} candidate")
    page.select_option("#order", "fastest")
    first = min(kept, key=lambda row: row["latency_ms"])
    expect(page.locator(".candidates tbody tr").first).to_contain_text(f"{first['latency_ms']:.4g} ms")
    page.select_option("#which", "all")
    page.fill("#with", "BUFFERS")
    wanted = [row for row in rows if "BUFFERS" in str(row["title"]) and row["verdict"] == "correct"]
    expect(status).to_contain_text(f"{len(wanted)} candidate")
    page.click("#tab-lineage")
    expect(page.locator(".tree a")).to_have_count(len(kept))
    page.click("#tab-events")
    page.select_option("#family", "round")
    expect(page.locator(".events .f-round").first).to_be_visible()
    expect(page.locator(".events .family:not(.f-round)")).to_have_count(0)
    page.fill("#text", "RoundStarted")
    started = reader.run_state(RUN).round
    expect(page.locator(".events li")).to_have_count(started)
    page.locator(".events summary").first.click()
    expect(page.locator(".events pre").first).to_contain_text('"slots"')
    found.clean()


def test_a_kernel_is_explained_and_its_markup_is_text(browser, served, reader):
    found = visit(browser, served)
    page = found.open(f"#/run/{RUN}")
    best = reader.run_state(RUN).best
    page.goto(f"{served.origin}/#/run/{RUN}/kernel/best")
    expect(page.locator("main h2")).to_have_text(f"Kernel {best.id}")
    page.wait_for_selector(".code.two")
    expect(page.locator(".kernel > .code, .kernel section > .code").last).to_contain_text(recorded.HOSTILE)
    assert page.evaluate("window.harmed") is None
    assert page.locator("main img, main script").count() == 0
    expect(page.locator(".added .text").first).to_contain_text(" = ")
    expect(page.locator(".removed .sign").first).to_have_text("-")
    page.select_option("#against", "initial")
    expect(page.locator(".code.two")).to_have_attribute(
        "aria-label", f"What changed from r0.b0.p0.k0.f0 to {best.id}"
    )
    expect(page.get_by_role("heading", name="Engine timeline (predicted)")).to_be_visible()
    assert page.locator(".drawn-timeline rect:not(.lane)").count() > 8
    assert page.locator(".drawn-roofline .point").count() == 2
    assert page.locator(".drawn-engine_roofs .disc").count() == 2
    assert page.locator(".drawn-engines rect").count() == 2 * 5
    expect(page.locator("text", has_text="HBM bandwidth")).to_have_count(1)
    expect(page.locator("table", has_text="before the end")).to_contain_text("whole")
    found.clean()


def test_two_runs_are_compared(browser, served, reader):
    found = visit(browser, served)
    page = found.open(f"#/run/{RUN}")
    page.get_by_text("Compare with another run").click()
    expect(page.locator(".way")).to_have_count(2)
    best = reader.run_state(OTHER).best.latency_ms
    expect(page.locator("main")).to_contain_text(f"{OTHER}: {best:.4g} ms at best")
    page.select_option("#run-b", RUN)
    page.wait_for_url(f"**/#/compare/{RUN}/{RUN}")
    expect(page.locator("main")).to_contain_text("Their settings are the same.")
    found.clean()


def test_a_latency_below_the_model_bound_is_explained(browser, tmp_path):
    runs = {RUN: recorded.world_of(tight_ms=50.0).finish(), OTHER: recorded.world_of(order=7).finish()}
    recorded.record(tmp_path / "home", runs)
    with serving(tmp_path / "home") as low:
        found = visit(browser, low)
        page = found.open(f"#/run/{RUN}")
        expect(page.locator("main")).to_contain_text("impossible: ")
        page.goto(f"{low.origin}/#/compare/{RUN}/{OTHER}")
        cells = page.locator("tr", has_text="of the model bound").locator("td")
        low_cell, other_cell = cells.nth(-2), cells.nth(-1)
        expect(low_cell).to_contain_text("impossible: ")
        expect(low_cell).to_contain_text("the model, the bound or the log is at fault")
        expect(other_cell).not_to_contain_text("impossible")
        found.clean()


def test_the_keyboard_is_enough(browser, served, reader):
    """From the address bar to a kernel and back, and through time, without a mouse."""
    found = visit(browser, served)
    page = found.open(f"#/run/{RUN}")
    press, focus = page.keyboard.press, "document.activeElement"
    press("Tab")
    assert page.evaluate(f"{focus}.textContent") == "Skip to the run"
    press("Enter")
    assert page.evaluate(f"{focus}.id") == "main"

    def reach(what: str) -> None:
        for _ in range(60):
            if page.evaluate(f"{focus}.matches({what!r})"):
                outline = page.evaluate(f"getComputedStyle({focus}).outlineStyle")
                assert outline != "none", f"nothing shows that {what} has the focus"
                return
            press("Tab")
        raise AssertionError(f"{what} cannot be reached by Tab")

    last = run_at_event(reader, RUN).of
    reach("#moment")
    press("ArrowLeft")
    expect(page.locator("#moment-said")).to_contain_text(f"{last - 1} of {last}: ")
    press("End")
    expect(page.locator("#moment-said")).to_contain_text(f"{last} of {last}: ")
    reach(".plot canvas")
    press("ArrowRight")
    expect(page.locator("#plot-said")).to_contain_text("r0.b0.p0.k0.f0")
    press("End")
    press("ArrowLeft")
    name = page.locator("#plot-said").inner_text().split(",")[0]
    reach("[role=tab]")
    press("ArrowRight")
    expect(page.locator("[role=tab][aria-selected=true]")).to_have_text("Lineage")
    press("ArrowLeft")
    reach("#which")
    press("k")
    expect(page.locator("#which")).to_have_value("kept")
    reach(".candidates a")
    press("Enter")
    page.wait_for_selector(".kernel .code")
    expect(page.locator("h2:focus")).to_have_count(1)
    assert name.startswith("r")
    press("Shift+Tab")
    press("Enter")
    expect(page.locator("main h2")).to_contain_text(RUN)
    found.clean()


@pytest.mark.slow
def test_a_run_is_steered_and_the_answers_are_the_log_s(browser, tmp_path):
    home = tmp_path / "home"
    recorded.record(home, {RUN: recorded.world_of().finish(until=lambda state: state.round == 2)})
    with serving(home, control=True) as served:
        found = visit(browser, served)
        page = found.open()
        page.get_by_role("button", name="Set", exact=True).click()
        page.get_by_label("Settings").fill("search.rounds=many")
        page.locator(".control form button").click()
        expect(page.locator(".answer")).to_contain_text('Refused: search.rounds = "many"')
        found.said.clear()  # the browser tells of each answer that is no success
        page.get_by_label("Settings").fill("search.rounds=9")
        page.locator(".control form button").click()
        expect(page.locator(".answer")).to_contain_text("Queued: nobody owns this home")
        page.get_by_role("button", name="Pause").click()
        page.get_by_label("Reason").fill("<b>lunch</b>")
        page.locator(".control form button").click()
        expect(page.locator(".answer")).to_contain_text("Queued")
        with ThreadPoolExecutor() as elsewhere:  # the browser's driver has a loop in this thread
            elsewhere.submit(fakes.take_commands, home).result()
        expect(page.locator("h2 .pill")).to_have_text("paused")
        expect(page.locator("#now")).to_contain_text("<b>lunch</b>")
        expect(page.locator("#now code")).to_contain_text(f"resume --home {home} {RUN}")
        found.clean()
    with LogReader.open(home) as reader:
        received = [item.event for item in reader.read(stream="system", types=("CommandReceived",))]
        assert [(one.verb, one.origin) for one in received] == [("set", "page"), ("pause", "page")]
        state = reader.run_state(RUN)
        assert (state.status_reason, state.pending_config.search.rounds) == ("<b>lunch</b>", 9)


def test_a_page_that_only_looks_has_no_forms_to_steer(browser, served):
    found = visit(browser, served)
    page = found.open(f"#/run/{RUN}")
    assert page.locator(".control").count() == 0
    answer = page.evaluate(
        """async () => (await fetch("/api/control", {method: "POST", body: "{}",
        headers: {"content-type": "application/json", "x-token": sessionStorage.getItem("token")}})).json()"""
    )
    assert answer["error"]["code"] == "read_only"
