"""The fleet's state of one host: its standing, the jobs running there, its calibration readings.

connecting -> up <-> quarantined. Any state -> resting when the host is at fault, and back when it answers. A
host that does not fit the run is set_aside. Only hosts that are up get jobs.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from remote.errors import InfrastructureError
from remote.fleet.member import LOGIN, FleetMember, HostDescription
from remote.ssh.evaluator import weak_jail_reason
from remote.ssh.host import HostSpec
from state.host_status import HostStateName, HostStatus
from state.model import TRUSTED_AUTHORS, EvaluationRequest

REMEDIES = {
    "host_unreachable": "see that `{login} true` works: the machine, its SSH server, the network",
    "link_lost": "nothing while it comes back by itself; else see that `{login} true` works",
    "slow_login": "`time {login} true` says how long a login takes; look at names that the server looks up "
    "(UseDNS) and at the files that the shell there reads at start",
    "slow_host": "see with `{login} uptime` what else runs there; agentctl host check {host} tells more",
    "host_deadline": "see with `{login} uptime` what else runs there",
    "host_auth": "see that `{login} true` logs in without a question: the user's name, and the key",
    "host_key_unknown": "agentctl host trust {host}",
    "host_key_changed": "if it was set up anew, compare its fingerprint and run agentctl host trust {host}; "
    "else somebody stands in between",
    "ssh_config": "mend your ssh_config: `{login} true` reads the same file",
    "bad_host": "mend its entry in run.hosts",
    "host_python": "agentctl host setup {host}",
    "host_full": "free disk there: `{login} df -h` says where it is full",
    "host_queue": "others use all its cores: wait, or leave it some with `cores` in run.hosts",
    "host_inputs": "agentctl host setup {host} brings the NumPy that is used here",
    "quarantined": "see with `{login} uptime` what else runs there; it comes back when its times do",
    "disagrees": "add a third host, or take one of the two out of run.hosts",
    "lacks_tag": "give it the tags in run.hosts, or ask for fewer in run.host_tags",
    "other_toolchain": "install the same SDK there as on the others, or take it out of run.hosts",
    "host_calibration": "agentctl host check {host}: the kernel that all hosts time does not work there",
    "weak_jail": "install bubblewrap there, or set daemon.allow_weak_jail, to run kernels of models",
    "no_sdk": "use an image that has the vendor's SDK, or install it there: agentctl host check {host}",
}
"""What to do about a host that is not ready, by the code of its error or of what it lacks.

`{host}` stands for its address, `{login}` for the command with which a person logs in there.
"""

LOOK = "agentctl host check {host} says what is missing there"
"""Used where nothing more specific is known."""

READINGS = 16
"""Number of calibration readings kept per host, besides its first."""


@dataclass(frozen=True, slots=True)
class FleetPolicy:
    """How patient a fleet is with its hosts; all in seconds except `most_hosts`.

    A failing host rests `first_rest_s`, then twice as long each time, up to `longest_rest_s`. A host whose
    fault does not pass by itself rests `longest_rest_s` at once. While no host is up, jobs wait `patience_s`.
    A job that lost `most_hosts` hosts is given up, because it may be the cause. `gather_s`: how long the
    first host that answers waits for the others before the fleet chooses a toolchain.
    """

    first_rest_s: float = 2.0
    longest_rest_s: float = 300.0
    patience_s: float = 60.0
    connect_s: float = 45.0
    gather_s: float = 3.0
    calibrate_s: float = 900.0
    quarantine_s: float = 120.0
    close_s: float = 10.0
    most_hosts: int = 3


@dataclass(slots=True)
class FleetHost:
    """One host of a fleet. Times called `until` are of the monotonic clock."""

    member: FleetMember
    policy: FleetPolicy
    state: HostStateName = "connecting"
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
    about: HostDescription | None = None
    error: InfrastructureError | None = None
    fault: str | None = None
    why: str | None = None
    until: float = 0.0
    failures: int = 0
    running: int = 0
    done: int = 0
    lost: int = 0
    heard: datetime | None = None
    ratio: float | None = None
    readings: deque[float] = field(default_factory=lambda: deque(maxlen=READINGS))
    first_ms: float | None = None
    doubt: str | None = None
    tried: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def address(self) -> str:
        return self.member.address

    @property
    def all_readings_ms(self) -> tuple[float, ...]:
        """All readings that are kept, the first one first."""
        return () if self.first_ms is None else (self.first_ms, *self.readings)

    def refusal_reason(self, request: EvaluationRequest) -> str | None:
        """Return why a kernel can never run here; None where it can, or where that is not known yet."""
        if self.about is None:
            return None
        targets = self.about.targets
        if targets is not None and request.target not in targets:
            return f"it runs kernels for {', '.join(sorted(targets)) or 'no known target'}"
        return weak_jail_reason(request.author) if self.has_unsafe_jail(request) else None

    def has_unsafe_jail(self, request: EvaluationRequest) -> bool:
        """Return whether this host has no jail that may hold a kernel of this author."""
        return bool(self.about and not self.about.any_author) and request.author not in TRUSTED_AUTHORS

    def is_free(self, request: EvaluationRequest) -> bool:
        """Return whether one more job can start here now."""
        slots = self.about.slots if self.about else 0
        return self.state == "up" and self.running < slots and self.refusal_reason(request) is None

    def record_description(self, about: HostDescription) -> None:
        """Store what the host said about itself; the fleet decides whether it is used."""
        self.about, self.error = about, None
        self.heard = datetime.now(UTC)

    def record_success(self) -> None:
        """Note that a job ended there normally: the host is well."""
        self.done += 1
        self.failures = 0
        self.heard = datetime.now(UTC)

    def set_state(self, state: HostStateName, why: str | None = None, fault: str | None = None) -> None:
        """Set the host's state; `fault` is the code by which `REMEDIES` has what to do about it."""
        if (state, why) != (self.state, self.why):
            self.state, self.why, self.since = state, why, datetime.now(UTC)
        self.fault = fault

    def rest(self, error: InfrastructureError) -> None:
        """Leave the host alone for a while, longer each time."""
        policy = self.policy
        pause = policy.first_rest_s * 2.0 ** min(self.failures, 32)
        self.failures += 1
        longest = policy.longest_rest_s
        pause = min(pause, longest) if error.retryable else longest
        # Agents that lost the same host must not all come back at the same moment.
        self.until = time.monotonic() + pause * random.uniform(0.8, 1.2)  # noqa: S311 - no secret
        self.error = error
        self.set_state("resting", error.message, error.code)
        self.wake.set()

    def slow_error(self) -> InfrastructureError:
        """Return the error for a host that took too long to reach, named by the slowest step."""
        steps = sorted(self.member.took_s.items(), key=lambda step: -step[1])
        told = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in steps)
        text = f"it was not ready within {self.policy.connect_s:g} s{f': {told}' if told else ''}"
        slow_login = bool(steps) and steps[0][0] == LOGIN
        return InfrastructureError("slow_login" if slow_login else "slow_host", text)

    def quarantine(self, ratio: float) -> None:
        """Give the host no jobs: it takes `ratio` times as long as the others."""
        self.set_state("quarantined", f"it takes {ratio:.2f} times as long as the others", "quarantined")

    def set_doubt(self, why: str | None) -> None:
        """Note why the host's times may not compare although nobody can prove it; None when they compare."""
        self.doubt = why
        if self.state == "up":
            self.set_state("up", why, why and "disagrees")

    def record_reading(self, latency_ms: float) -> None:
        """Add a reading of the calibration kernel."""
        self.heard = datetime.now(UTC)
        if self.first_ms is None:
            self.first_ms = latency_ms
        else:
            self.readings.append(latency_ms)

    async def wait_for_wake(self, seconds: float) -> None:
        """Wait this long, or until something happens to the host."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self.wake.wait()
        except TimeoutError:
            return
        finally:
            self.wake.clear()

    def standing(self, waiting: int) -> HostStatus:
        """Return the host's state for people to read; `waiting` jobs wait for any host."""
        left = max(0.0, self.until - time.monotonic())
        about = self.about
        faults = [self.fault] if self.fault else list(about.short if about else ())
        return HostStatus(
            address=self.address,
            state=self.state,
            since=self.since,
            why=self.why,
            remedy="; ".join(find_remedy(one, self.address) for one in faults) or None,
            until=datetime.now(UTC) + timedelta(seconds=left) if self.state == "resting" else None,
            heard=self.heard,
            device=about.device if about else None,
            toolchain=about.toolchain if about else None,
            tags=tuple(sorted(about.tags)) if about else (),
            slots=about.slots if about else 0,
            running=self.running,
            waiting=waiting,
            done=self.done,
            lost=self.lost,
            ratio=self.ratio,
            compares=self.doubt is None,
        )


def find_remedy(code: str, address: str) -> str:
    """Return what to do about a host with this fault."""
    return REMEDIES.get(code, LOOK).format(host=address, login=HostSpec.parse(address).login_command)
