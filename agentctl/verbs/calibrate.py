"""`agentctl calibrate`: has a host time small kernels, and fits the performance model's constants to them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentctl.app import Session, common_options
from agentctl.command_answers import send_command
from agentctl.formatting import format_count
from agentctl.run_flags import config_from_flags, target_option
from daemon import exits
from daemon.command_models import Calibrate
from daemon.config import Config
from daemon.errors import DaemonError
from state.calibrations import write_calibration
from state.model import CalibratedTime, DeviceCalibration
from targets.base import import_part
from targets.registry import load_target

if TYPE_CHECKING:
    from remote.ssh.host import HostSpec

_ROW = "{:32}  {:>10}  {:>10}  {:>10}  {:>10}"


@click.command(epilog=exits.epilog())
@click.option("--host", metavar="[USER@]HOST[:PORT]", help="The host whose device is timed.")
@target_option()
@click.option("--name", help="The calibration's name; by default TARGET@SDK.")
@click.option("--kernels", type=click.IntRange(min=10), help="Time only this many kernels, spread evenly.")
@common_options
def calibrate(session: Session, host: str | None, name: str | None, kernels: int | None, **flags: Any) -> int:
    """Fit the performance model to a HOST's device, and keep the result as a calibration that runs can name.

    About seventy kernels are timed, which takes ten minutes. Set run.calibration to use the result. Without a
    host, for a target that is this machine (--target x86), measure the rates that bounds follow from.
    """
    config = config_from_flags(session, flags)
    if host is None:
        return _measure_machine(session, config.run.target)
    part = load_target(config.run.target).parts.calibrator
    if part is None:
        raise click.UsageError(f"there are no calibration kernels for {config.run.target}")
    calibrator = import_part(part)
    chosen = _spread(calibrator.calibration_kernels(), kernels)
    with session.progress_bar("timing kernels") as bar:
        timed, failed, toolchain = asyncio.run(
            _time_kernels(
                session.home, config, _find_host(config, host), kernels=chosen, calibrator=calibrator, bar=bar
            )
        )
    if not timed:
        raise DaemonError(f"{host} timed no kernel: {failed[0][1]}", code="not_calibrated")
    try:
        found = calibrator.fit_times(
            timed,
            name=name or calibrator.default_name(config.run.target, toolchain),
            target=config.run.target,
            host=host,
            toolchain=toolchain,
        )
    except ValueError as error:
        raise DaemonError(f"{host}: {error}", code="not_calibrated") from error
    path = write_calibration(session.home, found)
    send_command(session.home, Calibrate(calibration=found))
    text = "\n".join(_format_calibration(found, failed, path))
    session.emit({**found.model_dump(mode="json"), "failed": dict(failed), "path": str(path)}, text)
    return exits.OK


def _measure_machine(session: Session, target: str) -> int:
    part = load_target(target).parts.machine_rates
    if part is None:
        raise click.UsageError(
            f"name the host whose device is timed: --host HOST; {target} is not this machine"
        )
    rates: dict[str, float | str] = asyncio.run(import_part(part)())
    lines = [
        f"{one:34} {told:.4g}" if isinstance(told, float) else f"{one:34} {told}"
        for one, told in rates.items()
    ]
    session.emit(rates, "\n".join(lines))
    return exits.OK


def _find_host(config: Config, address: str) -> HostSpec:
    from remote.ssh.host_config import select_hosts

    return select_hosts([address], config.run.hosts)[0]


def _spread(kernels: Sequence[Any], count: int | None) -> list[Any]:
    """Return `count` of the kernels, evenly spaced; all by default."""
    if count is None or count >= len(kernels):
        return list(kernels)
    return [kernels[number * len(kernels) // count] for number in range(count)]


async def _time_kernels(
    home: Path, config: Config, host: HostSpec, *, kernels: Sequence[Any], calibrator: Any, bar: Any
) -> tuple[list[Any], list[tuple[str, str]], str]:
    """Return the timed kernels, those that failed with the reason, and the host's toolchain.

    Raises:
        remote.RemoteError: the host cannot be reached, or has no device.
    """
    from remote.judge_service import JudgeService
    from remote.ssh.errors import HostCalibrationError
    from remote.ssh.evaluator import HostEvaluator
    from remote.ssh.jobs import JobClient
    from remote.ssh.link import SshLink

    judge = JudgeService(home=home, slots=1, allow_weak_jail=config.daemon.allow_weak_jail)
    jobs = JobClient(SshLink(host, home=home))
    evaluator = HostEvaluator(
        jobs,
        address=host.address,
        judge=judge,
        target=config.run.target,
        allow_weak_jail=config.daemon.allow_weak_jail,
    )
    timed: list[Any] = []
    failed: list[tuple[str, str]] = []
    try:
        facts = await evaluator.device_facts()
        if facts.is_predicted:
            text = f"{host.address} has no device: its times are predictions of the model itself"
            hint = "name a host with a device and its SDK; `agentctl host check` says what a host has"
            raise DaemonError(text, code="not_calibrated", hint=hint)
        for number, kernel in enumerate(kernels):
            bar(number, len(kernels))
            try:
                found = await evaluator.time_kernel(kernel.problem, kernel.source.encode())
            except HostCalibrationError as error:
                failed.append((kernel.name, str(error)))
                continue
            timed.append(calibrator.TimedKernel(kernel, found.latency_ms, found.program))
        return timed, failed, facts.toolchain
    finally:
        await evaluator.aclose()
        await jobs.aclose()
        await judge.aclose()


def _format_calibration(
    found: DeviceCalibration, failed: Sequence[tuple[str, str]], path: Path
) -> Iterator[str]:
    yield _ROW.format("KERNEL", "MEASURED", "BEFORE", "AFTER", "LEFT OUT")
    for one in sorted(found.kernels, key=_worsening, reverse=True):
        errors = (_format_error(one, ms) for ms in (one.before_ms, one.after_ms, one.left_out_ms))
        yield _ROW.format(one.name, f"{1e3 * one.measured_ms:.1f} us", *errors)
    for name, why in failed:
        yield f"{name:32}  not timed: {why}"
    yield ""
    for name, value in found.constants.items():
        yield f"{name} = {value if isinstance(value, bool) else format(value, '.4g')}"
    if found.before_percent is not None and found.left_out_percent is not None:
        yield (
            f"median error {found.before_percent:.1f} % with the table's constants, "
            f"{found.left_out_percent:.1f} % with constants from other families"
        )
    fitted = format_count(len(found.constants), "constant")
    yield f"{found.name}: {fitted} of {found.target} fitted to {len(found.kernels)} kernels, in {path}"
    yield f"to use it in runs: agentctl config set run.calibration={found.name}"


def _error(one: CalibratedTime, ms: float | None) -> float:
    return float("inf") if ms is None else abs(ms / one.measured_ms - 1)


def _worsening(one: CalibratedTime) -> float:
    """How much worse a kernel is predicted than before; kernels that are refused come first."""
    after, before = _error(one, one.after_ms), _error(one, one.before_ms)
    return after - before if after < float("inf") else after


def _format_error(one: CalibratedTime, ms: float | None) -> str:
    return "refused" if ms is None else f"{100 * (ms / one.measured_ms - 1):+.1f} %"
