"""Where the server's kernel tools work: one workbench for each problem, or run, that a client names.

Versions of kernels are counted by workbench, and shared by all clients of the server: a name that one
answer gave means the same kernel in every later call. v0 is the problem's starting kernel, or a run's best.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from agent_core.effects import LearningContext
from agent_core.prompting import builtin_prompts
from agent_core.requests import learning_context
from agent_core.roles import RoleError
from agent_core.tools.rewriting import KernelPlace
from agent_core.tools.workbench import KernelTask, LabVerdict, RefusedKernel, Workbench
from agentctl.mcp.answers import RefusedCall
from agentctl.run_flags import load_named_problem
from agentctl.run_lookup import find_run
from daemon.config import load_config
from daemon.home_owner import create_workers
from remote.errors import RemoteError
from remote.evaluator import EvaluationAnswer, Evaluator, Explainer, ExplanationRequest
from remote.judge.job import JudgeOutcome
from state.model import (
    INITIAL_KEY,
    Candidate,
    ErrorInfo,
    EvaluationRequest,
    KernelExplanation,
    Level,
    RunConfig,
    digest_of,
)
from state.reader import LogReader
from targets.registry import starting_kernel

if TYPE_CHECKING:
    from daemon.config import Config
    from daemon.workers import Workers
    from seeds import Problem

MOST_BENCHES = 32
"""How many workbenches are kept; of the others, the versions are forgotten."""
CLIENT = "mcp-client"
"""The author of kernels that clients send; never trusted with a weak jail."""
_NOTHING = LearningContext(memory=(), reflections=(), attempts=(), credits={})


@dataclass(frozen=True, slots=True)
class BenchName:
    """What a workbench is for: a run, or a problem at a size on a target; empty: the home's default."""

    run: str = ""
    problem: str = ""
    size: str = ""
    target: str = ""


@dataclass(frozen=True, slots=True)
class _KernelOrigin:
    """What a workbench begins with."""

    problem: Problem
    config: RunConfig
    source: bytes
    parent: Candidate | None
    context: LearningContext


@dataclass
class HomeLab:
    """Judges kernels of one workbench by the home's own evaluators; nothing is written to a log."""

    workers: Workers
    config: Config
    problem: Problem
    run: RunConfig
    _known: dict[str, LabVerdict] = field(default_factory=dict)

    async def explain(self, source: str, topics: Sequence[str]) -> KernelExplanation | RefusedKernel:
        """Check a kernel's program and explain its predicted latency; nothing is compared."""
        evaluator = self.workers.get_evaluator(self.run)
        if not hasattr(evaluator, "explain"):  # hosts judge: the program is explained here
            evaluator = self.workers.get_evaluator(self.run.model_copy(update={"evaluator": "sim"}))
        data = source.encode()
        request = ExplanationRequest(
            author=CLIENT,
            source=digest_of(data),
            problem=self.problem.make_ref(),
            size=self.run.size,
            target=self.run.target,
            topics=tuple(topics),
        )
        try:
            found = await cast("Explainer", evaluator).explain(request, self._blobs(data))
        except RemoteError as error:
            raise RoleError(ErrorInfo(code=error.code, message=str(error))) from error
        if isinstance(found, JudgeOutcome):
            return RefusedKernel(verdict=found.verdict, stage=found.stage, error=found.error)
        return found

    async def evaluate(self, source: str) -> LabVerdict:
        """Judge a kernel as a run judges proposals; the verdict on an equal source is reused."""
        if source in self._known:
            return self._known[source]
        seconds = self.config.daemon.evaluation_seconds
        try:
            async with asyncio.timeout(seconds):
                answer = await self._judge(source.encode())
        except TimeoutError:
            message = f"no verdict within {seconds:g} s, by daemon.evaluation_seconds"
            raise RoleError(ErrorInfo(code="evaluation_deadline", message=message)) from None
        except RemoteError as error:
            raise RoleError(ErrorInfo(code=error.code, message=str(error))) from error
        made = answer.evaluation
        profile: Mapping[str, Any] = json.loads(answer.artefacts[made.profile]) if made.profile else {}
        return self._known.setdefault(source, LabVerdict(made, profile, digest_of(source.encode())))

    async def _judge(self, data: bytes) -> EvaluationAnswer:
        evaluator: Evaluator = self.workers.get_evaluator(self.run)
        await evaluator.prepare()
        request = EvaluationRequest(
            candidate=INITIAL_KEY.candidate_id,
            author=CLIENT,
            source=digest_of(data),
            problem=self.problem.make_ref(),
            size=self.run.size,
            target=self.run.target,
            toolchain=evaluator.toolchain(),
            level=Level.SLICES,
        )
        return await evaluator.evaluate(request, self._blobs(data))

    def _blobs(self, data: bytes) -> _Blobs:
        return _Blobs({digest_of(one): one for one in (*self.problem.files.values(), data)})


@dataclass(frozen=True, slots=True)
class _Blobs:
    blobs: Mapping[str, bytes]

    def get_blob(self, digest: str, /) -> bytes:
        """Return a blob by its digest."""
        return self.blobs[digest]


class Benches:
    """The workbenches of a server, made when they are first named, and the workers that they share."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._config = load_config(home, os.environ, {}).config
        self.workers = create_workers(home, self._config.daemon)
        self._open: OrderedDict[BenchName, asyncio.Task[Workbench]] = OrderedDict()

    async def find_bench(self, name: BenchName) -> Workbench:
        """Return the workbench for what a client named, made now if need be.

        Raises:
            RefusedCall: neither a run nor a problem is named, or both, or its first kernel cannot be judged.
            daemon.errors.DaemonError, seeds.SeedsError, RoleError: there is no such thing, or no verdict.
        """
        if bool(name.run) == bool(name.problem):
            hint = "`problems` lists problems, `run_status` lists runs; a folder with a problem serves too."
            raise RefusedCall("bad_arguments", "name a `problem` or a `run`, one of the two", hint)
        if name.run and (name.size or name.target):
            raise RefusedCall("bad_arguments", "a run has its own size and target", "Leave them out.")
        task = self._open.get(name)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = self._open[name] = asyncio.create_task(self._make_bench(name))
        self._open.move_to_end(name)
        while len(self._open) > MOST_BENCHES:
            self._open.popitem(last=False)
        return await asyncio.shield(task)  # another client may wait for the same

    async def _make_bench(self, name: BenchName) -> Workbench:
        import remote

        found = await asyncio.to_thread(self._read_origin, name)
        lab = HomeLab(self.workers, self._config, found.problem, found.config)
        source = found.source.decode(errors="replace").strip("\n") + "\n"
        parent = found.parent or await _judge_start(lab, source)
        target = found.config.target
        return Workbench(
            task=KernelTask(
                place=KernelPlace(found.problem.spec, found.config.size, target),
                parent=parent,
                bounds=remote.compute_bounds(found.problem, found.config.size, target),
                within_percent=found.config.search.within_percent,
            ),
            lab=lab,
            context=found.context,
            prompts=builtin_prompts(),
            versions=[source],
            rewriter=self.workers.get_rewriter(target),
        )

    def _read_origin(self, name: BenchName) -> _KernelOrigin:
        if name.run:
            return self._read_run(name.run)
        given = {"run.problem": name.problem, "run.size": name.size, "run.target": name.target}
        config = load_config(self._home, os.environ, {key: value for key, value in given.items() if value})
        problem = load_named_problem(config.config.run.problem)
        run = config.config.run
        return _KernelOrigin(problem, run, starting_kernel(problem, run.target), None, _NOTHING)

    def _read_run(self, run: str) -> _KernelOrigin:
        from remote.evaluation_context import read_problem

        with LogReader.open(self._home) as reader:
            state = reader.run_state(str(find_run(reader, run)["run"]))
            if state.best is None:
                hint = "`wait` for it; a run needs an owner of the home to begin."
                raise RefusedCall("no_kernel_yet", f"run {run} has not judged a kernel yet", hint)
            problem = read_problem(reader, state.problem)
            source = reader.get_blob(state.best.source)
            return _KernelOrigin(problem, state.config, source, state.best, learning_context(state))

    async def aclose(self) -> None:
        """End the workers."""
        for task in self._open.values():
            task.cancel()
        await asyncio.gather(*self._open.values(), return_exceptions=True)
        self._open.clear()
        await self.workers.aclose()


async def _judge_start(lab: HomeLab, source: str) -> Candidate:
    made = (await lab.evaluate(source)).evaluation
    if not made.is_correct or made.benchmark is None:
        why = f"[{made.error.code}] {made.error.message}" if made.error else made.verdict.value
        hint = "Correct the problem's own kernel or its reference first: `agentctl try --problem FOLDER`."
        raise RefusedCall("bad_start", f"the kernel that the problem begins with is refused: {why}", hint)
    return Candidate(
        id="v0", parent=None, lineage="v0", round=0, source=digest_of(source.encode()), code=made.code,
        technique=None, title="the kernel to improve", benchmark=made.benchmark, profile=made.profile,
        bottleneck=made.bottleneck, level=made.level,
    )  # fmt: skip
