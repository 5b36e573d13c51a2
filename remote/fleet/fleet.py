"""The fleet: an evaluator over many hosts that gives each job to a free slot and survives failing hosts.

One task per host connects to it, lets it rest when it fails, and has it time the calibration kernel now and
then. Only hosts with the same toolchain measure together, because only their times compare. When a host
fails, its job goes to another one. While no host is up, jobs wait for a bounded time. Predictions are made at
home.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import structlog

from remote.errors import InfrastructureError, NoHostError, NoHostsError, NotReadyError
from remote.evaluator import BlobReader, EvaluationAnswer, Evaluator, PredictionRequest
from remote.fleet import drift
from remote.fleet.fleet_host import FleetHost, FleetPolicy
from remote.fleet.member import FleetMember, HostDescription
from remote.ssh.errors import HostError
from state.host_status import HostStatus
from state.model import EvaluationHost, EvaluationRequest, PredictedLatency

PublishStandings = Callable[[Sequence[HostStatus]], None]

SAY_SECONDS = 0.25
"""Seconds for which news of hosts are collected before they are published."""

_RECOVERABLE_STATES = frozenset({"resting", "connecting", "quarantined"})
"""The states from which a host may come back."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("fleet")


class Fleet:
    """Evaluates on hosts. A failing host costs time, never a verdict.

    `predictor` predicts kernels and is closed with the fleet. `needs` are tags that a host must have.
    `publish` is called with the hosts' states whenever they change.
    """

    name = "ssh"

    def __init__(
        self,
        members: Iterable[FleetMember],
        *,
        predictor: Evaluator,
        needs: frozenset[str] = frozenset(),
        policy: FleetPolicy | None = None,
        publish: PublishStandings = lambda _: None,
    ) -> None:
        """Create a fleet over `members`.

        Raises:
            NoHostsError: there are no members.
        """
        self._policy = policy or FleetPolicy()
        self._seats = [FleetHost(member, self._policy) for member in members]
        if not self._seats:
            raise NoHostsError
        self._predictor = predictor
        self._needs = needs
        self._publish = publish
        self._toolchain: str | None = None
        self._keepers: list[asyncio.Task[None]] = []
        self._preparing = asyncio.Lock()
        self._news = asyncio.Event()
        self._saying: asyncio.TimerHandle | None = None
        self._waiting = 0
        self._open: frozenset[str] = frozenset()

    @property
    def slots(self) -> int:
        """Number of evaluations that all hosts take at a time which are up, or were."""
        return sum(seat.about.slots for seat in self._seats if seat.about and seat.state != "set_aside")

    def standings(self) -> list[HostStatus]:
        """Return the state of each host, in the order in which the hosts were named."""
        return [seat.standing(self._waiting) for seat in self._seats]

    def toolchain(self) -> str:
        """Return what compiles and times kernels on the hosts in use.

        Raises:
            NotReadyError: no host has been reached yet.
        """
        if self._toolchain is None:
            raise NotReadyError("no host was asked yet what it is")
        return self._toolchain

    async def prepare(self) -> None:
        """Reach the hosts, until one of them can be used.

        Raises:
            NoHostError: no host can be used; raised as soon as all have answered, with the answer of each.
        """
        async with self._preparing:
            if any(seat.state == "up" for seat in self._seats):
                return
            if not self._keepers:
                for seat in self._seats:
                    seat.tried = False
                self._keepers = [asyncio.create_task(self._maintain_host(seat)) for seat in self._seats]
            await self._gather_hosts()
            if not any(seat.state == "up" for seat in self._seats):
                error = NoHostError(self._explain_unusable_hosts())
                if self._toolchain is None:
                    await self._stop_hosts()  # nobody waits for these hosts; the next call starts over
                raise error

    async def evaluate(self, request: EvaluationRequest, blobs: BlobReader, /) -> EvaluationAnswer:
        """Judge one candidate on a host, and on another one when that host fails.

        Raises:
            NoHostError: no host was up for longer than a job waits.
            InfrastructureError: no verdict could be reached, through no fault of the kernel.
        """
        await self._ensure_prepared()
        lost: list[str] = []
        while True:
            seat = await self._acquire_slot(request, lost)
            try:
                answer = await seat.member.evaluate(request, blobs)
            except HostError as error:
                lost.append(seat.address)
                self._rest_failed_host(seat, error)
                if len(lost) >= self._policy.most_hosts:
                    raise
                continue
            finally:
                seat.running -= 1
                self._notify_waiters()
            seat.record_success()
            if seat.state == "quarantined" and answer.evaluation.benchmark is not None:
                log.warning("time_not_used", host=seat.address, candidate=request.candidate)
                continue
            device = seat.about.device if seat.about else "unknown"
            where = EvaluationHost(host=seat.address, device=device, compares=seat.doubt is None)
            return replace(answer, where=where)

    async def predict(self, request: PredictionRequest, blobs: BlobReader, /) -> Sequence[PredictedLatency]:
        """Predict kernels at home, without a device.

        Raises:
            InfrastructureError: the kernels could not be predicted.
        """
        return await self._predictor.predict(request, blobs)

    async def aclose(self) -> None:
        """Disconnect from all hosts, including those that do not answer."""
        await self._stop_hosts()
        await self._predictor.aclose()

    # --- jobs --------------------------------------------------------------------------------------

    async def _ensure_prepared(self) -> None:
        if not self._keepers:
            await self.prepare()

    async def _acquire_slot(self, request: EvaluationRequest, lost: Sequence[str]) -> FleetHost:
        """Wait for a free slot and take it, preferably on a host that did not fail this job.

        Raises:
            NoHostError: no host was up for longer than a job waits.
            InfrastructureError: weak_jail: no host's jail may hold the kernel.
        """
        impatient: float | None = None
        self._waiting += 1
        try:
            while True:
                free = [seat for seat in self._seats if seat.is_free(request)]
                if free:
                    seat = min(free, key=lambda one: (one.address in lost, one.running / _slot_count(one)))
                    seat.running += 1
                    return seat
                fit = [seat for seat in self._seats if seat.refusal_reason(request) is None]
                up = any(seat.state == "up" for seat in fit)
                impatient = None if up else impatient or time.monotonic() + self._policy.patience_s
                if impatient is not None and self._is_hopeless(impatient, fit):
                    raise self._no_host_error(request, fit)
                await self._wait_for_change(impatient)
        finally:
            self._waiting -= 1

    def _is_hopeless(self, impatient: float, fit: Sequence[FleetHost]) -> bool:
        """Return whether the wait is over, or no host could come back and run the kernel."""
        return time.monotonic() >= impatient or not any(seat.state in _RECOVERABLE_STATES for seat in fit)

    def _no_host_error(self, request: EvaluationRequest, fit: Sequence[FleetHost]) -> InfrastructureError:
        """Return the error for "no host is left"; not retryable if only stronger jails would help."""
        barred = any(seat.state == "up" and seat.has_unsafe_jail(request) for seat in self._seats)
        if barred and not any(seat.state in _RECOVERABLE_STATES for seat in fit):
            return InfrastructureError("weak_jail", self._explain_unusable_hosts(request), retryable=False)
        return NoHostError(self._explain_unusable_hosts(request))

    async def _wait_for_change(self, until: float | None) -> None:
        """Wait until a host changes, or until a time of the monotonic clock."""
        news = self._news
        with suppress(TimeoutError):
            async with asyncio.timeout(None if until is None else max(0.0, until - time.monotonic())):
                await news.wait()

    def _rest_failed_host(self, seat: FleetHost, error: HostError) -> None:
        """Let a host rest after it failed a job."""
        seat.lost += 1
        if seat.state != "resting":
            log.warning("host_lost", host=seat.address, code=error.code, error=error.message)
            seat.rest(error)

    def _explain_unusable_hosts(self, request: EvaluationRequest | None = None) -> str:
        """Return why no host can be used, with the reason for each."""
        what = "no host can be used" if request is None else f"no host is left for {request.target}"
        return f"{what}: " + "; ".join(
            f"{seat.address}: {_unusable_reason(seat, request).removeprefix(f'{seat.address}: ')}"
            for seat in self._seats
        )

    # --- hosts -------------------------------------------------------------------------------------

    async def _gather_hosts(self) -> None:
        """Wait for the first usable host, and a little longer for others; then choose among them."""
        until: float | None = None
        while not all(seat.tried for seat in self._seats):
            if until is None and any(seat.tried and seat.state == "connecting" for seat in self._seats):
                until = time.monotonic() + self._policy.gather_s
            if until is not None and time.monotonic() >= until:
                break
            await self._wait_for_change(until)
        self._choose_toolchain()

    def _choose_toolchain(self) -> None:
        """Choose the toolchain that most hosts have, once; in a tie, that of the host named first."""
        ready = [seat for seat in self._seats if seat.about and seat.state == "connecting" and seat.tried]
        fit = [
            seat.about.toolchain for seat in ready if seat.about and not self._find_missing_tags(seat.about)
        ]
        if self._toolchain is None and fit:
            self._toolchain = Counter(fit).most_common(1)[0][0]
        for seat in ready:
            self._admit_host(seat)

    def _admit_host(self, seat: FleetHost) -> None:
        """Use a host that answered, unless its toolchain differs or it lacks a tag."""
        assert seat.about is not None
        unfit = self._find_missing_tags(seat.about)
        if self._toolchain is not None and unfit is None and seat.about.toolchain != self._toolchain:
            why = f"its times do not compare: it has {seat.about.toolchain}, others {self._toolchain}"
            unfit = why, "other_toolchain"
        seat.set_state("set_aside" if unfit else "up", *(unfit or ()))
        self._compare_readings(settle=False)
        if self._is_drifting(seat):
            seat.wake.set()  # the host times the kernel once more at once, which settles it
        self._notify_waiters()

    def _find_missing_tags(self, about: HostDescription) -> tuple[str, str] | None:
        lacking = sorted(self._needs - about.tags)
        return (f"it has no tag {', '.join(lacking)}", "lacks_tag") if lacking else None

    async def _maintain_host(self, seat: FleetHost) -> None:
        """Keep one host connected and calibrated until cancelled."""
        while True:
            if seat.state in {"up", "quarantined"}:
                await self._calibrate_host(seat)
            else:
                await self._connect_host(seat)
            await seat.wait_for_wake(self._maintenance_pause(seat))

    def _maintenance_pause(self, seat: FleetHost) -> float:
        if seat.state == "resting":
            return seat.until - time.monotonic()
        if seat.state == "quarantined":
            return self._policy.quarantine_s
        return self._policy.longest_rest_s if seat.state == "set_aside" else self._policy.calibrate_s

    async def _connect_host(self, seat: FleetHost) -> None:
        if seat.state == "resting" and time.monotonic() < seat.until:
            return
        try:
            async with asyncio.timeout(self._policy.connect_s):
                seat.record_description(await seat.member.prepare())
                seat.record_reading(await seat.member.calibrate())
        except InfrastructureError as error:
            seat.rest(error)
        except TimeoutError:
            seat.rest(seat.slow_error())
        except Exception as error:
            log.exception("host_failed", host=seat.address)
            seat.rest(InfrastructureError("internal", f"{type(error).__name__}: {error}"))
        else:
            seat.set_state("connecting")
            if self._toolchain is not None:
                self._admit_host(seat)
        seat.tried = True
        self._notify_waiters()

    # --- comparing ---------------------------------------------------------------------------------

    async def _calibrate_host(self, seat: FleetHost) -> None:
        """Have a host time the calibration kernel; repeat a reading that does not compare."""
        try:
            async with asyncio.timeout(self._policy.connect_s):
                seat.record_reading(await seat.member.calibrate())
                self._compare_readings(settle=False)
                if self._is_drifting(seat) and seat.state == "up":
                    seat.record_reading(await seat.member.calibrate())
        except InfrastructureError as error:
            self._rest_idle_host(seat, error)
            return
        except TimeoutError:
            self._rest_idle_host(
                seat, InfrastructureError("host_deadline", "the calibration kernel took too long")
            )
            return
        except Exception as error:  # otherwise nobody would maintain this host any more
            log.exception("host_failed", host=seat.address)
            self._rest_idle_host(seat, InfrastructureError("internal", f"{type(error).__name__}: {error}"))
            return
        self._compare_readings()

    def _is_drifting(self, seat: FleetHost) -> bool:
        """Return whether the host's last reading is off, or nobody can say whose is."""
        return seat.address in self._open or (seat.ratio is not None and drift.deviates(seat.ratio))

    def _rest_idle_host(self, seat: FleetHost, error: InfrastructureError) -> None:
        log.warning("host_lost", host=seat.address, code=error.code, error=error.message)
        seat.rest(error)
        self._notify_waiters()

    def _compare_readings(self, *, settle: bool = True) -> None:
        """Compare the hosts' readings; with `settle`, quarantine or release hosts accordingly.

        The last host in good standing is kept: no other times are left to compare its own with.
        """
        seats = {
            seat.address: seat for seat in self._seats if seat.all_readings_ms and seat.state != "set_aside"
        }
        good = frozenset(name for name, seat in seats.items() if seat.state in {"up", "connecting"})
        readings = {name: seat.all_readings_ms for name, seat in seats.items()}
        found = drift.drift_ratios(readings, good=good)
        for name, seat in seats.items():
            seat.ratio = found.get(name)
        self._open = frozenset() if found else good
        if not settle:
            return
        for name, seat in seats.items():
            seat.set_doubt(drift.describe_disagreement(readings, good, name) if name in self._open else None)
        for name in sorted(found, key=lambda one: -abs(found[one] - 1)):
            seat, off = seats[name], drift.deviates(found[name])
            others = any(one.state == "up" for other, one in seats.items() if other != name)
            if off and seat.state == "up" and others:
                seat.quarantine(found[name])
                log.warning("host_quarantined", host=name, ratio=round(found[name], 3))
            elif not off and seat.state == "quarantined":
                seat.set_state("up", seat.doubt)
                log.info("host_released", host=name, ratio=round(found[name], 3))
        self._notify_waiters()

    # --- telling -----------------------------------------------------------------------------------

    def _notify_waiters(self) -> None:
        """Wake everyone who waits for hosts, and publish the hosts' states soon."""
        news, self._news = self._news, asyncio.Event()
        news.set()
        if self._saying is None:
            self._saying = asyncio.get_running_loop().call_later(SAY_SECONDS, self._publish_standings)

    def _publish_standings(self) -> None:
        self._saying = None
        try:
            self._publish(self.standings())
        except OSError as error:  # a full disk must not end what does not need the disk
            log.warning("standings_not_published", error=str(error))

    async def _stop_hosts(self) -> None:
        """End the hosts' tasks and disconnect from the hosts, including those that do not answer."""
        keepers, self._keepers = self._keepers, []
        for task in keepers:
            task.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        await asyncio.gather(*(self._close_host(seat) for seat in self._seats))
        for seat in self._seats:
            if seat.state != "resting":
                seat.set_state("closed")
        if self._saying is not None:
            self._saying.cancel()
        self._publish_standings()
        for seat in self._seats:
            seat.state, seat.until = "connecting", 0.0

    async def _close_host(self, seat: FleetHost) -> None:
        try:
            async with asyncio.timeout(self._policy.close_s):
                await seat.member.aclose()
        except (InfrastructureError, TimeoutError, OSError) as error:
            log.warning("host_not_closed", host=seat.address, error=str(error))


def _slot_count(seat: FleetHost) -> int:
    return seat.about.slots if seat.about else 1


def _unusable_reason(seat: FleetHost, request: EvaluationRequest | None) -> str:
    refused = seat.refusal_reason(request) if request is not None and seat.state == "up" else None
    return refused or seat.why or seat.state
