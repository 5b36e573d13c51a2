"""What `conftest.py` does, from outside: what a run leaves out, what is said of skips, and no network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CASES = """
import os, shutil, socket
import pytest


@pytest.mark.needs("no-such-program", package="some-package")
def test_needs():
    raise AssertionError


@pytest.mark.needs("sh")
def test_has():
    assert shutil.which("sh")


def test_skips_itself():
    pytest.skip("not today; to enable: wait")


def test_network():
    with socket.socket() as connection, pytest.raises(RuntimeError, match="reached for the network"):
        connection.connect(("192.0.2.1", 80))


def test_loopback():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as connection:
        connection.connect(server.getsockname())


def test_environment():
    assert not {"ANTHROPIC_API_KEY", "NKI_AGENT_RUN__SEED"} & set(os.environ)
"""


SWEEPS = """
import pytest
from hypothesis import given, strategies, settings
from sweeps import parametrize_sweep, scale_examples

tried = {"all": 0, "half": 0}


@given(strategies.integers())
def test_a_property(number):
    tried["all"] += 1


@settings(max_examples=scale_examples(50))
@given(strategies.integers())
def test_a_property_with_fewer_examples(number):
    tried["half"] += 1


def test_how_often_they_were_tried():
    print("tried", *tried.values())


@pytest.mark.slow
def test_slow():
    pass


@parametrize_sweep(("letter", "number"), [("a", 1), ("b", 2), ("c", 3)], quick=2)
def test_the_first_of_a_sweep(letter, number):
    pass


@parametrize_sweep("pair", [("a", 1), ("b", 2)], ids=["first", "second"], quick=["second"])
def test_one_of_a_sweep(pair):
    assert pair == ("b", 2) or pair == ("a", 1)
"""
QUICK = {
    "test_a_property", "test_a_property_with_fewer_examples", "test_how_often_they_were_tried",
    "test_the_first_of_a_sweep[a-1]", "test_the_first_of_a_sweep[b-2]", "test_one_of_a_sweep[second]",
}  # fmt: skip
SLOW = {"test_slow", "test_the_first_of_a_sweep[c-3]", "test_one_of_a_sweep[first]"}


@pytest.fixture
def suite(tmp_path) -> Path:
    for source in ("conftest.py", "support/sweeps.py"):
        shutil.copy(Path(__file__).parent / source, tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  needs: a program\n  slow: by nature\n")
    (tmp_path / "test_cases.py").write_text(CASES)
    (tmp_path / "test_sweeps.py").write_text(SWEEPS)
    return tmp_path


def run(suite: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    outside = {name: value for name, value in os.environ.items() if name not in {"CI", "HYPOTHESIS_PROFILE"}}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args],
        cwd=suite,
        env={**outside, "ANTHROPIC_API_KEY": "x", "NKI_AGENT_RUN__SEED": "1", **env},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("workers", [[], ["-n", "1"]])
def test_what_was_skipped_is_named_with_how_to_enable_it(suite, workers):
    result = run(suite, *workers, "test_cases.py")
    assert result.returncode == 0, result.stdout
    assert "4 passed, 2 skipped" in result.stdout
    assert "1 test(s): needs no-such-program; to enable: apt-get install some-package" in result.stdout
    assert "1 test(s): not today; to enable: wait" in result.stdout


def test_with_require_all_a_skip_fails_whoever_asked_for_it(suite):
    result = run(suite, "--require-all", "test_cases.py")
    assert result.returncode == 1
    assert "4 passed" in result.stdout
    assert "1 failed" in result.stdout
    assert "1 error" in result.stdout
    assert "skipped here" not in result.stdout


def list_passed(result: subprocess.CompletedProcess[str]) -> set[str]:
    return set(re.findall(r"^PASSED test_sweeps\.py::(.+)$", result.stdout, re.MULTILINE))


@pytest.mark.parametrize(
    ("args", "expected", "examples"),
    [
        (("-n", "1"), QUICK, "20 10"),
        (("--all", "-n", "1"), QUICK | SLOW, "100 50"),
        (("test_sweeps.py", "test_cases.py"), QUICK, "20 10"),
        (("test_sweeps.py::test_slow", "-n", "1"), {"test_slow"}, None),
        (("-k", "slow or sweeps"), QUICK | SLOW, "100 50"),
        (("-m", "slow"), SLOW, None),
    ],
    ids=["quick", "all", "by file", "by node id", "by -k", "by -m"],
)
def test_slow_tests_run_with_all_or_when_they_are_chosen(suite, args, expected, examples):
    result = run(suite, "-rpP", *args)
    assert result.returncode == 0, result.stdout
    assert list_passed(result) == expected
    assert ("slow tests were left out; to run them too: --all" in result.stdout) == (expected == QUICK)
    assert examples is None or f"tried {examples}\n" in result.stdout


@pytest.mark.parametrize(
    ("args", "env", "examples"),
    [
        ((), {"CI": "1"}, "20 10"),
        (("--all",), {"HYPOTHESIS_PROFILE": "quick"}, "20 10"),
        ((), {"HYPOTHESIS_PROFILE": "local"}, "100 50"),
    ],
    ids=["quick in CI", "all by few", "quick by many"],
)
def test_the_number_of_examples_can_be_chosen(suite, args, env, examples):
    result = run(suite, "-rP", *args, "test_sweeps.py", **env)
    assert f"tried {examples}\n" in result.stdout
