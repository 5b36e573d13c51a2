"""How fast the live page is on a long log: its first paint, what it takes to show an event, its memory.

    python benchmarks/page.py [--events 100000] [--home DIR] [--updates 30]

A run of that many events (`workload.py`) is written into the home, unless it is there already; then
`agentctl ui` serves it as a process of its own to a real Chromium, and this process appends events as the
owner of the home would. Times are what the browser's clock says; an update is from the moment at which an
append is durable until the page shows the event's number. Memory is what the page's own process takes
(proportional set size) and what its JavaScript holds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from playwright.sync_api import Page, sync_playwright

from state.log import EventLog
from state.reader import LogReader
from state.records import NewEvent
from tests.support.scripted_runs import ScriptedRun, Step

RUN = "matmul-000001"
CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking")
BATCH = 256
LIMITS = {"first_paint_ms": 1000, "update_ms": 200, "page_mib": 200}
"""What the page must stay under."""

WATCH = """
window.shownAt = {};
const note = (name) => { window.shownAt[name] ??= performance.now(); };
new MutationObserver(() => {
  if (document.querySelector(".figures dd")) note("figures");
  if (document.querySelector(".candidates tbody tr")) note("candidates");
  const said = document.getElementById("moment-said")?.textContent ?? "";
  const number = said.split(" ")[0].replaceAll(",", "");
  if (number) window.shownAt[`event ${number}`] ??= Date.now();
}).observe(document, { childList: true, subtree: true, characterData: true });
"""


def steps(events: int) -> Iterator[Step]:
    """Yield that many events of a run that does not end, and more for updates."""
    script = ScriptedRun(seed=1, rounds=1, slots=4, plans=4)
    yield from islice(_endless(script), events)


def _endless(script: ScriptedRun) -> Iterator[Step]:
    yield from script.beginning()
    for round_ in count(1):
        yield from script.round_steps(round_)


def fill(home: Path, events: int) -> None:
    """Write the run into the home, as far as it is not there."""
    with EventLog.open(home) as log:
        have = log.run_seq(RUN)
        rest = islice(steps(events), have, None)
        while batch := list(islice(rest, BATCH)):
            append(log, batch)
            print(f"\rwriting the log: {log.run_seq(RUN):,} of {events:,} events", end="", file=sys.stderr)
    print(file=sys.stderr)


def append(log: EventLog, batch: list[Step]) -> None:
    blobs = [blob for step in batch for blob in step.blobs]
    log.append_now([NewEvent(RUN, step.event) for step in batch], blobs=blobs)


@contextmanager
def serve_page(home: Path) -> Iterator[str]:
    """Serve the home's page by a process of its own; yield its address."""
    command = [sys.executable, "-m", "agentctl", "--home", str(home), "ui", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


def measure(home: Path, updates: int) -> dict[str, Any]:
    """Open the page, watch it through some updates, and say what it took."""
    with serve_page(home) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.add_init_script(WATCH)
        page.goto(url)
        page.wait_for_selector(".candidates tbody tr", timeout=60_000)
        first = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null")
        shown = page.evaluate("window.shownAt")
        took = list(_updates(home, page, updates))
        travelled = _travel(page)
        memory = _memory(browser.new_browser_cdp_session(), page)
        browser.close()
    return {
        "first_paint_ms": first,
        "figures_ms": shown["figures"],
        "candidates_ms": shown["candidates"],
        "update_ms": statistics.median(took),
        "slowest_update_ms": max(took),
        "travel_ms": travelled,
        **memory,
    }


def _updates(home: Path, page: Page, updates: int) -> Iterator[float]:
    """Append events one at a time; yield how long after each the page shows it."""
    with EventLog.open(home) as log:
        have = log.run_seq(RUN)
        for number, step in enumerate(islice(steps(have + updates), have, None), start=have + 1):
            append(log, [step])
            stored = time.time() * 1e3
            name = f"event {number}"
            while (at := page.evaluate("(name) => window.shownAt[name] ?? null", name)) is None:
                time.sleep(0.01)
            yield at - stored
            time.sleep(0.5)


def _travel(page: Page) -> float:
    """Go to the middle of the run; return how long until the figures of that moment are there."""
    last = int(page.evaluate("document.getElementById('moment').max"))
    return float(
        page.evaluate(
            """(at) => new Promise((done) => {
      const range = document.getElementById("moment");
      const began = performance.now();
      const said = () => document.getElementById("moment-said").textContent;
      const look = () => said().includes(": ") && range.value === at
        ? done(performance.now() - began) : requestAnimationFrame(look);
      range.value = at;
      range.dispatchEvent(new Event("input"));
      requestAnimationFrame(look);
    })""",
            str(last // 2),
        )
    )


def _memory(session: Any, page: Page) -> dict[str, float]:
    """Return what the page's process and its JavaScript hold, after a collection."""
    own = page.context.new_cdp_session(page)
    own.send("HeapProfiler.collectGarbage")
    own.send("Performance.enable")
    metrics = {one["name"]: one["value"] for one in own.send("Performance.getMetrics")["metrics"]}
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    pages = [one["id"] for one in processes if one["type"] == "renderer"]
    return {
        "page_mib": max(_pss_mib(pid) for pid in pages),
        "javascript_mib": metrics["JSHeapUsedSize"] / 2**20,
    }


def _pss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--home", type=Path, help="kept; default: a temporary one")
    parser.add_argument("--updates", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = options.home or Path(folder) / "home"
        fill(home, options.events)
        found = measure(home, options.updates)
        with LogReader.open(home) as reader:
            found |= {"events": reader.head.seq, "candidates": len(reader.attempt_rows(RUN))}
    found |= {"cpus": os.cpu_count()}
    for name, value in found.items():
        limit = LIMITS.get(name)
        told = f"{value:12.1f}" if isinstance(value, float) else f"{value:12,}"
        print(f"{name:20} {told}" + (f"   under {limit}" if limit else ""))
    return int(any(found[name] >= limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
