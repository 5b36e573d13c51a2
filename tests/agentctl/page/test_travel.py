"""The slider through a run's events: every part of the page is as of the event that it stands at."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from agentctl.views.health import run_health
from agentctl.views.run_at_event import run_at_event
from agentctl.views.spending import load_spending
from state.log import EventLog
from state.reader import LogReader
from tests.agentctl.page.browsing import visit
from tests.agentctl.page.conftest import FORK, RUN
from tests.agentctl.page.serving import serving
from tests.support import simulated_logs as recorded

pytestmark = [pytest.mark.needs("chromium", package="chromium")]


@pytest.fixture(scope="module")
def reader(busy_home):
    with LogReader.open(busy_home) as found:
        yield found


def places(reader) -> tuple[int, int, int]:
    """Early, in the middle, and the last event."""
    last = run_at_event(reader, RUN).of
    return last // 6, last // 2, last


@pytest.mark.slow
def test_every_part_is_of_the_moment(browser, steered, reader):
    found = visit(browser, steered)
    page = found.open(f"#/run/{RUN}")
    panel = page.locator("[role=tabpanel]")
    for at in places(reader):
        page.locator("#moment").fill(str(at))
        then, rows = run_at_event(reader, RUN, at=at), reader.attempt_rows(RUN, upto=at)
        expect(page.locator("#moment-said")).to_contain_text(f"{at} of ")
        expect(page.locator(".figures > div", has_text="judged")).to_contain_text(str(then.run.evaluated))
        page.click("#tab-candidates")
        expect(panel.locator("[role=status]")).to_contain_text(f"{len(rows)} candidate")
        page.click("#tab-lineage")
        kept = {row["candidate"] for row in rows if row["decision"] == "kept"}
        expect(page.locator(".tree a")).to_have_count(len(kept))
        expect(panel).to_contain_text("the best")
        page.click("#tab-beam")
        expect(panel.locator("section").first.locator("tbody tr")).to_have_count(len(then.beam))
        page.click("#tab-events")
        expect(page.locator(".events li").first).to_contain_text(f"{RUN}@{at} ")
        page.click("#tab-cost")
        spent = load_spending(reader, RUN, at=at)
        expect(panel).to_contain_text(f"${spent.usd:.2f}; {spent.calls} call")
        tokens = sum(one.input_tokens for one in spent.spent)
        expect(panel.locator("tbody").first).to_contain_text(f"{tokens:,}")
        page.click("#tab-health")
        (house,) = run_health(reader, RUN, at=at).providers
        expect(panel).to_contain_text(f"{house.calls - house.failed} of {house.calls}")
        expect(panel.locator("table").last.locator("tbody tr")).to_have_count(
            len(run_health(reader, RUN, at=at).troubles)
        )
    found.clean()


@pytest.mark.slow
def test_parts_that_show_follow_the_slider(browser, steered, reader):
    """Without another click: what is open is drawn again for each moment, and for now."""
    found = visit(browser, steered)
    early, middle, last = places(reader)
    page = found.open(f"#/run/{RUN}?tab=cost")
    panel = page.locator("[role=tabpanel]")
    for at in (middle, early, last):
        page.locator("#moment").fill(str(at))
        spent = load_spending(reader, RUN, at=at)
        expect(panel).to_contain_text(f"${spent.usd:.2f}; {spent.calls} call")
    page.click("#tab-health")
    for at in (early, middle):
        page.locator("#moment").fill(str(at))
        (house,) = run_health(reader, RUN, at=at).providers
        expect(panel).to_contain_text(f"{house.calls - house.failed} of {house.calls}")
    found.clean()


@pytest.mark.slow
def test_cost_and_health_follow_a_run_that_proceeds(browser, tmp_path):
    home, world = tmp_path / "home", recorded.world_of().finish()
    events = recorded.asking(world)
    with EventLog.open(home) as log:
        recorded.store(log, RUN, events[:60], blobs=[*world.blobs.values()])
        with serving(home) as served:
            found = visit(browser, served)
            page = found.open(f"#/run/{RUN}?tab=cost")
            panel = page.locator("[role=tabpanel]")
            for upto in (150, len(events)):
                recorded.store(log, RUN, events[log.run_seq(RUN) : upto])
                with LogReader.open(home) as now:
                    spent, (house,) = load_spending(now, RUN), run_health(now, RUN).providers
                if upto < len(events):  # without a click: the feed alone renews what shows
                    expect(panel).to_contain_text(f"${spent.usd:.2f}; {spent.calls} calls")
                    page.click("#tab-health")
                expect(panel).to_contain_text(f"{house.calls - house.failed} of {house.calls}")
            found.clean()


@pytest.mark.slow
def test_a_kernel_is_as_it_was_then(browser, steered, reader):
    """Opened from the past, a kernel has the verdicts of then, and its links stay there."""
    found = visit(browser, steered)
    rows = reader.attempt_rows(RUN)
    later = next(row for row in rows if row["decision"] == "kept" and row["round"] == 2)
    at = later["judged_at"]
    page = found.open(f"#/run/{RUN}?at={at}&tab=candidates")
    name = later["candidate"]
    page.locator(".candidates a", has_text=name).click()
    expect(page.locator("main h2")).to_have_text(f"Kernel {name}")
    expect(page.locator(".then")).to_contain_text(f"As it was after event {at}")
    assert page.url.endswith(f"kernel/{name}?at={at}")
    facts = page.locator(".kernel .facts")
    expect(facts).to_contain_text("correct, undecided")
    page.get_by_text("As it is now").click()
    expect(facts).to_contain_text("kept")
    expect(page.locator(".then")).to_have_count(0)
    page.go_back()
    expect(facts).to_contain_text("correct, undecided")
    page.locator(".facts a", has_text=later["parent"]).first.click()
    expect(page.locator("main h2")).to_have_text(f"Kernel {later['parent']}")
    page.locator("[data-key=back]").click()
    expect(page.locator("#moment-said")).to_contain_text(f"{at} of ")
    found.clean()


def test_the_slider_is_told_and_moved_by_keys(browser, steered, reader):
    found = visit(browser, steered)
    page = found.open(f"#/run/{RUN}")
    last = run_at_event(reader, RUN).of
    slider = page.get_by_role("slider", name="Event")
    slider.focus()
    for key, at in (("Home", 1), ("ArrowRight", 2), ("ArrowUp", 3), ("ArrowLeft", 2), ("End", last)):
        page.keyboard.press(key)
        said = f"{at:,} of {last:,}: {run_at_event(reader, RUN, at=at).type}"
        expect(page.locator("#moment-said")).to_contain_text(said)
        told = slider.get_attribute("aria-valuetext")
        assert told.startswith(said)
        assert told.endswith("; the past") is (at != last)
        assert slider.input_value() == str(at)
    page.keyboard.press("PageDown")
    expect(page.locator("#moment-said")).to_contain_text("the past")
    assert int(slider.input_value()) < last - 10
    found.clean()


@pytest.mark.slow
def test_from_the_past_a_run_can_only_be_forked(browser, steered, reader):
    """The form has the event that is looked at, also after the slider has moved on."""
    found = visit(browser, steered)
    page = found.open(f"#/run/{FORK}")
    expect(page.locator(".bar-buttons button")).to_have_text(["Pause", "Set", "Propose", "Fork", "Cancel"])
    page.locator("#moment").fill("20")
    expect(page.locator(".bar-buttons button")).to_have_text(["Fork"])
    page.get_by_role("button", name="Fork").click()
    expect(page.get_by_label("From its event number")).to_have_value("20")
    page.locator("#moment").fill("31")
    expect(page.get_by_label("From its event number")).to_have_value("31")
    page.get_by_role("button", name="Now", exact=True).click()
    expect(page.get_by_label("From its event number")).to_have_value("")
    expect(page.locator(".bar-buttons button")).to_have_count(5)
    found.clean()
