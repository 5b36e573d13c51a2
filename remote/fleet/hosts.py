"""Makes fleet members of the configured hosts: each is reached over SSH, and this machine judges."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from remote.evaluator import BlobReader, EvaluationAnswer, Evaluator
from remote.fleet.fleet import Fleet
from remote.fleet.member import LOGIN, HostDescription
from remote.judge_service import JudgeService
from remote.ssh.device_facts import DeviceFacts
from remote.ssh.errors import LinkLostError
from remote.ssh.evaluator import HostEvaluator
from remote.ssh.host_config import host_from_config
from remote.ssh.jobs import JobClient
from remote.ssh.link import SshLink
from state import host_status
from state.host_status import HostStatus
from state.model import EvaluationRequest, ScoreConfig
from targets.registry import load_host_parts

if TYPE_CHECKING:
    from remote.registry import EvaluatorResources, EvaluatorSpec
    from remote.ssh.host import HostSpec

LOOK_S = 0.5
CANCEL_S = 2.0
"""Seconds that ending an evaluation may delay the next try on another host."""


class SshFleetMember:
    """A member that is reached over SSH. Each connection asks the host for its description again."""

    def __init__(
        self,
        jobs: JobClient,
        *,
        judge: JudgeService,
        target: str,
        allow_weak_jail: bool = False,
        silence_s: float = 20.0,
        scoring: ScoreConfig | None = None,
    ) -> None:
        """Create a member; after `silence_s` without a connection its evaluations go to other hosts."""
        self._jobs = jobs
        self._silence_s = silence_s
        self._took_s: dict[str, float] = {}
        self._left: set[asyncio.Task[EvaluationAnswer]] = set()
        self._make = partial(
            HostEvaluator,
            jobs,
            address=self.address,
            judge=judge,
            target=target,
            allow_weak_jail=allow_weak_jail,
            scoring=scoring,
        )
        self._evaluator = self._make()

    @property
    def address(self) -> str:
        return self._jobs.host.address

    @property
    def took_s(self) -> Mapping[str, float]:
        return self._took_s

    async def prepare(self) -> HostDescription:
        """Connect to the host, install the worker if it is missing, and read the host's description.

        Raises:
            HostError: the host cannot be reached or used.
        """
        self._took_s = {}
        with self._time_step(LOGIN):
            await self._jobs.link.ensure_connected()
        with self._time_step("starting the worker there"):
            await self._jobs.greet_host()
        evaluator = self._make()
        with self._time_step("looking for its device"):
            facts = await evaluator.device_facts()
        self._evaluator = evaluator
        return describe_host(
            self._jobs.host,
            facts,
            toolchain=evaluator.toolchain(),
            slots=evaluator.host_facts.cpus,
            any_author=evaluator.accepts_any_author,
        )

    async def evaluate(self, request: EvaluationRequest, blobs: BlobReader, /) -> EvaluationAnswer:
        """Judge one candidate, unless the connection is gone for so long that another host is faster.

        Jobs on a lost host end with their leases. Their late answers are not used.

        Raises:
            LinkLostError: the connection was gone for too long.
            InfrastructureError: no verdict could be reached.
        """
        work = asyncio.create_task(self._evaluator.evaluate(request, blobs))
        self._left.add(work)
        work.add_done_callback(self._left.discard)
        try:
            while not (await asyncio.wait({work}, timeout=LOOK_S))[0]:
                silent_s = self._jobs.link.silent_s or 0.0
                if not self._jobs.link.is_connected and silent_s > self._silence_s:
                    raise LinkLostError(f"{self.address}: nothing was heard of it for {silent_s:.0f} s")
            return work.result()
        finally:
            work.cancel()
            await asyncio.wait({work}, timeout=CANCEL_S)

    async def calibrate(self) -> float:
        with self._time_step("timing the calibration kernel"):
            return await self._evaluator.calibrate()

    @contextmanager
    def _time_step(self, step: str) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:
            self._took_s[step] = time.monotonic() - begin

    async def aclose(self) -> None:
        await self._evaluator.aclose()
        await self._jobs.aclose()


def describe_host(
    host: HostSpec, facts: DeviceFacts, *, toolchain: str, slots: int, any_author: bool = True
) -> HostDescription:
    """Return what a fleet has to know about a host that was reached."""
    family = facts.instance_type.partition(".")[0]
    tags = host.tags | ({facts.instance_type, family} - {""})
    targets = None
    if not facts.is_predicted:
        instances = {tag: name for parts in load_host_parts() for tag, name in parts.instances.items()}
        named = {instances[tag] for tag in tags if tag in instances}
        targets = frozenset(named or {facts.architecture})
    return HostDescription(
        device=facts.device,
        toolchain=toolchain,
        slots=max(1, slots if host.slots is None else min(slots, host.slots)),
        targets=targets,
        tags=frozenset(tags),
        any_author=any_author,
        short=tuple(_find_shortcomings(facts)),
    )


def _find_shortcomings(facts: DeviceFacts) -> Iterator[str]:
    """Yield the codes (see `fleet_host.REMEDIES`) of what the host lacks but can be used without."""
    if facts.is_predicted:
        yield "no_sdk"
    if not facts.has_strong_jail:
        yield "weak_jail"


def create_fleet(
    wanted: EvaluatorSpec, means: EvaluatorResources, *, judge: JudgeService, predictor: Evaluator
) -> Fleet:
    """Return a fleet of a run's hosts; `predictor` closes `judge`, and is closed with the fleet.

    Raises:
        NoHostsError: the run names no host.
        BadHostError: an address is invalid.
    """
    members = [
        SshFleetMember(
            JobClient(SshLink(host_from_config(one), home=means.home)),
            judge=judge,
            target=wanted.target,
            allow_weak_jail=means.allow_weak_jail,
            silence_s=means.host_silence_s,
            scoring=wanted.score,
        )
        for one in wanted.hosts
    ]

    def publish(standings: Sequence[HostStatus]) -> None:
        host_status.publish_host_status(means.home, standings)

    return Fleet(members, predictor=predictor, needs=wanted.host_tags, publish=publish)
