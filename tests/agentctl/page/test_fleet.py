"""What the page says of hosts, forks, and of two runs; and who may steer by it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import expect

from daemon.inbox import waiting_commands
from state.reader import LogReader
from tests.agentctl.page.browsing import visit
from tests.agentctl.page.conftest import FORK, OTHER, RUN
from tests.agentctl.page.serving import serving
from tests.support import fakes
from tests.support import simulated_logs as recorded

pytestmark = [pytest.mark.needs("chromium", package="chromium")]


def test_forks_stand_below_what_they_continue(browser, steered):
    found = visit(browser, steered)
    page = found.open(f"#/run/{RUN}")
    expect(page.locator(".runs .name")).to_have_text([OTHER, RUN, FORK])
    fork = page.locator(".runs li.fork")
    expect(fork).to_have_count(1)
    expect(fork).to_contain_text(f"fork of {RUN}")
    left = "(node) => node.getBoundingClientRect().left"
    assert fork.evaluate(left) > page.locator(".runs li").nth(1).evaluate(left)
    fork.locator("a").click()
    expect(page.locator("main h2")).to_contain_text(FORK)
    expect(page.locator(".runs a[aria-current=page] .name")).to_have_text(FORK)
    found.clean()


def test_hosts_stand_as_they_were_last_heard_of(browser, steered):
    found = visit(browser, steered)
    page = found.open()
    now = page.locator("#now")
    for host, state, why in (
        ("trn-a", "up", "2 in flight"),
        ("trn-b", "resting", "it does not answer"),
        ("trn-c", "quarantined", f"1.4 times as slow {recorded.HOSTILE}"),
    ):
        line = now.locator("li", has_text=host)
        expect(line.locator(".pill")).to_have_text(state)
        expect(line).to_contain_text(why)
    expect(now.locator("li", has_text="house")).to_contain_text("18 of its last 22 answered")
    assert page.evaluate("window.harmed") is None
    found.clean()


def test_two_runs_beside_one_another_say_how_each_stands(browser, steered, busy_home):
    found = visit(browser, steered)
    page = found.open(f"#/run/{RUN}")
    page.goto(f"{steered.origin}/#/compare/{RUN}/{FORK}")
    table = page.locator("main table").first
    expect(table.locator("thead a")).to_have_text([RUN, FORK])
    with LogReader.open(busy_home) as reader:
        for place, run in enumerate((RUN, FORK)):
            best = reader.run_state(run).best.latency_ms
            cell = table.locator("tr", has_text="best").first.locator("td").nth(place)
            expect(cell).to_contain_text(f"{best:.4g} ms predicted")
    expect(page.locator("main figure .way")).to_have_count(2)
    expect(table.locator("tr", has_text="state")).to_contain_text("completed")
    page.select_option("#run-a", OTHER)
    page.wait_for_url(f"**/#/compare/{OTHER}/{FORK}")
    expect(table.locator("thead a")).to_have_text([OTHER, FORK])
    found.clean()


def test_a_form_becomes_a_command_with_its_origin_and_only_with_the_token(browser, tmp_path):
    """The page's own token is the difference: a tab that does not hold it has no forms, and is refused."""
    home = tmp_path / "home"
    with ThreadPoolExecutor() as elsewhere:  # the browser's driver has a loop in this thread
        run = elsewhere.submit(fakes.submit_run, home).result()
        elsewhere.submit(fakes.take_commands, home).result()
    with serving(home, control=True) as served:
        found = visit(browser, served)
        page = found.open(f"#/run/{run}")
        page.get_by_role("button", name="Pause").click()
        page.get_by_label("Reason").fill("lunch")
        page.locator(".control form button").click()
        expect(page.locator(".answer")).to_contain_text("Queued")
        (command,) = [json.loads(path.read_bytes()) for path in waiting_commands(home)]
        assert command == {"verb": "pause", "run": run, "reason": "lunch", "origin": "page"}
        found.clean()

        page.evaluate("sessionStorage.clear()")
        page.goto(f"{served.origin}/#/run/{run}")
        page.reload()
        expect(page.locator(".control")).to_contain_text("open the address that agentctl ui printed")
        expect(page.locator(".control button")).to_have_count(0)
        for token in ("", "guessed"):
            status = page.evaluate(
                """async (token) => (await fetch("/api/control", {method: "POST",
                headers: {"content-type": "application/json", "x-token": token},
                body: JSON.stringify({verb: "cancel", run: "x"})})).status""",
                token,
            )
            assert status == 403
        assert len(waiting_commands(home)) == 1
