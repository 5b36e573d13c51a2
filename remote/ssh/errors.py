"""What reaching a host can raise; each has a stable `code`, says which host, and what to do.

InfrastructureError
`-- HostError
    |-- BadHostError          bad_host           the address, or a field beside it, is not one
    |-- SshConfigError        ssh_config         the user's ssh_config cannot be read
    |-- HostUnreachableError  host_unreachable   no connection: name, network, port, or no SSH server
    |-- HostKeyUnknownError   host_key_unknown   its key is in no known_hosts file
    |-- HostKeyChangedError   host_key_changed   its key is not the one that is known
    |-- HostAuthError         host_auth          it refuses us
    |-- LinkLostError         link_lost          the connection broke before the answer
    |-- HostDeadlineError     host_deadline      a command there took longer than it may
    |-- HostPythonError       host_python        no interpreter there that the worker runs on
    |-- HostFullError         host_full          its disk is full
    |-- HostProtocolError     host_protocol      it answers what the protocol does not know
    |-- HostLacksError        host_lacks         it no longer has an input that was sent to it
    |-- HostQueueError        host_queue         no core became free in time
    |-- HostInputsError       host_inputs        it draws other inputs than this machine
    |-- HostDisagreesError    host_disagrees     the model there says something else than the same one here
    |-- HostStepError         host_step          a step of an evaluation ended there without an answer
    |-- HostCalibrationError  host_calibration   the kernel that hosts are compared by does not run there
    |-- HostJailError         weak_jail          no jail works there that may hold the kernel
    `-- HostWorkerError       host_worker        the worker there failed
"""

from __future__ import annotations

from remote.errors import InfrastructureError


class HostError(InfrastructureError):
    """Base of what hosts raise. `permanent` ones do not go away by trying again."""

    kind = "host_error"
    permanent = False

    def __init__(self, message: str) -> None:
        super().__init__(self.kind, message, retryable=not self.permanent)


class BadHostError(HostError):
    """The address, or a field beside it, is not one."""

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
    """The host's key is in no known_hosts file; `fingerprint` is that of the key it showed, if it did."""

    kind = "host_key_unknown"
    permanent = True

    def __init__(self, message: str, *, fingerprint: str | None = None) -> None:
        super().__init__(message)
        self.fingerprint = fingerprint


class HostKeyChangedError(HostError):
    """The host's key is not the one that is known: another machine, or one between us and it."""

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
    """The connection broke before the answer was there."""

    kind = "link_lost"


class HostDeadlineError(HostError):
    """A command on the host took longer than it may."""

    kind = "host_deadline"


class HostPythonError(HostError):
    """No interpreter on the host that the worker runs on."""

    kind = "host_python"
    permanent = True


class HostFullError(HostError):
    """The host's disk, or the user's quota there, is full."""

    kind = "host_full"


class HostProtocolError(HostError):
    """The host answers what the protocol does not know."""

    kind = "host_protocol"


class HostLacksError(HostError):
    """The host no longer has an input that was sent to it: send it again."""

    kind = "host_lacks"


class HostQueueError(HostError):
    """No core became free within the time that a job may wait for its turn."""

    kind = "host_queue"


class HostWorkerError(HostError):
    """The worker on the host failed."""

    kind = "host_worker"


class HostInputsError(HostError):
    """The host draws other inputs than this machine: its NumPy is another one."""

    kind = "host_inputs"
    permanent = True


class HostDisagreesError(HostError):
    """The performance model says something else on the host than here."""

    kind = "host_disagrees"


class HostCalibrationError(HostError):
    """The kernel that hosts are compared by does not compile or run there: it is the host, and no kernel."""

    kind = "host_calibration"


class HostJailError(HostError):
    """No jail works on the host that may hold a kernel of this author."""

    kind = "weak_jail"
    permanent = True


class HostStepError(HostError):
    """A step of an evaluation ended on the host without an answer."""

    kind = "host_step"
