"""Whether what a configuration names exists: problem, target, evaluator, proposers.

Whoever uses a name is told by its room that it is unknown, one at a time; this is for reporting all at
once, before anything is started. It imports those rooms only when asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from state.model import HostConfig


def unknown(key: str, value: Any) -> list[str]:
    """Return what is wrong with the names in the value of a configuration's key, nothing for other keys."""
    return list(_LOOKUPS[key](value)) if key in _LOOKUPS else []


def _problem(name: str) -> Iterable[str]:
    import seeds

    try:
        seeds.load(name)
    except seeds.SeedsError as error:
        yield str(error)


def _target(name: str) -> Iterable[str]:
    from targets.base import UnknownTargetError
    from targets.registry import target_names

    if name not in target_names():
        yield str(UnknownTargetError(name, target_names()))


def _evaluator(name: str) -> Iterable[str]:
    from remote.errors import UnknownEvaluatorError
    from remote.registry import evaluators

    if name not in evaluators():
        yield str(UnknownEvaluatorError(name, evaluators()))


def _hosts(hosts: Iterable[HostConfig]) -> Iterable[str]:
    from remote.ssh.errors import BadHostError
    from remote.ssh.host import Host

    known: set[str] = set()
    for one in hosts:
        try:
            address = Host.parse(one.address).address
        except BadHostError as error:
            yield str(error)
            continue
        if address in known:
            yield f"{address} is named twice"
        known.add(address)


def _planners(names: Iterable[str]) -> Iterable[str]:
    from agent_core import proposers

    for name in names:
        try:
            proposers.require(name)
        except proposers.ProposerError as error:
            yield str(error)


_LOOKUPS: dict[str, Callable[[Any], Iterable[str]]] = {
    "run.problem": _problem,
    "run.target": _target,
    "run.evaluator": _evaluator,
    "run.hosts": _hosts,
    "run.planner": _planners,
}
