"""What the tests of the command line share: calling it in this process, and homes with a finished run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog

from agentctl.app import agentctl
from daemon import exits
from remote import registry
from tests.support import fakes


@dataclass(frozen=True)
class Called:
    """What a call of `agentctl` came to."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Ctl = Callable[..., Called]


@pytest.fixture
def ctl(home, capsys, monkeypatch) -> Iterator[Ctl]:
    """Call `agentctl --home HOME ...` in this process, with the fake judge to be had as `fake`."""
    monkeypatch.setitem(registry._EVALUATORS, "fake", lambda wanted, means: fakes.FakeEvaluator())

    def call(*arguments: object, home=home) -> Called:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            exits.run_command(agentctl, "agentctl", ["--home", str(home), *map(str, arguments)])
        out, err = capsys.readouterr()
        return Called(int(ended.value.code or 0), out, err)

    yield call
    structlog.reset_defaults()  # a run sends logs to the stderr of its test


@pytest.fixture(scope="session")
def _finished(tmp_path_factory) -> tuple[Path, str]:
    """A home with one run that has ended, to be copied; its id."""
    home = tmp_path_factory.mktemp("finished") / "home"
    run = fakes.submit_run(home)
    fakes.finish_runs(home, run)
    return home, run


@pytest.fixture
def finished(home, _finished) -> str:
    """A home with one run that has ended; its id."""
    template, run = _finished
    shutil.copytree(template, home)
    return run


@pytest.fixture
def fake_kernel(tmp_path):
    path = tmp_path / "start.py"
    path.write_text(fakes.KERNEL)
    return path
