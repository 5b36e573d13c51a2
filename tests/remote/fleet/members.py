"""Hosts that do what a test says: no network, and no clock but the loop's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from remote.errors import InfrastructureError
from remote.evaluator import EvaluationAnswer
from remote.fleet.fleet import Fleet
from remote.fleet.fleet_host import FleetPolicy
from remote.fleet.member import HostDescription
from remote.ssh.errors import HostUnreachableError, LinkLostError
from state.host_status import HostStatus
from state.model import (
    Benchmark,
    Evaluation,
    EvaluationRequest,
    PredictedLatency,
    ProblemRef,
    Verdict,
    digest_of,
)

TOOLCHAIN = "neuronx-cc 2.21 nki 0.5"
QUICK = FleetPolicy(
    first_rest_s=0.02, longest_rest_s=0.2, patience_s=0.3, connect_s=30, gather_s=30, calibrate_s=3600
)
"""So patient are fleets of tests: they rest for moments, and time nothing again unless told to."""


def about(**changes: object) -> HostDescription:
    """Return what a host says of itself, one slot unless told otherwise."""
    told = {"device": "trn2", "toolchain": TOOLCHAIN, "slots": 1, "targets": frozenset({"trn2"})}
    return HostDescription(**{**told, **changes})


def request(name: str = "r1s0p0i0", target: str = "trn2", **changes: object) -> EvaluationRequest:
    source = digest_of(name.encode())
    problem = ProblemRef(name="toy", digest=digest_of(b"toy"), files={})
    given = {"candidate": name, "author": "builtin", "source": source, "problem": problem, "size": "full"}
    return EvaluationRequest(**{**given, "target": target, "toolchain": TOOLCHAIN, **changes})


def answer(asked: EvaluationRequest, *, ms: float = 1.0, predicted: bool = False) -> EvaluationAnswer:
    timed = Benchmark(latency_ms=ms, lo_ms=ms, hi_ms=ms, predicted=predicted, samples=10)
    evaluation = Evaluation(
        verdict=Verdict.CORRECT,
        stage="benchmark",
        code=asked.source,
        benchmark=timed,
        target=asked.target,
        toolchain=TOOLCHAIN,
        level=asked.level,
    )
    return EvaluationAnswer(evaluation, {}, {"execute": ms})


def unreachable() -> InfrastructureError:
    return HostUnreachableError("connection refused")


def host_lost_error() -> InfrastructureError:
    return LinkLostError("the connection broke")


@dataclass
class FakeMember:
    """A host. `gate` holds its jobs back until set; what is in `failures` is raised before anything else.

    `readings` are those of the calibration kernel; the last one is repeated.
    """

    address: str
    says: HostDescription = field(default_factory=about)
    failures: list[InfrastructureError] = field(default_factory=list)
    job_failures: list[InfrastructureError] = field(default_factory=list)
    readings: list[float] = field(default_factory=lambda: [1.0])
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    judged: list[str] = field(default_factory=list)
    under_way: int = 0
    most: int = 0
    prepared: int = 0
    closed: int = 0
    cancelled: int = 0
    took_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gate.set()

    async def prepare(self) -> HostDescription:
        self.prepared += 1
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0) if len(self.failures) > 1 else self.failures[0]
        return self.says

    async def evaluate(self, asked, blobs, /) -> EvaluationAnswer:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
            if self.job_failures:
                raise self.job_failures.pop(0)
            self.judged.append(asked.candidate)
            return answer(asked)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.under_way -= 1

    async def calibrate(self) -> float:
        await asyncio.sleep(0)
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]

    async def aclose(self) -> None:
        self.closed += 1


class Home:
    """The evaluator at home, which predicts."""

    name = "sim"

    def __init__(self) -> None:
        self.closed = 0

    async def predict(self, asked, blobs, /) -> list[PredictedLatency]:
        return [PredictedLatency(latency_ms=2.0) for _ in asked.sources]

    async def aclose(self) -> None:
        self.closed += 1


def fleet(*members: FakeMember, policy: FleetPolicy = QUICK, **options: object) -> Fleet:
    return Fleet(members, predictor=Home(), policy=policy, **options)


def stands(one: Fleet, address: str) -> HostStatus:
    return next(each for each in one.standings() if each.address == address)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that nothing announces."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.005)
