"""Instruction timelines of a run's kernels, predicted by the simulator even if a device judged the
kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from daemon.config import DaemonConfig
from daemon.errors import DaemonError
from state.model import INITIAL_KEY, PERSON, UNKNOWN_AUTHOR, EvaluationRequest, Level
from state.reader import LogReader


@dataclass(frozen=True, slots=True)
class LogBlobs:
    """The blobs of a log, with the interface that evaluators expect."""

    reader: LogReader

    def get_blob(self, digest: str, /) -> bytes:
        return self.reader.get_blob(digest)


async def trace_kernels(
    home: Path,
    config: DaemonConfig,
    reader: LogReader,
    run: str,
    candidates: Sequence[str],
    *,
    seen: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[str, bytes]:
    """Return Chrome trace events (JSON) of a run's kernels by id.

    `seen` is called with the number of finished kernels and the total. A kernel without a timeline, such
    as one that breaks a rule, is left out if another kernel has one. Names in the traces are the
    kernels' own.

    Raises:
        DaemonError: the run has no kernel of that name.
        remote.NoTimelineError: none of them has a timeline.
        remote.InfrastructureError: kernels cannot be simulated here.
    """
    from remote.errors import NoTimelineError
    from remote.judge_service import JudgeService
    from remote.local import LocalEvaluator

    requests = build_trace_requests(reader, run, candidates)
    judge = JudgeService(home=home, slots=1, allow_weak_jail=config.allow_weak_jail)
    evaluator = LocalEvaluator(judge, target=reader.run_state(run).config.target)
    found: dict[str, bytes] = {}
    refused: list[NoTimelineError] = []
    try:
        for number, request in enumerate(requests):
            seen(number, len(requests))
            try:
                found[request.candidate] = await evaluator.predict_timeline(request, LogBlobs(reader))
            except NoTimelineError as error:
                refused.append(error)
    finally:
        await evaluator.aclose()
    if refused and not found:
        raise refused[0]
    return found


def build_trace_requests(reader: LogReader, run: str, candidates: Sequence[str]) -> list[EvaluationRequest]:
    """Return the evaluation requests for kernels of a run, as the run judges them now.

    Raises:
        DaemonError: the run has no kernel of that name.
    """
    state = reader.run_state(run)
    rows = {row["candidate"]: row for row in reader.attempt_rows(run)}
    made = []
    for name in candidates:
        row = rows.get(name, {})
        initial = name == INITIAL_KEY.candidate_id
        source = row.get("source") or (state.kernel if initial else None)
        if source is None:
            raise DaemonError(f"run {run} has no kernel {name!r}", code="unknown_candidate")
        made.append(
            EvaluationRequest(
                candidate=name,
                author=row.get("author") or (PERSON if initial else UNKNOWN_AUTHOR),
                source=source,
                problem=state.problem,
                size=state.config.size,
                target=state.config.target,
                toolchain=state.toolchain,
                level=Level.SLICES,
            )
        )
    return made
