"""`agentctl try`: judges one kernel without a run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from agentctl.app import Session, common_options
from agentctl.formatting import (
    LEVELS,
    explain_share_of_bound,
    format_identity,
    format_latency,
    format_percent,
    format_stability,
)
from agentctl.kernel_predictions import source_line
from agentctl.run_flags import (
    effective_from_flags,
    load_named_problem,
    problem_of_kernel,
    read_kernel_source,
    target_option,
)
from agentctl.views.run import bound_percent
from daemon import exits
from daemon.config import Config, DaemonConfig
from daemon.errors import NotAnswered
from state.errors import BlobMissing
from state.model import INITIAL_KEY, PERSON, Evaluation, EvaluationRequest, HostConfig, Level, digest_of
from targets.registry import roofline_name, starting_kernel

if TYPE_CHECKING:
    from remote.evaluator import EvaluationAnswer

T = TypeVar("T")

SAY_AFTER_SECONDS = 2.0
SAY_EVERY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class MemoryBlobs:
    """Blobs in memory, outside any log, for one evaluation."""

    blobs: dict[str, bytes]

    def get_blob(self, digest: str, /) -> bytes:
        if digest not in self.blobs:
            raise BlobMissing(f"no blob {digest}")
        return self.blobs[digest]


@click.command("try", epilog=exits.epilog())
@click.argument("kernel", type=click.Path(path_type=Path), required=False)
@click.option("--problem", help="A name from `agentctl problems`, or a folder.")
@click.option("--size", help="Problem size: full or reduced.")
@target_option()
@click.option("--host", metavar="[USER@]HOST[:PORT]", help="Judge it there, over SSH.")
@common_options
def try_kernel(session: Session, kernel: Path | None, host: str | None, **flags: Any) -> int:
    """Judge one KERNEL, or the problem's own, as a run would, without a run; status 0 if correct, else 1.

    If `run.hosts` describes HOST, its entry there is used.
    """
    import remote

    wanted = effective_from_flags(session, flags)
    config = wanted.config
    config = config if host is None else select_host(config, host)
    problem = load_named_problem(problem_of_kernel(wanted, kernel))
    bounds = remote.compute_bounds(problem, config.run.size, config.run.target)
    source = read_kernel_source(kernel) if kernel else starting_kernel(problem, config.run.target).decode()
    try:
        answer = asyncio.run(evaluate_kernel(session.home, config, problem, source.encode()))
    except (remote.RemoteError, NotAnswered) as error:
        session.emit({"error": {"code": error.code, "message": str(error)}})
        raise
    evaluation = answer.evaluation
    timed = evaluation.benchmark
    latency_ms = timed.latency_ms if timed else None
    of_model = bound_percent(bounds.tight_ms, latency_ms)
    shares = {
        "percent_of_peak": bound_percent(bounds.plain_ms, latency_ms),
        "percent_of_model_bound": of_model,
        "percent_of_tight_bound": of_model,  # the name of the model bound before it had this one
    }
    name = str(kernel or f"initial kernel of {problem.name}")
    where = answer.where and answer.where.model_dump()
    text = _format_verdict(name, source, evaluation, shares=shares)
    text += f"\n  host: {where['host']}\n  device: {where['device']}" if where else ""
    session.emit({**evaluation.model_dump(mode="json"), **shares, "where": where}, text)
    return exits.OK if evaluation.is_correct else exits.FAILURE


def select_host(config: Config, address: str) -> Config:
    """Return the configuration with one host as the judge, with that host's own settings if it is
    configured.

    Raises:
        remote.errors.RemoteError: the address is invalid.
    """
    from remote.ssh.host import HostSpec
    from remote.ssh.host_config import host_from_config

    wanted = HostSpec.parse(address).address
    known = (one for one in config.run.hosts if host_from_config(one).address == wanted)
    host = next(known, HostConfig(address=wanted))
    run = config.run.model_copy(update={"evaluator": "ssh", "hosts": (host,), "host_tags": ()})
    return config.model_copy(update={"run": run})


async def evaluate_kernel(
    home: Path, config: Config, problem: Any, source: bytes, level: Level = Level.WHOLE
) -> EvaluationAnswer:
    """Return the verdict on a kernel, from a worker of its own; a slow one reports on stderr that it
    goes on.

    Raises:
        NotAnswered: it took longer than `daemon.evaluation_seconds`.
        remote.RemoteError: no verdict could be reached.
    """
    from daemon.home_owner import create_workers

    workers = create_workers(home, config.daemon)
    try:
        evaluator = workers.get_evaluator(config.run)
        files = (*problem.files.values(), source)
        blobs = MemoryBlobs({digest_of(data): data for data in files})

        async def judge() -> EvaluationAnswer:
            await evaluator.prepare()
            request = EvaluationRequest(
                candidate=INITIAL_KEY.candidate_id,
                author=PERSON,
                source=digest_of(source),
                problem=problem.make_ref(),
                size=config.run.size,
                target=config.run.target,
                toolchain=evaluator.toolchain(),  # which a host does not say before it is prepared
                level=level,
            )
            return await evaluator.evaluate(request, blobs)

        return await await_within_deadline(judge(), config.daemon)
    finally:
        await workers.aclose()


async def await_within_deadline(
    work: Awaitable[T], config: DaemonConfig, *, doing: str = "judging", wanted: str = "verdict"
) -> T:
    """Return the result of `work`; report on stderr that it goes on if it takes a while.

    Raises:
        NotAnswered: it took longer than `daemon.evaluation_seconds`, and was cancelled.
    """
    seconds = config.evaluation_seconds
    saying = asyncio.create_task(_report_waiting(doing, seconds))
    try:
        async with asyncio.timeout(seconds) as deadline:
            return await work
    except TimeoutError:
        if not deadline.expired():
            raise
        text = f"no {wanted} within {seconds:g} s, by daemon.evaluation_seconds"
        raise NotAnswered(text, code="evaluation_deadline") from None
    finally:
        saying.cancel()
        await asyncio.gather(saying, return_exceptions=True)


async def _report_waiting(doing: str, seconds: float) -> None:
    waited = 0.0
    for pause in chain((SAY_AFTER_SECONDS,), repeat(SAY_EVERY_SECONDS)):
        await asyncio.sleep(pause)
        waited += pause
        click.echo(f"{doing}: {waited:g} s, {seconds:g} s at most", err=True)


def _format_verdict(
    name: str, source: str, evaluation: Evaluation, *, shares: dict[str, float | None]
) -> str:
    correct, level = evaluation.is_correct, LEVELS[evaluation.level]
    found = f" on {level}" if correct else f", found in the judge's stage {evaluation.stage}"
    lines = [f"{name}: {evaluation.verdict.value}{found}"]
    if evaluation.error is not None:
        error = evaluation.error
        where = f" line {error.line}:" if error.line is not None else ""
        lines.append(f" {where} {error.message} [{error.code}]")
        lines += [f"      {shown}"] if (shown := source_line(source, error)) else []
        lines += [f"  hint: {error.hint}"] if error.hint else []
    lines += [f"  warning: {one.message} [{one.code}]" for one in evaluation.warnings]
    if evaluation.rel_l2:
        worst = max(evaluation.rel_l2.values())
        lines.append(
            f"  largest relative L2 error over seeds {', '.join(map(str, evaluation.rel_l2))}: {worst:.2g}"
        )
    if evaluation.identity is not None:
        lines.append(f"  {format_identity(evaluation.identity)}")
    if evaluation.stability is not None:
        lines.append(f"  {format_stability(evaluation.stability)}")
    if evaluation.benchmark is not None:
        benchmark, share = evaluation.benchmark, shares["percent_of_model_bound"]
        peak, near = format_percent(shares["percent_of_peak"]), format_percent(share)
        doubt = explain_share_of_bound(share, predicted=benchmark.predicted)
        lines.append(
            f"  {format_latency(benchmark)}, {peak} of the {roofline_name(evaluation.target)}, "
            f"{near} of the model bound"
        )
        lines += [f"  {doubt}"] if doubt else []
        lines.append(f"  bottleneck: {evaluation.bottleneck}")
    return "\n".join(lines)
