"""The fixtures that tests of the command line and of the process share."""

import pytest

from tests.support.command_line import _finished, ctl, fake_kernel, finished  # noqa: F401


@pytest.fixture
def patient_verification(monkeypatch) -> None:
    """Wait for a log's verification: on a busy machine, at the lowest priority, it takes long."""
    for module in ("home_owner", "log_verification"):
        monkeypatch.setattr(f"daemon.{module}.PATIENCE_SECONDS", 300.0)
