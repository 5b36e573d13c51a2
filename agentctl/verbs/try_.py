"""`agentctl try`: judge one kernel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentctl.app import Session, common
from agentctl.choices import configured, read_source
from agentctl.views.run import percent
from agentctl.words import LEVELS, identity, latency, percentage
from daemon import exits
from daemon.config import Config
from daemon.errors import NotAnswered
from state.errors import BlobMissing
from state.model import INITIAL_KEY, PERSON, Evaluation, EvaluationRequest, HostConfig, Level, digest_of
from targets.registry import target_names

if TYPE_CHECKING:
    from remote.evaluator import EvaluationAnswer

SAY_AFTER_SECONDS = 2.0
SAY_EVERY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Loose:
    """Blobs that are in no log: what one evaluation reads."""

    blobs: dict[str, bytes]

    def get_blob(self, digest: str, /) -> bytes:
        if digest not in self.blobs:
            raise BlobMissing(f"no blob {digest}")
        return self.blobs[digest]


@click.command("try", epilog=exits.epilog())
@click.argument("kernel", type=click.Path(path_type=Path), required=False)
@click.option("--problem", help="A name from `agentctl problems`, or a folder.")
@click.option("--size", help="Problem size: full or reduced.")
@click.option("--target", help=f"Target device: {' or '.join(target_names())}.")
@click.option("--host", metavar="[USER@]HOST[:PORT]", help="Judge it there, over SSH.")
@common
def try_(session: Session, kernel: Path | None, host: str | None, **flags: Any) -> int:
    """Judge one KERNEL, or the problem's own, as a run would, without a run; status 0 if correct, else 1.

    HOST is used as `run.hosts` has it, if it does.
    """
    import remote
    import seeds

    config = configured(session, flags)
    config = config if host is None else on_host(config, host)
    problem = seeds.load(config.run.problem)
    bounds = remote.bounds(problem, config.run.size, config.run.target)
    source = read_source(kernel) if kernel else problem.kernel
    answer = asyncio.run(evaluate(session.home, config, problem, source.encode()))
    evaluation = answer.evaluation
    timed = evaluation.benchmark
    latency_ms = timed.latency_ms if timed else None
    shares = {
        "percent_of_peak": percent(bounds.plain_ms, latency_ms),
        "percent_of_tight_bound": percent(bounds.tight_ms, latency_ms),
    }
    name = str(kernel or f"initial kernel of {problem.name}")
    where = answer.where and answer.where.model_dump()
    text = _verdict(name, evaluation, shares)
    text += f"\n  host: {where['host']}\n  device: {where['device']}" if where else ""
    session.emit({**evaluation.model_dump(mode="json"), **shares, "where": where}, text)
    return exits.OK if evaluation.correct else exits.FAILURE


def on_host(config: Config, address: str) -> Config:
    """Return the configuration with kernels judged on one host: as it names it, if it does.

    Raises:
        remote.errors.RemoteError: the address is none.
    """
    from remote.ssh.host import Host
    from remote.ssh.named import host_of

    wanted = Host.parse(address).address
    known = (one for one in config.run.hosts if host_of(one).address == wanted)
    host = next(known, HostConfig(address=wanted))
    run = config.run.model_copy(update={"evaluator": "ssh", "hosts": (host,), "host_tags": ()})
    return config.model_copy(update={"run": run})


async def evaluate(
    home: Path, config: Config, problem: Any, source: bytes, level: Level = Level.WHOLE
) -> EvaluationAnswer:
    """Return the verdict on a kernel, by a worker of its own; a long one says on stderr that it goes on.

    Raises:
        NotAnswered: it took longer than `daemon.evaluation_seconds`.
        remote.RemoteError: no verdict could be reached.
    """
    from daemon.host import workers_of

    workers = workers_of(home, config.daemon)
    try:
        evaluator = workers.evaluator(config.run)
        await evaluator.prepare()
        files = (*problem.files.values(), source)
        request = EvaluationRequest(
            candidate=INITIAL_KEY.candidate,
            author=PERSON,
            source=digest_of(source),
            problem=problem.ref(),
            size=config.run.size,
            target=config.run.target,
            toolchain=evaluator.toolchain(),
            level=level,
        )
        blobs = Loose({digest_of(data): data for data in files})
        return await _within(evaluator.evaluate(request, blobs), config.daemon.evaluation_seconds)
    finally:
        await workers.aclose()


async def _within(work: Awaitable[EvaluationAnswer], seconds: float) -> EvaluationAnswer:
    """Return what `work` gives, saying on stderr that it goes on when it takes a while.

    Raises:
        NotAnswered: it took longer than `seconds`; it is cancelled.
    """
    saying = asyncio.create_task(_say_working(seconds))
    try:
        async with asyncio.timeout(seconds) as deadline:
            return await work
    except TimeoutError:
        if not deadline.expired():
            raise
        text = f"no verdict within {seconds:g} s, by daemon.evaluation_seconds"
        raise NotAnswered(text, code="evaluation_deadline") from None
    finally:
        saying.cancel()
        await asyncio.gather(saying, return_exceptions=True)


async def _say_working(seconds: float) -> None:
    waited = 0.0
    for pause in chain((SAY_AFTER_SECONDS,), repeat(SAY_EVERY_SECONDS)):
        await asyncio.sleep(pause)
        waited += pause
        click.echo(f"judging: {waited:g} s, {seconds:g} s at most", err=True)


def _verdict(name: str, evaluation: Evaluation, shares: dict[str, float | None]) -> str:
    correct, level = evaluation.correct, LEVELS[evaluation.level]
    found = f" on {level}" if correct else f", found in the judge's stage {evaluation.stage}"
    lines = [f"{name}: {evaluation.verdict.value}{found}"]
    if evaluation.error is not None:
        error = evaluation.error
        where = f" line {error.line}:" if error.line is not None else ""
        lines.append(f" {where} {error.message} [{error.code}]")
        lines += [f"  hint: {error.hint}"] if error.hint else []
    if evaluation.rel_l2:
        worst = max(evaluation.rel_l2.values())
        lines.append(
            f"  largest relative L2 error over seeds {', '.join(map(str, evaluation.rel_l2))}: {worst:.2g}"
        )
    if evaluation.identity is not None:
        lines.append(f"  {identity(evaluation.identity)}")
    if evaluation.benchmark is not None:
        peak, tight = percentage(shares["percent_of_peak"]), percentage(shares["percent_of_tight_bound"])
        lines.append(
            f"  {latency(evaluation.benchmark)}, {peak} of the NKIBench roofline, {tight} of the tight bound"
        )
        lines.append(f"  bottleneck: {evaluation.bottleneck}")
    return "\n".join(lines)
