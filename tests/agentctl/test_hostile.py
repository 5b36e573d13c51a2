"""What models, kernels, people and hosts write means to do harm: nowhere is it more than text.

A run whose every word holds markup for browsers and Markdown, codes for terminals, and marks that turn text
around, in each place that shows it.
"""

from __future__ import annotations

import re
import unicodedata

import pytest

from state.log import EventLog
from tests.agentctl.reports.test_markdown import outside
from tests.agentctl.verbs.test_paint import on_a_terminal
from tests.support import simulated_logs as recorded

RUN = "toy-a1b2c3"
EVENTS = recorded.asking(recorded.world_of().finish())
PLANNED = next(place for place, event in enumerate(EVENTS, 1) if event.type == "PlanProposed")
KERNEL = recorded.KERNEL.replace("# ", f"# {recorded.TRICKS} ", 1)
COLOUR = re.compile(r"\x1b\[(0|1|3[0-7]|90)m")
"""Our own."""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    found = tmp_path_factory.mktemp("hostile") / "home"
    world = recorded.world_of(kernel=KERNEL).finish()
    with EventLog.open(found) as log:
        events = recorded.spoilt(recorded.asking(world))
        recorded.store(log, RUN, events, blobs=[*world.blobs.values()])
    return found


def hidden(text: str) -> set[str]:
    """What of a text nobody sees, but for the ends of lines and tabs."""
    return {ascii(mark) for mark in text if mark not in "\n\t" and unicodedata.category(mark) in ("Cc", "Cf")}


@pytest.mark.parametrize(
    "words",
    [
        ("tail", "-n", "400"),
        ("show", RUN, "best"),
        ("show", RUN, "initial", "--what", "source"),
        ("show", f"{RUN}@{PLANNED}"),
        ("why", RUN, "best"),
        ("tree", RUN),
        ("diff", RUN, "initial", "best"),
        ("report", RUN),
    ],
    ids=" ".join,
)
def test_a_terminal_shows_text_and_our_colours(home, words):
    """Of what is written, all that is not seen is ours: no cursor moves, no title changes, no line turns."""
    shown = on_a_terminal(home, *words).replace("\r\n", "\n")
    assert "harmed" in shown
    assert hidden(COLOUR.sub("", shown)) == set()


def test_markdown_has_it_in_code_and_keeps_its_tables(home, tmp_path, ctl):
    called = ctl("report", RUN, "-o", tmp_path / "r.md", home=home)
    assert called.status == 0, called.err
    text = (tmp_path / "r.md").read_text()
    assert hidden(text) == set()
    rest = outside(text)
    for trick in ("evil.test", "@somebody", "<script", "<img", "harmed"):
        assert trick in text
        assert trick not in rest
    unfenced = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    tables = re.findall(r"(?:^\|.*\|\n)+", unfenced, flags=re.MULTILINE)
    assert len(tables) > 3
    for table in tables:
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(cells) == 1, table


@pytest.mark.slow
@pytest.mark.needs("chromium", package="chromium")
def test_a_report_runs_and_loads_nothing(home, tmp_path, ctl):
    from playwright.sync_api import sync_playwright

    called = ctl("report", RUN, "-o", tmp_path / "r.html", home=home)
    assert called.status == 0, called.err
    text = (tmp_path / "r.html").read_text()
    assert hidden(text) == set()
    asked: list[str] = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto((tmp_path / "r.html").as_uri())
        assert page.evaluate("window.harmed") is None
        assert page.locator("script, img").count() == 0
        assert recorded.HOSTILE in page.locator("body").inner_text()
        browser.close()
    assert asked == [(tmp_path / "r.html").as_uri()]
