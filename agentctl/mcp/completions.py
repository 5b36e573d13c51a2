"""Completion of the arguments of prompts and of resource templates: problems, files, runs, kernels, pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from mcp_types import CompleteRequestParams, Completion

from agentctl.mcp.resources import list_pages
from agentctl.run_lookup import find_run
from agentctl.views.candidate import BEST, INITIAL
from daemon.errors import DaemonError
from state.errors import NoLog
from state.reader import LogReader

MOST_VALUES = 100
"""The most values that the protocol allows in one answer."""

Complete = Callable[[Path, Mapping[str, str]], Iterable[str]]


def complete_argument(home: Path, asked: CompleteRequestParams) -> Completion:
    """Return the values of an argument that begin with what is typed; none if it can be anything."""
    known = asked.context.arguments if asked.context is not None else None
    complete = _VALUES.get(asked.argument.name)
    values = complete(home, known or {}) if complete is not None else ()
    found = [one for one in dict.fromkeys(values) if one.startswith(asked.argument.value)]
    return Completion(values=found[:MOST_VALUES], total=len(found), has_more=len(found) > MOST_VALUES)


def _problems(home: Path, known: Mapping[str, str]) -> Iterable[str]:
    import seeds

    del home, known
    return seeds.builtin_problems()


def _problem_files(home: Path, known: Mapping[str, str]) -> Iterable[str]:
    import seeds

    del home
    name = known.get("name", "")
    return seeds.load_problem(name).files if name in seeds.builtin_problems() else ()


def _runs(home: Path, known: Mapping[str, str]) -> Iterable[str]:
    del known
    try:
        with LogReader.open(home) as reader:
            return [str(row["run"]) for row in reader.run_rows()]
    except NoLog:
        return ()


def _candidates(home: Path, known: Mapping[str, str]) -> Iterable[str]:
    try:
        with LogReader.open(home) as reader:
            run = str(find_run(reader, known.get("run", ""))["run"])
            return [BEST, INITIAL, *(str(row["candidate"]) for row in reader.candidate_rows(run))]
    except (NoLog, DaemonError):
        return ()


def _pages(home: Path, known: Mapping[str, str]) -> Iterable[str]:
    del home, known
    return list_pages()


def _versions(home: Path, known: Mapping[str, str]) -> Iterable[str]:
    del home, known
    return ("v0",)


_VALUES: Mapping[str, Complete] = {
    "problem": _problems, "name": _problems, "file": _problem_files, "run": _runs,
    "candidate": _candidates, "page": _pages, "source": _versions,
}  # fmt: skip
"""By the argument's name, which means the same in every prompt and template."""
