"""The fixtures that tests of the command line and of the process share."""

from tests.support.command_line import _finished, ctl, fake_kernel, finished  # noqa: F401
