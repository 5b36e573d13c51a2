"""Evaluators by what a configuration wants. Adding a kind is one entry in the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from remote.errors import UnknownEvaluatorError
from remote.evaluator import Evaluator
from state.model import HostConfig, RunConfig, ScoreConfig

_NO_SCORE = ScoreConfig()

if TYPE_CHECKING:
    from remote.local import LocalEvaluator


@dataclass(frozen=True, slots=True)
class EvaluatorSpec:
    """What of a run's configuration decides which evaluator it needs; equal ones can share it.

    `hosts`, `host_tags`, `prefilter` and `score` are those of an evaluator that uses hosts, and empty for
    others.
    """

    kind: str
    hosts: tuple[HostConfig, ...] = ()
    host_tags: frozenset[str] = frozenset()
    prefilter: Literal["sim"] | None = None
    score: ScoreConfig = _NO_SCORE

    @classmethod
    def from_config(cls, config: RunConfig) -> EvaluatorSpec:
        """Return what a run with this configuration wants."""
        if config.evaluator not in HOST_KINDS:
            return cls(config.evaluator)
        return cls(
            config.evaluator, config.hosts, frozenset(config.host_tags), config.prefilter, config.score
        )


@dataclass(frozen=True, slots=True)
class EvaluatorResources:
    """What an evaluator may use: `slots` evaluations at a time on this machine (None: its CPUs).

    A host without a connection for longer than `host_silence_s` loses its evaluations to others.
    """

    home: Path
    slots: int | None = None
    allow_weak_jail: bool = False
    ray_address: str | None = None
    host_silence_s: float = 20.0


def _create_sim(_: EvaluatorSpec, means: EvaluatorResources) -> LocalEvaluator:
    from remote.local import LocalEvaluator

    return LocalEvaluator(home=means.home, slots=means.slots, allow_weak_jail=means.allow_weak_jail)


def _create_ssh(wanted: EvaluatorSpec, means: EvaluatorResources) -> Evaluator:
    from remote.fleet.hosts import create_fleet
    from remote.fleet.prefilter import PrefilteredEvaluator

    fleet = create_fleet(wanted, means, local=_create_sim(wanted, means))
    return fleet if wanted.prefilter is None else PrefilteredEvaluator(_create_sim(wanted, means), fleet)


def _create_ray(_: EvaluatorSpec, means: EvaluatorResources) -> Evaluator:
    from remote.cluster.evaluator import RayEvaluator

    return RayEvaluator(
        home=means.home, address=means.ray_address, slots=means.slots, allow_weak_jail=means.allow_weak_jail
    )


_EVALUATORS: dict[str, Callable[[EvaluatorSpec, EvaluatorResources], Evaluator]] = {
    "sim": _create_sim,
    "ssh": _create_ssh,
    "ray": _create_ray,
}

HOST_KINDS = frozenset({"ssh"})
"""The kinds that use the hosts of a configuration."""


SIMULATED_KINDS = frozenset({"sim", "ray"})
"""The kinds that use no device: what they say of latencies is predicted."""


def evaluator_names() -> tuple[str, ...]:
    """Return the names of the kinds that `create_evaluator` knows, sorted."""
    return tuple(sorted(_EVALUATORS))


def create_evaluator(
    wanted: str | EvaluatorSpec,
    *,
    home: Path,
    means: EvaluatorResources | None = None,
    slots: int | None = None,
) -> Evaluator:
    """Return an evaluator as `wanted`, or of the kind of that name.

    Raises:
        UnknownEvaluatorError: no such kind.
        NoHostsError: it evaluates on hosts, and none is named.
        InfrastructureError: what it needs of this machine is not there.
    """
    asked = EvaluatorSpec(wanted) if isinstance(wanted, str) else wanted
    if asked.kind not in _EVALUATORS:
        raise UnknownEvaluatorError(asked.kind, _EVALUATORS)
    given = means or EvaluatorResources(home, slots)
    return _EVALUATORS[asked.kind](asked, replace(given, home=home))
