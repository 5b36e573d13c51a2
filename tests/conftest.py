"""What all tests share: a home, what a test needs of the machine, and guards against the world outside.

`needs(program, package=...)` marks a test that runs a program of the system: where the program is
missing, the test is skipped and the summary names the package; with `--require-all` any skip fails.
`optional(variable, package)` marks a test of a program that no machine has to have, such as a vendor's
coding agent: the variable of the environment gives its path. Without it the test is skipped, with
`--require-all` too.

`slow` marks a test that takes long by nature. A plain run is a quick run: it leaves slow tests out and tries
each property with fewer examples. `--all` runs everything; so does naming tests by node id, `-k` or `-m`, of
what these select. `HYPOTHESIS_PROFILE` chooses the number of examples by itself: `quick`, `local` or `ci`.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from agent_core.providers.addresses import LOOPBACK_ONLY

hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
FULL_PROFILE = "ci" if os.environ.get("CI") else "local"
QUICK_EXAMPLES = 20
hypothesis.settings.register_profile(
    "quick", hypothesis.settings.get_profile(FULL_PROFILE), max_examples=QUICK_EXAMPLES
)

SECRETS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "LOCAL_API_KEY", "CREDENTIALS_DIRECTORY", "SSH_AUTH_SOCK")
_RATED = {
    "attacks caught": "adversarial/test_attacks.py::test_caught[",
    "attacks held by the jail alone": "adversarial/test_attacks.py::test_held_by_the_jail_alone[",
    "honest kernels passed": "adversarial/test_honest.py::test_passes[",
}
LOOPBACK = ("127.", "::1", "localhost")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-all", action="store_true", help="fail tests that this machine cannot run")
    parser.addoption(
        "--all", action="store_true", help="run slow tests too, and properties with all their examples"
    )


def is_quick_run(config: pytest.Config) -> bool:
    """Whether slow tests are left out: neither `--all` was given, nor were tests chosen by name or mark."""
    chosen = config.option.keyword or config.option.markexpr or any("::" in word for word in config.args)
    return not (config.getoption("--all") or chosen)


def pytest_configure(config: pytest.Config) -> None:
    profile = "quick" if is_quick_run(config) else FULL_PROFILE
    hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or profile)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # What is given more time than others takes it: begun last, it would run on while other workers idle.
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)
    if not is_quick_run(config):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        program = mark.args[0]
        if shutil.which(program) is None:
            package = mark.kwargs.get("package", program)
            pytest.skip(f"needs {program}; to enable: apt-get install {package}")
    for mark in item.iter_markers("optional"):
        variable, package = mark.args
        if not os.environ.get(variable):
            pytest.skip(f"optional; to enable: set {variable} to the path of the program of {package}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # A test that is known to fail has run, and nobody has to have an optional program.
    may_skip = hasattr(report, "wasxfail") or item.get_closest_marker("optional") is not None
    if report.skipped and not may_skip and item.config.getoption("--require-all"):
        report.outcome = "failed"
        report.longrepr = f"skipped under --require-all: {report.longrepr}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how the judge did, and name what did not run here, once per reason, and how to enable it."""
    _rates(terminalreporter)
    if is_quick_run(terminalreporter.config):
        terminalreporter.line("a quick run: slow tests were left out; to run them too: --all")
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = [report.longrepr[2].removeprefix("Skipped: ") for report in skipped]
    if not reasons:
        return
    terminalreporter.section("skipped here")
    for reason in sorted(set(reasons)):
        terminalreporter.line(f"{reasons.count(reason)} test(s): {reason}")


def _rates(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many attacks were caught and how many honest kernels passed, of those that were tried."""
    for what, place in _RATED.items():
        held, missed = (
            sum(place in report.nodeid for kind in kinds for report in terminalreporter.stats.get(kind, []))
            for kinds in (("passed",), ("failed", "xfailed"))
        )
        if held + missed:
            terminalreporter.line(f"{what}: {held} of {held + missed}")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home that does not exist yet, as on a user's first start."""
    return tmp_path / "home"


@pytest.fixture(scope="session", autouse=True)
def _alone() -> Iterator[None]:
    """Tests neither reach beyond this machine, nor see its user's keys, settings and runs."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name in SECRETS or name.startswith(("NKI_AGENT_", "XDG_STATE_HOME", "STATE_DIRECTORY")):
                patch.delenv(name)
        patch.setenv(LOOPBACK_ONLY, "1")  # also for the processes that tests start
        for name in ("connect", "connect_ex"):
            patch.setattr(socket.socket, name, _loopback_only(getattr(socket.socket, name)))
        yield


def _loopback_only(connect):
    def guarded(self, address):
        if self.family != socket.AF_UNIX and not str(address[0]).startswith(LOOPBACK):
            raise RuntimeError(f"a test reached for the network: {address}")
        return connect(self, address)

    return guarded
