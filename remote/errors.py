"""The errors of evaluating, as one tree, each with a stable `code`. A kernel's own faults are verdicts.

RemoteError
|-- UnknownEvaluatorError   unknown_evaluator   no evaluator has that name
|-- NoTimelineError         no_timeline         the kernel's instructions cannot be placed in time
|-- NoHostsError            no_hosts            hosts should evaluate, and the configuration names none
|-- NotReadyError           not_ready           the evaluator was used before `prepare`
`-- InfrastructureError     (its code)          the machinery failed; never counts against a kernel

Codes of InfrastructureError: jail_deadline, jail_killed, jail_starved, jail_start, weak_jail,
worker_deadline, worker_died, worker_failed, reference_failed, reference_interrupted, bad_reference,
bad_secret, bad_blob, bad_problem, unknown_target, unknown_size, not_shape_generic, replica_failed,
no_host (NoHostError). The codes for hosts are in remote.ssh.errors.
"""

from __future__ import annotations

from collections.abc import Iterable

from seeds.errors import describe_unknown


class RemoteError(Exception):
    """Base of this room's errors."""

    code = "remote_error"


class UnknownEvaluatorError(RemoteError):
    """No evaluator has that name."""

    code = "unknown_evaluator"

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(describe_unknown("evaluator", name, known))


class UnsuitableEvaluatorError(RemoteError):
    """The evaluator does not judge kernels of the target."""

    code = "unsuitable_evaluator"

    def __init__(self, name: str, target: str, known: Iterable[str]) -> None:
        suited = ", ".join(sorted(known)) or "none"
        super().__init__(
            f"the evaluator {name!r} does not judge kernels of {target} (those that do: {suited})"
        )


class NoTimelineError(RemoteError):
    """The kernel breaks a rule, or the model cannot time it, so it has no timeline to draw."""

    code = "no_timeline"


class NoHostsError(RemoteError):
    """Kernels should run on hosts, but the configuration names none."""

    code = "no_hosts"

    def __init__(self) -> None:
        super().__init__("kernels are to run on hosts, and none is named; set run.hosts, or give --host")


class NotReadyError(RemoteError):
    """An evaluator was asked for something that it only knows after `prepare`."""

    code = "not_ready"


class InfrastructureError(RemoteError):
    """The evaluation could not be carried out. `retryable`: the same request may succeed later.

    `of_machine`: what is missing is missing for every kernel of the run, such as space or file handles.
    """

    def __init__(self, code: str, message: str, *, retryable: bool = True, of_machine: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable
        self.of_machine = of_machine


class NoHostError(InfrastructureError):
    """No host can evaluate any more; the message gives the reason for each."""

    def __init__(self, message: str) -> None:
        super().__init__("no_host", message)
