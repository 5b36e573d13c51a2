"""A judge that needs no simulator, and a way to host a home until its runs end: what the tests here share."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import seeds
from agent_core import proposers
from agent_core.effects import SimplifyRequest
from agent_core.roles import KernelAnswer, RoleError
from agent_core.roles.scripted import ScriptedProposer
from daemon.command_models import Submit, run_id
from daemon.commands import CommandHandler
from daemon.config import DaemonConfig
from daemon.home_owner import serve_runs
from daemon.inbox import Inbox, put_command
from daemon.stop_signal import StopSignal
from daemon.workers import Workers
from remote import code_digest
from remote.evaluator import EvaluationAnswer
from remote.judge.job import JudgeOutcome
from state.log import EventLog
from state.model import (
    Benchmark,
    ErrorInfo,
    Evaluation,
    KernelExplanation,
    Level,
    PredictedLatency,
    RunConfig,
    SearchConfig,
    Verdict,
    digest_of,
)

KERNEL = "TILE_M = 128\nTILE_N = 64\nTILE_K = 32\n"
"""What the fake judge judges: constants, which the scripted proposer halves and doubles."""

CONFIG = RunConfig(
    problem="silu",
    size="reduced",
    evaluator="fake",
    planner=("scripted",),
    seed=25,
    search=SearchConfig(beam=2, plans=2, rounds=2, explorers=1, repairs=1, within_percent=0, simplify=False),
)

REFUTING = CONFIG.model_copy(update={"seed": 30})
"""A run that has kernels refuted by `LATE`, before its beam and before its end."""

SIMPLIFYING = CONFIG.model_copy(update={"search": CONFIG.search.model_copy(update={"simplify": True})})
"""A run whose winner is simplified, with the workers of `simplifying`."""

TOOLCHAIN = "fake 1"

FAKE = (
    "--set",
    "run.evaluator=fake",
    "--set",
    'run.planner=["scripted"]',
    "--problem",
    "silu",
    "--size",
    "reduced",
)
"""Flags for a run that takes milliseconds."""


@dataclass
class FakeEvaluator:
    """Judges by text: no Python is a lint error, a sum of constants that 5 divides is incorrect.

    With `late`, sums are incorrect only when as much is compared as it says. The latency is a sum over the
    constants with an optimum, the same for the same text. `calls` counts how often each source was judged.
    """

    name: str = "fake"
    calls: dict[str, int] = field(default_factory=dict)
    late: Mapping[int, Level] = field(default_factory=dict)

    def toolchain(self) -> str:
        return TOOLCHAIN

    async def prepare(self) -> None:
        pass

    async def evaluate(self, request, blobs, /) -> EvaluationAnswer:
        source = blobs.get_blob(request.source)
        self.calls[request.source] = self.calls.get(request.source, 0) + 1
        await asyncio.sleep(0)
        return judge_source(source, request.target, request.level, self.late)

    async def explain(self, request, blobs, /) -> KernelExplanation | JudgeOutcome:
        await asyncio.sleep(0)
        found = judge_source(blobs.get_blob(request.source), request.target, Level.SLICES, {}).evaluation
        if found.verdict is Verdict.LINT_ERROR:
            return JudgeOutcome(verdict=found.verdict, stage=found.stage, error=found.error)
        topics = {topic: f"{topic} of a fake kernel" for topic in request.topics}
        return KernelExplanation(latency_ms=1.0, lo_ms=1.0, hi_ms=1.0, bottleneck="dma", topics=topics)

    async def predict(self, request, blobs, /) -> list[PredictedLatency]:
        await asyncio.sleep(0)
        return [predict_latency(source.encode()) for source in request.sources]

    async def aclose(self) -> None:
        pass


def predict_latency(source: bytes) -> PredictedLatency:
    """Predict a kernel as `judge_source` times it, whether or not it is wrong."""
    found = judge_source(source, "trn2", Level.SLICES, {}).evaluation
    latency_ms = found.benchmark.latency_ms if found.benchmark else None
    return PredictedLatency(latency_ms=latency_ms, instructions=1, code=found.code, error=found.error)


LATE = {3: Level.ONE_SEED, 4: Level.WHOLE}
"""From which level on a kernel is wrong, by what its sum of constants leaves when divided by 7."""


def judge_source(source: bytes, target: str, level: Level, late: Mapping[int, Level]) -> EvaluationAnswer:
    code = code_digest(source, "trn2")
    common = {"code": code, "target": target, "toolchain": TOOLCHAIN, "level": level}
    values = [int(text) for text in re.findall(r"^[A-Z_]+ = (\d+)$", source.decode(), re.MULTILINE)]
    if "broken" in source.decode():
        error = ErrorInfo(code="syntax", message="no Python")
        refused = Evaluation(verdict=Verdict.LINT_ERROR, stage="lint", error=error, **common)
        return EvaluationAnswer(refused, {}, {"lint": 0.1})
    caught = late.get(sum(values) % 7)
    if sum(values) % 5 == 0 or (caught and level.covers(caught)):
        wrong = Evaluation(
            verdict=Verdict.INCORRECT,
            stage="numerics",
            error=ErrorInfo(code="incorrect", message="wrong"),
            rel_l2={0: 1.0},
            **common,
        )
        return EvaluationAnswer(wrong, {}, {"numerics": 0.2})
    latency = 1.0 + sum(abs(value - 100) / 100 for value in values)
    profile = json.dumps({"bottleneck": "dma", "counters": {"dma_active_time_percent": latency}}).encode()
    good = Evaluation(
        verdict=Verdict.CORRECT,
        stage="profile",
        rel_l2={0: 1e-7},
        benchmark=Benchmark(
            latency_ms=latency,
            lo_ms=latency,
            hi_ms=latency,
            predicted=True,
            samples=1,
            draws_ms=(latency, 1.1 * latency),
        ),
        profile=digest_of(profile),
        bottleneck="dma",
        **common,
    )
    return EvaluationAnswer(good, {digest_of(profile): profile}, {"profile": 0.3})


def fake_workers(evaluator: FakeEvaluator | None = None) -> Workers:
    judge_ = evaluator or FakeEvaluator()
    return Workers(create_evaluator=lambda _: judge_, create_proposer=proposers.create_proposer)


def refuting_workers() -> Workers:
    """Return workers whose evaluator finds some kernels wrong only when it compares more."""
    return fake_workers(FakeEvaluator(late=LATE))


class SimplifyingProposer(ScriptedProposer):
    """Makes a winner simpler by leaving out the constant without which it is predicted to be fastest."""

    async def simplify(self, request: SimplifyRequest, leg, read, predict) -> KernelAnswer:
        lines = read(request.best.source).decode().splitlines(keepends=True)
        made = ["".join(lines[:at] + lines[at + 1 :]) for at in range(len(lines))]
        answers = await predict(made)
        told = {source: one.latency_ms for source, one in zip(made, answers, strict=True) if one.latency_ms}
        if len(lines) < 2 or not told:
            raise RoleError(ErrorInfo(code="nothing_simpler", message="one line is left"))
        return KernelAnswer(min(told, key=told.__getitem__), "simplified: a line less")


@contextmanager
def simplifying() -> Iterator[Workers]:
    """Have the scripted proposer simplify the winners of its runs; yield the workers for them."""
    judge_ = FakeEvaluator()
    with ExitStack() as stack:
        for room in ("agent_core.simplification", "daemon.predicting_roles"):
            stack.enter_context(mock.patch(f"{room}.find_simplifier", return_value="scripted"))
        yield Workers(create_evaluator=lambda _: judge_, create_proposer=lambda _: SimplifyingProposer())


def create_submission(config: RunConfig = CONFIG, kernel: str = KERNEL) -> Submit:
    return Submit.model_construct(
        verb="submit", config=config, files=dict(seeds.load_problem(config.problem).files), kernel=kernel
    )


def submit_run(home: Path, config: RunConfig = CONFIG, *, id_: str | None = None) -> str:
    """Drop a submit into the inbox of `home`; return the id of the run that it will create."""
    return run_id(put_command(home, create_submission(config), id_=id_), config.problem)


def daemon_config(at_a_time: int = 1) -> DaemonConfig:
    return DaemonConfig(evaluations=at_a_time, proposals=at_a_time, grace_seconds=5)


async def host_until_ended(event_log: EventLog, *runs: str, workers=None, at_a_time: int = 1) -> None:
    """Host a home until all of `runs` have ended."""
    stop = StopSignal()
    hosting = asyncio.create_task(
        serve_runs(event_log, daemon_config(at_a_time), stop=stop, workers=workers or fake_workers())
    )
    while not hosting.done() and not all(has_ended(event_log, run) for run in runs):  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(0.002)
    stop.request()
    await hosting


def take_commands(home: Path) -> None:
    """Own `home` only as long as it takes to answer the commands that wait."""
    with EventLog.open(home) as event_log:
        commands = CommandHandler(event_log, fake_workers(), touched=lambda *_: None)
        asyncio.run(Inbox(home, commands.handle).take_all())


def has_ended(event_log: EventLog, run: str) -> bool:
    return event_log.run_seq(run) > 0 and event_log.run_state(run).has_ended


def finish_runs(home: Path, *runs: str, workers=None, at_a_time: int = 1) -> None:
    """Own `home` until all of `runs` have ended."""
    with EventLog.open(home) as event_log:
        asyncio.run(host_until_ended(event_log, *runs, workers=workers, at_a_time=at_a_time))


def join_wrapped_lines(text: str) -> str:
    """Return what was said, on one line however wide the terminal was."""
    return " ".join(text.split())
