"""Checks that the names in a configuration exist: problem, target, evaluator, hosts, proposers.

Each package refuses unknown names by itself, one at a time, when they are used. This module reports all
of them together, before anything starts. It imports those packages lazily.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from state.model import HostConfig


def find_unknown_names(key: str, value: Any) -> list[str]:
    """Return the faults of names in a key's value; none for keys that hold no names."""
    return list(_CHECKS[key](value)) if key in _CHECKS else []


def _check_problem(name: str) -> Iterable[str]:
    import seeds

    try:
        seeds.load_problem(name)
    except seeds.SeedsError as error:
        yield str(error)


def _check_target(name: str) -> Iterable[str]:
    from targets.base import UnknownTargetError
    from targets.registry import load_target

    try:
        load_target(name)
    except UnknownTargetError as error:
        yield str(error)


def _check_metrics(names: Iterable[str]) -> Iterable[str]:
    from seeds.errors import describe_unknown
    from targets.registry import load_families

    known = {counter for one in load_families() for counter in one.profile.counters}
    yield from (describe_unknown("counter", name, known) for name in names if name not in known)


def _check_evaluator(name: str) -> Iterable[str]:
    from remote.errors import UnknownEvaluatorError
    from remote.registry import evaluator_names

    if name not in evaluator_names():
        yield str(UnknownEvaluatorError(name, evaluator_names()))


def _check_hosts(hosts: Iterable[HostConfig]) -> Iterable[str]:
    from remote.ssh.errors import BadHostError
    from remote.ssh.host import HostSpec

    known: set[str] = set()
    for one in hosts:
        try:
            address = HostSpec.parse(one.address).address
        except BadHostError as error:
            yield str(error)
            continue
        if address in known:
            yield f"{address} is named twice"
        known.add(address)


def _check_planners(names: Iterable[str]) -> Iterable[str]:
    from agent_core import proposers

    for name in names:
        try:
            proposers.require_known_proposer(name)
        except proposers.ProposerError as error:
            yield str(error)


_CHECKS: dict[str, Callable[[Any], Iterable[str]]] = {
    "run.problem": _check_problem,
    "run.target": _check_target,
    "run.evaluator": _check_evaluator,
    "run.hosts": _check_hosts,
    "run.planner": _check_planners,
    "run.llm.metrics": _check_metrics,
}
