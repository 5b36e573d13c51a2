"""The hosts of a configuration as members of a fleet: each reached over SSH, judged by this machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from remote.evaluator import Blobs, EvaluationAnswer
from remote.fleet.fleet import Fleet
from remote.fleet.member import About
from remote.local import LocalEvaluator
from remote.ssh.evaluator import HostEvaluator
from remote.ssh.facts import DeviceFacts
from remote.ssh.jobs import Jobs
from remote.ssh.link import Link
from remote.ssh.named import host_of
from state import board
from state.board import HostStanding
from state.model import EvaluationRequest

if TYPE_CHECKING:
    from remote.registry import Means, Wanted
    from remote.ssh.host import Host

TARGETS = {"trn1": "trn1", "inf2": "trn1", "trn2": "trn2"}
"""Whose kernels run on an instance, by what its type begins with: the devices that a problem can be for."""


class SshHost:
    """A member that is reached over SSH. Each time it is reached it is asked anew what it is."""

    def __init__(self, jobs: Jobs, *, local: LocalEvaluator, allow_weak_jail: bool = False) -> None:
        self._jobs = jobs
        self._make = partial(
            HostEvaluator, jobs, address=self.address, local=local, allow_weak_jail=allow_weak_jail
        )
        self._evaluator = self._make()

    @property
    def address(self) -> str:
        return self._jobs.host.address

    async def prepare(self) -> About:
        """Reach the host, put the worker there where it is missing, and ask what it is.

        Raises:
            HostError: it cannot be reached or used.
        """
        evaluator = self._make()
        facts = await evaluator.facts()
        self._evaluator = evaluator
        return about(self._jobs.host, facts, toolchain=evaluator.toolchain(), slots=evaluator.host.cpus)

    async def evaluate(self, request: EvaluationRequest, blobs: Blobs, /) -> EvaluationAnswer:
        return await self._evaluator.evaluate(request, blobs)

    async def calibrate(self) -> float:
        return await self._evaluator.calibrate()

    async def aclose(self) -> None:
        await self._evaluator.aclose()
        await self._jobs.aclose()


def about(host: Host, facts: DeviceFacts, *, toolchain: str, slots: int) -> About:
    """Return what a fleet has to know of a host that was reached."""
    family = facts.instance_type.partition(".")[0]
    tags = host.tags | ({facts.instance_type, family} - {""})
    targets = None
    if not facts.predicted:
        named = {TARGETS[tag] for tag in tags if tag in TARGETS}
        targets = frozenset(named or {facts.architecture})
    return About(
        device=facts.device, toolchain=toolchain, slots=max(1, slots), targets=targets, tags=frozenset(tags)
    )


def fleet_of(wanted: Wanted, means: Means, *, local: LocalEvaluator) -> Fleet:
    """Return the fleet of the hosts that a run names; `local` predicts and judges, and is closed with it.

    Raises:
        NoHostsError: none is named.
        BadHostError: an address is none.
    """
    members = [
        SshHost(Jobs(Link(host_of(one), home=means.home)), local=local, allow_weak_jail=means.allow_weak_jail)
        for one in wanted.hosts
    ]

    def publish(standings: Sequence[HostStanding]) -> None:
        board.publish(means.home, standings)

    return Fleet(members, predictor=local, needs=wanted.host_tags, publish=publish)
