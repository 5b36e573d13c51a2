"""`agentctl try`, `problems` and `verify`: judge one kernel, list the problems, prove the log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from daemon.config import Config
from daemon.ctl import exits
from daemon.ctl.app import Session, common
from daemon.ctl.choices import configured, read_source
from daemon.ctl.tracker import percent
from daemon.ctl.words import latency, percentage
from daemon.errors import NotAnswered
from state.errors import BlobMissing
from state.model import INITIAL_KEY, PERSON, Evaluation, EvaluationRequest, digest_of
from state.reader import LogReader

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
@click.argument("kernel", type=click.Path(path_type=Path))
@click.option("--problem", help="A name from `agentctl problems`, or a folder.")
@click.option("--size", help="Problem size: full or reduced.")
@click.option("--target", help="Target device: trn1 or trn2.")
@common
def try_(session: Session, kernel: Path, **flags: Any) -> int:
    """Judge one KERNEL as a run would, without a run; status 0 if it is correct, else 1."""
    import remote
    import seeds

    config = configured(session, flags)
    problem = seeds.load(config.run.problem)
    bounds = remote.bounds(problem, config.run.size, config.run.target)
    evaluation = asyncio.run(_evaluate(session.home, config, problem, read_source(kernel).encode()))
    timed = evaluation.benchmark
    latency_ms = timed.latency_ms if timed else None
    shares = {
        "percent_of_peak": percent(bounds.plain_ms, latency_ms),
        "percent_of_tight_bound": percent(bounds.tight_ms, latency_ms),
    }
    session.emit({**evaluation.model_dump(mode="json"), **shares}, _verdict(str(kernel), evaluation, shares))
    return exits.OK if evaluation.correct else exits.FAILURE


async def _evaluate(home: Path, config: Config, problem: Any, source: bytes) -> Evaluation:
    from daemon.host import workers_of

    workers = workers_of(home, config.daemon)
    try:
        evaluator = workers.evaluator(config.run.evaluator)
        files = (*problem.files.values(), source)
        request = EvaluationRequest(
            candidate=INITIAL_KEY.candidate,
            author=PERSON,
            source=digest_of(source),
            problem=problem.ref(),
            size=config.run.size,
            target=config.run.target,
            toolchain=evaluator.toolchain(),
        )
        blobs = Loose({digest_of(data): data for data in files})
        answer = await _within(evaluator.evaluate(request, blobs), config.daemon.evaluation_seconds)
    finally:
        await workers.aclose()
    return answer.evaluation


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
    lines = [f"{name}: {evaluation.verdict.value} (stage {evaluation.stage})"]
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
    if evaluation.benchmark is not None:
        peak, tight = percentage(shares["percent_of_peak"]), percentage(shares["percent_of_tight_bound"])
        lines.append(
            f"  {latency(evaluation.benchmark)}, {peak} of the NKIBench roofline, {tight} of the tight bound"
        )
        lines.append(f"  bottleneck: {evaluation.bottleneck}")
    return "\n".join(lines)


@click.command(epilog=exits.epilog())
@common
def problems(session: Session) -> None:
    """List the problems that come with the program."""
    import seeds

    found = [seeds.load(name).spec for name in seeds.problems()]
    content = [{"name": spec.name, "formula": spec.formula, "sizes": spec.sizes} for spec in found]
    width = max(len(spec.name) for spec in found)
    lines = [
        f"{spec.name:{width}} {spec.formula}\n"
        + "\n".join(f"{'':{width}}   {size}: {_dims(dims)}" for size, dims in spec.sizes.items())
        for spec in found
    ]
    session.emit(content, "\n".join(lines))


def _dims(dims: dict[str, int]) -> str:
    return " ".join(f"{name}{value}" for name, value in dims.items())


@click.command(epilog=exits.epilog())
@click.option("--quick", is_flag=True, help="The hash chains and the HEAD anchor only.")
@common
def verify(session: Session, quick: bool) -> int:
    """Re-derive the log's chains, folds and read models; status 4 names the first bad row."""
    from state import verify as proof

    LogReader.open(session.home).close()  # says in one line when there is nothing to verify
    report = proof.verify(session.home, deep=not quick)
    findings = [str(finding) for finding in report.findings]
    counted = f"{report.events} events, {report.state_hashes} state hashes, {report.blobs} blobs"
    text = [f"ok: {counted}"] if report.ok else findings
    if not report.anchored:
        text = [*text, "no HEAD: a lost tail cannot be noticed"]
    found = {
        "ok": report.ok,
        "events": report.events,
        "blobs": report.blobs,
        "anchored": report.anchored,
        "findings": findings,
    }
    session.emit(found, "\n".join(text))
    return exits.OK if report.ok else exits.LOG
