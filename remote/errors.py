"""What evaluating can raise, as one tree; each has a stable `code`. A kernel's own faults are verdicts.

RemoteError
|-- UnknownEvaluatorError   unknown_evaluator   no evaluator of that name
|-- NoTimelineError         no_timeline         nobody can say when the kernel's instructions would run
|-- NoHostsError            no_hosts            hosts are to evaluate, and none is named
|-- NotReadyError           not_ready           it was asked before it was prepared
`-- InfrastructureError     (its code)          the machinery failed; never counts against a kernel

Codes of InfrastructureError: jail_deadline, jail_killed, jail_start, weak_jail, worker_deadline, worker_died,
worker_failed, reference_failed, bad_reference, bad_secret, bad_blob, bad_problem, unknown_target,
unknown_size, not_shape_generic, no_host (NoHostError); those of hosts are in remote.ssh.errors.
"""

from __future__ import annotations

from collections.abc import Iterable

from seeds.errors import describe_unknown


class RemoteError(Exception):
    """Base of this room's errors."""

    code = "remote_error"


class UnknownEvaluatorError(RemoteError):
    """No evaluator of that name."""

    code = "unknown_evaluator"

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(describe_unknown("evaluator", name, known))


class NoTimelineError(RemoteError):
    """The kernel breaks a rule, or the model cannot time it: there is no run of it to be drawn."""

    code = "no_timeline"


class NoHostsError(RemoteError):
    """Kernels are to run on hosts, and no host is named."""

    code = "no_hosts"

    def __init__(self) -> None:
        super().__init__("kernels are to run on hosts, and none is named; set run.hosts, or give --host")


class NotReadyError(RemoteError):
    """An evaluator was asked for what it can only say once it is prepared."""

    code = "not_ready"


class InfrastructureError(RemoteError):
    """The evaluation could not be carried out. `retryable`: the same request may succeed another time."""

    def __init__(self, code: str, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable


class NoHostError(InfrastructureError):
    """No host is left that could evaluate; the message says of each why."""

    def __init__(self, message: str) -> None:
        super().__init__("no_host", message)
