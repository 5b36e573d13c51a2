"""The errors of reaching a host; each has a stable `code`, names the host, and says what to do.

InfrastructureError
`-- HostError
    |-- BadHostError          bad_host           the address, or another field of the host, is invalid
    |-- SshConfigError        ssh_config         the user's ssh_config cannot be read
    |-- HostUnreachableError  host_unreachable   no connection: name, network, port, or no SSH server
    |-- HostKeyUnknownError   host_key_unknown   its key is in no known_hosts file
    |-- HostKeyChangedError   host_key_changed   its key is not the known one
    |-- HostAuthError         host_auth          it refuses our keys
    |-- LinkLostError         link_lost          the connection broke before the answer
    |-- HostDeadlineError     host_deadline      a command there took longer than allowed
    |-- HostPythonError       host_python        no interpreter there can run the worker
    |-- HostFullError         host_full          its disk is full
    |-- HostProtocolError     host_protocol      its answer violates the protocol
    |-- HostLacksError        host_lacks         it no longer has an input that was sent to it
    |-- HostQueueError        host_queue         no core became free in time
    |-- HostInputsError       host_inputs        it draws other inputs than this machine
    |-- HostDisagreesError    host_disagrees     the same model gives another result there than here
    |-- HostStepError         host_step          a step of an evaluation ended there without an answer
    |-- HostCalibrationError  host_calibration   the calibration kernel does not run there
    |-- HostJailError         weak_jail          no jail works there that may hold the kernel
    `-- HostWorkerError       host_worker        the worker there failed
"""

from __future__ import annotations

from remote.errors import InfrastructureError


class HostError(InfrastructureError):
    """Base of the errors of hosts. Trying again does not help with `permanent` ones."""

    kind = "host_error"
    permanent = False

    def __init__(self, message: str) -> None:
        super().__init__(self.kind, message, retryable=not self.permanent)


class BadHostError(HostError):
    """The address, or another field of the host, is invalid."""

    kind = "bad_host"
    permanent = True


class SshConfigError(HostError):
    """The user's ssh_config cannot be read, or one of its key files."""

    kind = "ssh_config"
    permanent = True


class HostUnreachableError(HostError):
    """No connection could be made."""

    kind = "host_unreachable"


class HostKeyUnknownError(HostError):
    """The host's key is in no known_hosts file; `fingerprint` is that of the key it showed, if any."""

    kind = "host_key_unknown"
    permanent = True

    def __init__(self, message: str, *, fingerprint: str | None = None) -> None:
        super().__init__(message)
        self.fingerprint = fingerprint


class HostKeyChangedError(HostError):
    """The host's key is not the known one: it is another machine, or a machine in between."""

    kind = "host_key_changed"
    permanent = True

    def __init__(self, message: str, *, fingerprint: str | None = None, known: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.fingerprint = fingerprint
        self.known = known


class HostAuthError(HostError):
    """The host refuses our keys."""

    kind = "host_auth"
    permanent = True


class LinkLostError(HostError):
    """The connection broke before the answer arrived."""

    kind = "link_lost"


class HostDeadlineError(HostError):
    """A command on the host took longer than allowed."""

    kind = "host_deadline"


class HostPythonError(HostError):
    """No interpreter on the host can run the worker."""

    kind = "host_python"
    permanent = True


class HostFullError(HostError):
    """The host's disk, or the user's quota there, is full."""

    kind = "host_full"


class HostProtocolError(HostError):
    """The host's answer violates the protocol."""

    kind = "host_protocol"


class HostLacksError(HostError):
    """The host no longer has an input that was sent to it: send it again."""

    kind = "host_lacks"


class HostQueueError(HostError):
    """No core became free within the time that a job may wait."""

    kind = "host_queue"


class HostWorkerError(HostError):
    """The worker on the host failed."""

    kind = "host_worker"


class HostInputsError(HostError):
    """The host draws other inputs than this machine, because its NumPy differs."""

    kind = "host_inputs"
    permanent = True


class HostDisagreesError(HostError):
    """The performance model gives another result on the host than here."""

    kind = "host_disagrees"


class HostCalibrationError(HostError):
    """The calibration kernel does not compile or run there: the host is at fault, not a kernel."""

    kind = "host_calibration"


class HostJailError(HostError):
    """No jail works on the host that may hold a kernel of this author."""

    kind = "weak_jail"
    permanent = True


class HostStepError(HostError):
    """A step of an evaluation ended on the host without an answer."""

    kind = "host_step"
