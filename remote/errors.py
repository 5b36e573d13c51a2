"""What evaluating can raise, as one tree; each has a stable `code`. A kernel's own faults are verdicts.

RemoteError
|-- UnknownEvaluatorError   unknown_evaluator   no evaluator of that name
|-- NoTimelineError         no_timeline         nobody can say when the kernel's instructions would run
`-- InfrastructureError     (its code)          the machinery failed; never counts against a kernel

Codes of InfrastructureError: jail_deadline, jail_killed, jail_start, weak_jail, worker_deadline, worker_died,
worker_failed, reference_failed, bad_reference, bad_secret, bad_blob, bad_problem, unknown_target,
unknown_size, not_shape_generic; those of hosts are in remote.ssh.errors.
"""

from __future__ import annotations

from collections.abc import Iterable

from seeds.errors import unknown


class RemoteError(Exception):
    """Base of this room's errors."""

    code = "remote_error"


class UnknownEvaluatorError(RemoteError):
    """No evaluator of that name."""

    code = "unknown_evaluator"

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(unknown("evaluator", name, known))


class NoTimelineError(RemoteError):
    """The kernel breaks a rule, or the model cannot time it: there is no run of it to be drawn."""

    code = "no_timeline"


class InfrastructureError(RemoteError):
    """The evaluation could not be carried out. `retryable`: the same request may succeed another time."""

    def __init__(self, code: str, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable
