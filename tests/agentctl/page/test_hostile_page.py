"""The page of a run whose every word means to do harm: all of it is text, and what nobody sees is told."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from state.log import EventLog
from tests.agentctl.page.browsing import visit
from tests.agentctl.page.conftest import RUN
from tests.agentctl.page.serving import serving
from tests.support import simulated_logs as recorded

pytestmark = [pytest.mark.needs("chromium", package="chromium")]

TABS = {
    "candidates": ".candidates td",
    "lineage": ".tree a",
    "beam": ".notes li",
    "events": ".events li",
    "health": ".panel td",
}

UNSEEN = """() => [...document.body.innerText.matchAll(/[\\p{Cc}\\p{Cf}]/gu)].map(([mark]) => mark)
  .filter((mark) => mark !== "\\n" && mark !== "\\t").map((mark) => mark.codePointAt(0).toString(16))"""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    home = tmp_path_factory.mktemp("hostile") / "home"
    kernel = recorded.KERNEL.replace("# ", f"# {recorded.TRICKS} ", 1)
    world = recorded.world_of(kernel=kernel).finish()
    with EventLog.open(home) as log:
        events = recorded.spoilt(recorded.asking(world))
        recorded.store(log, RUN, events, blobs=[*world.blobs.values()])
    with serving(home, control=True) as page:
        yield page


def harmless(page) -> None:
    assert page.evaluate("window.harmed") is None
    assert page.locator("main img, main script, nav img").count() == 0
    assert page.evaluate(UNSEEN) == []


def test_every_part_shows_text(browser, hostile):
    found = visit(browser, hostile)
    page = found.open(f"#/run/{RUN}")
    for tab, sign in TABS.items():
        page.click(f"#tab-{tab}")
        page.wait_for_selector(sign)
        expect(page.locator("[role=tabpanel]")).to_contain_text("window.harmed = 1")
        harmless(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    page.locator("[role=tab]", has_text="Events").click()
    page.locator(".events summary", has_text="PlanProposed").first.click()
    expect(page.locator(".events pre").first).to_contain_text("\\u202e")
    harmless(page)
    found.clean()


def test_a_kernel_shows_text(browser, hostile):
    found = visit(browser, hostile, width=400)
    page = found.open(f"#/run/{RUN}")
    page.goto(f"{hostile.origin}/#/run/{RUN}/kernel/best")
    page.wait_for_selector(".kernel .code.two")
    expect(page.locator(".kernel")).to_contain_text("\\u202e\\u2066\\u001b[31;1m")
    harmless(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    found.clean()


def test_the_plot_tells_text(browser, hostile):
    found = visit(browser, hostile)
    page = found.open(f"#/run/{RUN}")
    page.locator(".plot canvas").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#plot-said")).to_contain_text("window.harmed")
    harmless(page)
    found.clean()
