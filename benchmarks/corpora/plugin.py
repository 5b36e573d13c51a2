"""The pytest plugin of `suites`: a few tests of each function, each with limited time, outcomes reported."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

from benchmarks.corpora import observer


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--compat-tests", type=int, default=3)
    parser.addoption("--compat-seconds", type=float, default=120.0)


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


class Overtime(Exception):  # noqa: N818  it says what happened
    """The test took longer than it may."""


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    seconds = item.config.getoption("--compat-seconds")

    def over(number: int, frame: object) -> None:
        raise Overtime(f"not done after {seconds:g} s")

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
