"""This project's side of `benchmarks.vs_dbos`: runs under the host that `agentd` has.

`python -m benchmarks.vs_dbos.runs FOLDER` owns the home in FOLDER until all its runs have ended. Who
proposes and who judges follow a script whose every answer is a step; all else is what `agentd` runs.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import structlog

import seeds
from agent_core.effects import ImplementRequest, PlanRequest, ReflectRequest, SummarizeRequest
from agent_core.roles import ExperienceAnswer, KernelAnswer, PlanAnswer, ReadBlob, ReflectionAnswer
from agent_core.roles.mechanical import experience_of, reflection_of
from benchmarks.vs_dbos.steps import PRAGMAS, Steps, Work, digest_of, tell_pragmas, tell_results
from daemon.command_models import Submit, run_id
from daemon.config import DaemonConfig
from daemon.home_owner import host_home
from daemon.inbox import put_command
from daemon.process_logging import configure_logging
from daemon.stop_signal import StopSignal
from daemon.workers import Workers
from remote import code_digest
from remote.evaluator import BlobReader, EvaluationAnswer
from state import model, schema
from state.events import (
    EffectEnded,
    EvaluationCompleted,
    ExperienceRecorded,
    KernelProposed,
    PlanProposed,
    ReflectionRecorded,
)
from state.log import EventLog
from state.reader import LogReader

PROBLEM = "silu"
TEXT = "TEXT = "
LOOK_SECONDS = 0.02
PAGE = 1000


class Script:
    """Proposer and judge: each answer is one step, named by its run and effect, and carries its text."""

    name = "scripted"
    repairs = False

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    async def _step(self) -> str:
        place = structlog.contextvars.get_contextvars()
        run, effect = place["run"], place["effect"]
        with self._steps.body(run, effect) as (seconds, text):
            await asyncio.sleep(seconds)
        return text

    async def plan(self, request: PlanRequest, read: ReadBlob) -> PlanAnswer:  # noqa: ARG002 - the protocol
        prediction = model.Prediction(speedup=1.01)
        return PlanAnswer(
            model.Plan(
                technique="scripted",
                site=request.key,
                title="a step",
                prediction=prediction,
                detail=await self._step(),
            )
        )

    async def implement(self, request: ImplementRequest, read: ReadBlob) -> KernelAnswer:  # noqa: ARG002
        return KernelAnswer(f"{TEXT}{await self._step()!r}\n", "a step")

    async def summarize(self, request: SummarizeRequest, read: ReadBlob) -> ExperienceAnswer:  # noqa: ARG002
        return ExperienceAnswer(experience_of(request, await self._step()))

    async def reflect(self, request: ReflectRequest, read: ReadBlob) -> ReflectionAnswer:  # noqa: ARG002
        lesson = await self._step()
        return ReflectionAnswer(reflection_of(request).model_copy(update={"lesson": lesson}))

    def toolchain(self) -> str:
        return "scripted 1"

    async def evaluate(self, request: model.EvaluationRequest, blobs: BlobReader, /) -> EvaluationAnswer:
        source = blobs.get_blob(request.source)
        profile = json.dumps({"text": await self._step()}).encode()
        # All within 3 %: no pair is worth an experience, some kernels become the best.
        latency_ms = 1 + int(request.source[-4:], 16) % 30 / 1000
        evaluation = model.Evaluation(
            verdict=model.Verdict.CORRECT,
            stage="profile",
            code=code_digest(source, "trn2"),
            benchmark=model.Benchmark(
                latency_ms=latency_ms, lo_ms=latency_ms, hi_ms=latency_ms, predicted=True, samples=1
            ),
            profile=model.digest_of(profile),
            bottleneck="dma",
            target=request.target,
            toolchain=self.toolchain(),
            level=request.level,
        )
        return EvaluationAnswer(evaluation, {model.digest_of(profile): profile}, {})

    async def aclose(self) -> None:
        """Nothing is held open."""


def submit(home: Path, work: Work) -> list[str]:
    """Put a run per workflow into the inbox, with effects one after the other; return their ids."""
    search = model.SearchConfig(
        beam=1, plans=1, explorers=0, rounds=work.length, plateau_rounds=1000, within_percent=0
    )
    config = model.RunConfig(problem=PROBLEM, size="reduced", planner=("scripted",), search=search)
    files = dict(seeds.load_problem(PROBLEM).files)
    command = Submit.model_construct(verb="submit", config=config, files=files, kernel=f"{TEXT}''\n")
    return [run_id(put_command(home, command, id_=name), PROBLEM) for name in work.names()]


async def own(log: EventLog, work: Work, script: Script) -> None:
    """Host the log until all its runs have ended."""
    stop = StopSignal()
    at_a_time = DaemonConfig(evaluations=work.workflows, proposals=work.workflows)
    workers = Workers(create_evaluator=lambda _: script, create_proposer=lambda _: script)
    hosting = asyncio.create_task(host_home(log, at_a_time, stop=stop, workers=workers))
    while not hosting.done() and not _all_ended(log, work.workflows):  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(LOOK_SECONDS)
    stop.request()
    await hosting


def _all_ended(log: EventLog, count: int) -> bool:
    runs = log.run_ids()
    return len(runs) == count and all(log.run_state(run).has_ended for run in runs)


def results(home: Path) -> dict[str, dict[str, str]]:
    """Return the digest of every step's text as the log has it, by run and effect."""
    found: dict[str, dict[str, str]] = {}
    with LogReader.open(home) as reader:
        after = 0
        while page := reader.read(after=after, limit=PAGE):
            after = page[-1].seq
            for item in page:
                if isinstance(item.event, EffectEnded) and type(item.event) in _TEXTS:
                    text = _TEXTS[type(item.event)](item.event, reader.get_blob)
                    found.setdefault(item.stream, {})[item.event.key] = digest_of(text)
    return found


_TEXTS: dict[type, Any] = {
    PlanProposed: lambda event, _: event.plan.detail,
    KernelProposed: lambda event, read: read(event.source).decode()[len(TEXT) + 1 : -2],
    EvaluationCompleted: lambda event, read: json.loads(read(event.evaluation.profile))["text"],
    ReflectionRecorded: lambda event, _: event.reflection.lesson,
    ExperienceRecorded: lambda event, _: event.experience.summary,
}
"""Where the outcome of each role holds the step's text."""


def pragmas(path: Path) -> dict[str, str | int]:
    """Return what is in force on a connection like the log's own."""
    with closing(schema.open_writer(path)) as connection:
        return {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in PRAGMAS}


def main(folder: Path) -> None:
    work = Work.load(folder)
    configure_logging("warning")
    steps = Steps(folder, work)
    home = folder / "home"
    if not home.exists():
        submit(home, work)
        tell_pragmas(folder, pragmas(folder / "probe.db"))
    with EventLog.open(home) as log:
        asyncio.run(own(log, work, Script(steps)))
    tell_results(folder, results(home))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
