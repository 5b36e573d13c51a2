"""Turns a kernel's own error into the judge's verdict."""

from __future__ import annotations

from nki_sim.errors import KernelError, LimitError
from remote.judge.rejection import RejectedError, escape_unprintable
from state.model import Verdict


def reject_kernel_error(verdict: Verdict, error: KernelError) -> RejectedError:
    """Return the kernel's error as this verdict, or as a timeout if it exceeded a limit on its work."""
    endless = isinstance(error, LimitError) and error.code != "limit_memory"
    found = Verdict.TIMEOUT if endless else verdict
    return RejectedError(
        found, error.code, escape_unprintable(error.message), error.line, escape_unprintable(error.hint)
    )
