"""The server's tools that read: run_status, wait, best, why, problems. They need no owner of the home."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from pydantic import Field

from agentctl.command_answers import is_owned, queued_runs
from agentctl.formatting import LEVELS
from agentctl.mcp.answers import LatencyClaim, RefusedCall, ToolInput, ToolOutput
from agentctl.run_lookup import find_run
from agentctl.terminal_style import strip_colours
from agentctl.verbs.wait import WaitCondition, format_run_view, parse_condition
from agentctl.verbs.why import format_story
from agentctl.views.candidate import BEST, INITIAL, CandidateView, load_candidate
from agentctl.views.run import RunView, run_view
from state.errors import NoLog
from state.model import Candidate, FrozenModel, Level
from state.reader import LogReader

MOST_RUNS = 50
MOST_WAIT_SECONDS = 600
LOOK_SECONDS = 0.5

ReportProgress = Callable[[float, str], Awaitable[None]]
"""Tells the client how far a call is, if it asked for that."""

_OVER = ("completed", "cancelled")


class RunRow(FrozenModel):
    """A run in short; its latencies stand beside it. Speed-ups are of the same kind as these."""

    run: str
    state: str
    reason: str | None
    problem: str
    size: str
    target: str
    round: int
    rounds: int
    best: str | None
    speedup: float | None = Field(description="of the best kernel over the initial one")
    percent_of_model_bound: float | None
    percent_of_tight_bound: float | None
    evaluated: int
    failed: int
    in_flight: int
    needs_approval: tuple[str, ...]
    spent_usd: float | None

    def render(self) -> str:
        """Return the state in one line."""
        faster = f", {self.speedup:.3f} times as fast as the initial kernel" if self.speedup else ""
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.run}: {self.state}{why}, round {self.round}/{self.rounds}{faster}"


class RunOutput(ToolOutput):
    """One run; `is_owned` says whether a process drives the home's runs."""

    run: RunRow
    is_owned: bool

    def render(self) -> str:
        return self.run.render()


def _describe_run(view: RunView) -> RunRow:
    return RunRow(run=view.id, **{name: getattr(view, name) for name in RunRow.model_fields if name != "run"})


def _run_claims(initial: Candidate | None, best: Candidate | None) -> tuple[LatencyClaim, ...]:
    return tuple(
        LatencyClaim.of_benchmark(name, one.benchmark, one.bottleneck)
        for name, one in (("initial", initial), ("best", best))
        if one is not None
    )


def _advise(home: Path, view: RunView, *, owned: bool) -> str:
    if view.needs_approval:
        return f"A person must approve it: `agentctl approve {view.id}`."
    if view.state in _OVER:
        return "`best` returns the kernel, `why` its story."
    if view.state == "paused":
        return "`resume` continues it, once what its reason names is corrected."
    return "`wait` returns when it has ended, or earlier by a condition." if owned else start_hint(home)


def start_hint(home: Path) -> str:
    """Return how a home without an owner gets one."""
    return (
        f"Nobody owns the home {home}, so nothing is run now. Start `agentd --home {home}`, or start this "
        "server with `agentctl mcp --agentd`, which starts one when it is needed."
    )


class RunStatusInput(ToolInput):
    """Arguments of `run_status`."""

    run: str = Field(default="", description="a run's id, or the beginning of it; empty: all runs")


class RunStatusOutput(ToolOutput):
    """The runs of the home, newest first, and those that wait in its inbox."""

    runs: tuple[RunRow, ...]
    queued: tuple[str, ...] = ()
    is_owned: bool

    def render(self) -> str:
        rows = [one.render() for one in self.runs]
        rows += [f"{run}: queued in the inbox" for run in self.queued]
        return "\n".join(rows) or "there are no runs"


def show_status(home: Path, said: RunStatusInput) -> RunStatusOutput:
    """Return how runs stand."""
    owned, queued = is_owned(home), tuple(run for run, _ in queued_runs(home))
    if said.run in queued and said.run:
        hint = "`wait` for it." if owned else start_hint(home)
        return RunStatusOutput(runs=(), queued=(said.run,), is_owned=owned, next=hint)
    try:
        reader = LogReader.open(home)
    except NoLog:
        return RunStatusOutput(runs=(), queued=queued, is_owned=owned, next="`submit_run` starts a run.")
    with reader:
        names = [str(find_run(reader, said.run)["run"])] if said.run else [
            str(row["run"]) for row in reader.run_rows()[:MOST_RUNS]
        ]  # fmt: skip
        states = {name: reader.run_state(name) for name in names}
    views = {name: run_view(name, state, owned=owned, hashed=False) for name, state in states.items()}
    claims = [
        claim.model_copy(update={"of": f"{name}/{claim.of}"})
        for name, state in states.items()
        for claim in _run_claims(state.initial, state.best)
    ]
    advice = _advise(home, views[names[0]], owned=owned) if len(names) == 1 else ""
    runs = tuple(map(_describe_run, views.values()))
    return RunStatusOutput(
        runs=runs, queued=() if said.run else queued, is_owned=owned, latencies=tuple(claims), next=advice
    )


class WaitInput(ToolInput):
    """Arguments of `wait`."""

    run: str = Field(description="a run's id")
    condition: str = Field(
        default="ended", description="ended, paused, best>1.3x, best<0.02ms, round>=3, ..."
    )
    timeout_seconds: float = Field(default=60, gt=0, le=MOST_WAIT_SECONDS)


class WaitOutput(RunOutput):
    """Whether the condition holds; if not, the time was up, or the run is over, or nobody drives it."""

    condition: str
    holds: bool

    def render(self) -> str:
        return f"{self.condition} {'holds' if self.holds else 'does not hold'}; {self.run.render()}"


async def wait_for_run(home: Path, said: WaitInput, progress: ReportProgress) -> WaitOutput:
    """Wait until a condition holds of a run, at most for the given time."""
    try:
        wanted = parse_condition(said.condition)
    except ValueError as error:
        raise RefusedCall("bad_condition", str(error)) from error
    began, told = time.monotonic(), ""
    while True:
        waited = time.monotonic() - began
        found = await asyncio.to_thread(_look, home, said.run, wanted)
        if found is not None:
            output, text = found
            late = waited >= said.timeout_seconds
            if output.holds or late or output.run.state in _OVER or not output.is_owned:
                return output
            if text != told:
                told = text
                await progress(waited, text)
        elif waited >= said.timeout_seconds or not await asyncio.to_thread(is_owned, home):
            raise RefusedCall("not_begun", f"run {said.run} has not begun", start_hint(home))
        await asyncio.sleep(LOOK_SECONDS)


def _look(home: Path, run: str, wanted: WaitCondition) -> tuple[WaitOutput, str] | None:
    """Return how a run stands; None while it waits in the inbox."""
    owned = is_owned(home)
    waiting = any(run == name for name, _ in queued_runs(home))
    try:
        with LogReader.open(home) as reader:
            if waiting and run not in reader.run_ids():
                return None
            name = str(find_run(reader, run)["run"])
            state = reader.run_state(name)
    except NoLog:
        if waiting:
            return None
        raise
    view = run_view(name, state, owned=owned, hashed=False)
    output = WaitOutput(
        run=_describe_run(view), is_owned=owned, condition=wanted.text, holds=wanted.holds(view),
        latencies=_run_claims(state.initial, state.best), next=_advise(home, view, owned=owned),
    )  # fmt: skip
    return output, format_run_view(view)


class BestInput(ToolInput):
    """Arguments of `best`."""

    run: str = Field(description="a run's id")


class BestOutput(ToolOutput):
    """A run's best kernel so far; `level` is how much of its outputs was compared."""

    run: str
    candidate: str
    level: str | None
    technique: str | None
    title: str | None
    source: str

    def render(self) -> str:
        judged = f"judged on {LEVELS[Level(self.level)]}" if self.level else "not judged"
        what = f": {self.title}" if self.title else ""
        return f"{self.candidate} of {self.run}, {judged}{what}\n\n{self.source}"


def show_best(home: Path, said: BestInput) -> BestOutput:
    """Return a run's best kernel."""
    with LogReader.open(home) as reader:
        run = str(find_run(reader, said.run)["run"])
        found, first = load_candidate(reader, run, BEST), load_candidate(reader, run, INITIAL)
    return BestOutput(
        run=run, candidate=found.id, level=found.level, technique=found.technique, title=found.title,
        source=found.source or "", latencies=_candidate_claims(first, found),
        next=f"`why` tells how it came about; kernel://{run}/{found.id} is its source.",
    )  # fmt: skip


def _candidate_claims(*found: CandidateView) -> tuple[LatencyClaim, ...]:
    claims = {
        one.id: LatencyClaim.of_benchmark(one.id, one.benchmark, one.bottleneck)
        for one in found
        if one.benchmark is not None
    }
    return tuple(claims.values())


class WhyInput(ToolInput):
    """Arguments of `why`."""

    run: str = Field(description="a run's id")
    candidate: str = Field(default=BEST, description="a candidate's id, `initial` or `best`")


class WhyOutput(ToolOutput):
    """A kernel's story: plan, prediction, outcome, decision, lesson."""

    run: str
    candidate: str
    parent: str | None
    verdict: str | None
    decision: str | None
    story: str

    def render(self) -> str:
        return self.story


def explain_candidate(home: Path, said: WhyInput) -> WhyOutput:
    """Tell a kernel's story."""
    with LogReader.open(home) as reader:
        run = str(find_run(reader, said.run)["run"])
        found = load_candidate(reader, run, said.candidate)
        parents = [load_candidate(reader, run, found.parent)] if found.parent else []
    return WhyOutput(
        run=run, candidate=found.id, parent=found.parent, verdict=found.verdict, decision=found.decision,
        story=strip_colours("\n".join(format_story(found))), latencies=_candidate_claims(*parents, found),
        next=f"profile://{run}/{found.id} has its profile.",
    )  # fmt: skip


class ProblemsInput(ToolInput):
    """Arguments of `problems`."""

    only: str = Field(default="", description="only problems whose name contains this")


class ProblemRow(FrozenModel):
    """A problem: what it computes, and its sizes."""

    name: str
    formula: str
    sizes: dict[str, dict[str, int]]


class ProblemsOutput(ToolOutput):
    """The problems that come with the program."""

    problems: tuple[ProblemRow, ...]

    def render(self) -> str:
        return "\n".join(f"{one.name}: {one.formula}" for one in self.problems) or "no such problem"


def list_problems(home: Path, said: ProblemsInput) -> ProblemsOutput:
    """List the built-in problems."""
    import seeds

    del home
    specs = [seeds.load_problem(name).spec for name in seeds.builtin_problems() if said.only in name]
    rows = tuple(ProblemRow(name=one.name, formula=one.formula, sizes=one.sizes) for one in specs)
    return ProblemsOutput(
        problems=rows, next="problem://NAME/FILE has a problem's files; `new_problem` makes one of your own."
    )
