"""Each view of the page in both widths and both schemes: nothing is cut off sideways, all text contrasts.

`SCREENSHOTS=DIR` keeps a picture of each.
"""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from state.log import EventLog
from tests.agentctl.page.browsing import CONTRASTS, EDGES, visit
from tests.agentctl.page.conftest import FORK, OTHER, RUN
from tests.agentctl.page.serving import serving
from tests.support import simulated_logs as recorded
from tests.support.sweeps import parametrize_sweep

pytestmark = [
    pytest.mark.needs("chromium", package="chromium"),
    parametrize_sweep("width", [1280, 400]),
    parametrize_sweep("scheme", ["light", "dark"]),
]

TABS = {
    "candidates": ".candidates tbody tr",
    "lineage": ".tree a",
    "beam": ".notes",
    "events": ".events li",
    "cost": ".shares",
    "health": ".panel table",
}
VERBS = ("Pause", "Set", "Propose", "Fork", "Cancel")


def check(found, name: str, width: int, scheme: str, *, least: int = 25) -> None:
    """Look at what shows now: contrasts by WCAG AA, and how wide it is."""
    found.shot(f"{name}-{width}-{scheme}")
    contrast = found.page.evaluate(CONTRASTS)
    assert contrast["poor"] == [], name
    assert contrast["seen"] > least, name
    assert found.page.evaluate("document.documentElement.scrollWidth") <= width, name
    assert found.page.evaluate(EDGES) == [], name


def test_a_run_and_its_parts_can_be_read(browser, steered, width, scheme):
    found = visit(browser, steered, width=width, scheme=scheme)
    page = found.open(f"#/run/{RUN}")
    for tab, sign in TABS.items():
        page.click(f"#tab-{tab}")
        page.wait_for_selector(sign)
        check(found, tab, width, scheme)
    page.click("#tab-candidates")
    page.locator("#moment").fill("60")
    page.wait_for_selector(".past .control p")
    expect(page.locator("#moment-said")).to_contain_text("60 of")
    check(found, "past", width, scheme)
    found.clean()


def test_a_kernel_can_be_read(browser, steered, width, scheme):
    found = visit(browser, steered, width=width, scheme=scheme)
    page = found.open(f"#/run/{RUN}")
    for name, at in (("best", ""), ("initial", "?at=60")):
        page.goto(f"{steered.origin}/#/run/{RUN}/kernel/{name}{at}")
        page.wait_for_selector(".kernel .code")
        page.locator("details").last.evaluate("(node) => { node.open = true; }")
        check(found, f"kernel-{name}", width, scheme)
    found.clean()


def test_two_runs_can_be_read(browser, steered, width, scheme):
    found = visit(browser, steered, width=width, scheme=scheme)
    page = found.open(f"#/run/{RUN}")
    for one, other in ((RUN, OTHER), (FORK, RUN)):
        page.goto(f"{steered.origin}/#/compare/{one}/{other}")
        page.wait_for_selector(f"main th a >> text={other}")
        check(found, f"compare-{one}", width, scheme)
    found.clean()


def test_forms_can_be_read(browser, steered, width, scheme):
    found = visit(browser, steered, width=width, scheme=scheme)
    page = found.open(f"#/run/{OTHER}")
    for verb in VERBS:
        page.locator(".bar-buttons").get_by_role("button", name=verb, exact=True).click()
        page.wait_for_selector(f".control form h3 >> text={verb}")
        check(found, f"form-{verb.lower()}", width, scheme)
    page.locator(".bar-buttons").get_by_role("button", name="Set", exact=True).click()
    page.get_by_label("Settings").fill("search.beam")
    page.locator(".control form button").click()
    expect(page.locator(".answer.bad")).to_contain_text("Refused")
    check(found, "form-refused", width, scheme)


def test_what_is_empty_says_why(browser, tmp_path, width, scheme):
    home = tmp_path / "home"
    home.mkdir()
    with serving(home, control=True) as served:
        found = visit(browser, served, width=width, scheme=scheme)
        found.page.goto(served.url)
        expect(found.page.locator("main")).to_contain_text("No run yet")
        check(found, "empty", width, scheme, least=5)
        world = recorded.world_of()
        with EventLog.open(home) as log:
            recorded.store(log, RUN, recorded.events_of(world), blobs=[*world.blobs.values()])
            expect(found.page.locator("h2 .pill")).to_have_text("queued")
        for tab in TABS:
            found.page.click(f"#tab-{tab}")
            expect(found.page.locator("[role=tabpanel]")).not_to_have_text("loading ...")
            assert len(found.page.locator("[role=tabpanel]").inner_text()) > 10, tab
            check(found, f"begun-{tab}", width, scheme)
