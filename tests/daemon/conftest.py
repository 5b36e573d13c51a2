"""The fixtures that tests of the command line and of the process share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.command_line import _finished, ctl, fake_kernel, finished  # noqa: F401
from tests.support.fork_server import ForkServer


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """A process that runs a home's daemon in a child, for each job that it is given."""
    server = ForkServer()
    yield server
    server.close()
