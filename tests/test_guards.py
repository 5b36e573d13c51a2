"""The guards of `conftest.py`, from outside: skips are named or fail, and the network is out of reach."""

from __future__ import annotations

import os
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


@pytest.fixture
def suite(tmp_path) -> Path:
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = needs: a program\n")
    (tmp_path / "test_cases.py").write_text(CASES)
    return tmp_path


def run(suite: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args],
        cwd=suite,
        env={**os.environ, "ANTHROPIC_API_KEY": "x", "NKI_AGENT_RUN__SEED": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("workers", [[], ["-n", "1"]])
def test_what_was_skipped_is_named_with_how_to_enable_it(suite, workers):
    result = run(suite, *workers)
    assert result.returncode == 0, result.stdout
    assert "4 passed, 2 skipped" in result.stdout
    assert "1 test(s): needs no-such-program; to enable: apt-get install some-package" in result.stdout
    assert "1 test(s): not today; to enable: wait" in result.stdout


def test_with_require_all_a_skip_fails_whoever_asked_for_it(suite):
    result = run(suite, "--require-all")
    assert result.returncode == 1
    assert "4 passed" in result.stdout
    assert "1 failed" in result.stdout
    assert "1 error" in result.stdout
    assert "skipped here" not in result.stdout
