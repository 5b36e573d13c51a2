"""Fixtures of the command line, for the files that a tuned run leaves."""

from tests.support.command_line import _finished, ctl, fake_kernel, finished  # noqa: F401
