"""Predicts kernels outside any run, and says before a run what its proposers cannot read of a kernel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from daemon.config import Config
from daemon.errors import DaemonError, NotAnswered
from state.model import PERSON, ErrorInfo, PredictedLatency, digest_of
from targets.base import KernelReading, import_part
from targets.registry import load_target

if TYPE_CHECKING:
    from agent_core.roles import Predict
    from seeds import Problem

MAX_REASONS = 3
"""Reasons shown of a kernel that cannot be read as a whole."""


def source_line(source: str, error: ErrorInfo) -> str:
    """Return the line of the source that an error is about; empty if it is about none."""
    rows = source.splitlines()
    return rows[error.line - 1].strip() if error.line and error.line <= len(rows) else ""


def make_kernel_error(path: Path, source: str, error: ErrorInfo) -> DaemonError:
    """Return the error for a kernel's fault, with its line and the source line."""
    shown = source_line(source, error)
    where = f"{path}:{error.line}" if error.line else str(path)
    text = f"{where}: {error.message}" + (f"\n    {shown}" if shown else "")
    return DaemonError(text, code=error.code, hint=error.hint)


@asynccontextmanager
async def open_predictor(home: Path, config: Config, problem: Problem) -> AsyncIterator[Predict]:
    """Yield what predicts kernels of a problem with workers of its own; nothing is judged."""
    from agentctl.verbs.try_ import MemoryBlobs
    from daemon.home_owner import create_workers
    from remote.evaluator import PredictionRequest

    workers = create_workers(home, config.daemon)
    try:
        evaluator = workers.get_evaluator(config.run)
        await evaluator.prepare()
        blobs = MemoryBlobs({digest_of(data): data for data in problem.files.values()})

        async def predict(
            sources: Sequence[str], dims: Mapping[str, int] | None = None, *, canonical: bool = False
        ) -> Sequence[PredictedLatency]:
            request = PredictionRequest(
                author=PERSON,
                sources=tuple(sources),
                problem=problem.make_ref(),
                size=config.run.size,
                target=config.run.target,
                toolchain=evaluator.toolchain(),
                dims=dims,
                canonical=canonical,
            )
            return await evaluator.predict(request, blobs)

        yield predict
    finally:
        await workers.aclose()


def warn_of_unread_parts(
    home: Path, config: Config, problem: Problem, kernel: Path, source: str, *, is_replaceable: bool = False
) -> None:
    """Say on stderr what the run's planners cannot read of a kernel.

    `is_replaceable`: without it, the run has another kernel to work on, so it may begin anyway.

    Raises:
        DaemonError: the kernel is wrong, or no planner of the run can work on it at all.
    """
    entries = load_target(config.run.target).parts.proposers
    readers = {name: entries[name].reader for name in config.run.planner if name in entries}
    parts = [part for part in readers.values() if part is not None]
    if not parts:
        return
    found = asyncio.run(_read_kernel(home, config, problem, part=parts[0], source=source))
    if found is not None and found.error is not None:
        raise make_kernel_error(kernel, source, found.error)
    if found is None or not found.reasons:
        return
    shown = found.reasons[:MAX_REASONS]
    more = len(found.reasons) - len(shown)
    text = "; ".join(shown) + (f" (and {more} more)" if more else "")
    alone = all(readers.get(name) is not None for name in config.run.planner)
    if found.readable or not alone or is_replaceable:
        click.echo(f"note: rewrites leave out what they cannot read of {kernel}: {text}", err=True)
        return
    hint = "change that, or name a model that writes kernels in run.planner"
    raise DaemonError(f"{kernel}: no rewrite can read it: {text}", code="kernel_not_read", hint=hint)


async def _read_kernel(
    home: Path, config: Config, problem: Problem, *, part: str, source: str
) -> KernelReading | None:
    """Return what a proposer reads of a kernel; None if that cannot be found out here; a run says why."""
    from agent_core.roles import RoleError
    from agentctl.verbs.try_ import await_within_deadline
    from remote import RemoteError

    read = import_part(part)
    try:
        async with open_predictor(home, config, problem) as predict:
            work = read(source, predict, problem.spec, config.run.size, config.run.target)
            found: KernelReading = await await_within_deadline(
                work, config.daemon, doing="reading the kernel", wanted="reading"
            )
            return found
    except (RemoteError, RoleError, NotAnswered):
        return None
