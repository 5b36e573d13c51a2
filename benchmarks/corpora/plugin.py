"""The pytest plugin of `suites`: a few tests of each function, each with limited time, outcomes reported."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

from benchmarks.corpora import observer
from benchmarks.corpora.outcome import OVER


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--compat-tests", type=int, default=3)
    parser.addoption("--compat-seconds", type=float, default=120.0)
    parser.addoption("--compat-none", action="append", default=[], metavar="MODULE:CLASS.NAME")


def pytest_load_initial_conftests() -> None:
    observer.install()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the first few tests of each function that nothing skips."""
    limit, kept = config.getoption("--compat-tests"), Counter[str]()
    chosen = []
    for item in items:
        function = item.nodeid.partition("[")[0]
        if item.get_closest_marker("skip") is None and kept[function] < limit:
            kept[function] += 1
            chosen.append(item)
    items[:] = chosen
    _complete_orchestrators()


def _complete_orchestrators() -> None:
    """nki-library's simulation mode asks for the kernel that it compiled, and compiles none."""
    for module in list(sys.modules.values()):
        found = getattr(module, "__dict__", {}).get("Orchestrator")
        if isinstance(found, type) and not hasattr(found, "_compiled_kernel"):
            setattr(found, "_compiled_kernel", None)  # noqa: B010  its own name, not ours


def pytest_collection_finish(session: pytest.Session) -> None:
    """Attributes that the suite reads without having set them when nothing is compiled."""
    for text in session.config.getoption("--compat-none"):
        module, _, place = text.partition(":")
        owner, _, name = place.partition(".")
        if module in sys.modules and not hasattr(getattr(sys.modules[module], owner), name):
            setattr(getattr(sys.modules[module], owner), name, None)


class Overtime(Exception):  # noqa: N818  it says what happened
    """The test took longer than it may."""


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    seconds = item.config.getoption("--compat-seconds")

    def over(number: int, frame: object) -> None:
        raise Overtime(f"{OVER}, after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or (report.when == "setup" and not report.passed):
        reason = _reason(report) if report.failed else ""
        observer.write("test", name=report.nodeid, outcome=report.outcome, reason=reason)


def _reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = getattr(crash, "message", None) or str(report.longrepr)
    return text[:500]
