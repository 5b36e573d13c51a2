"""Creates the evaluator that a configuration asks for. To add a kind, add an entry to the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from remote.errors import InfrastructureError, UnknownEvaluatorError, UnsuitableEvaluatorError
from remote.evaluator import Evaluator
from state.model import HostConfig, RunConfig, ScoreConfig

_NO_SCORE = ScoreConfig()

if TYPE_CHECKING:
    from remote.local import LocalEvaluator


@dataclass(frozen=True, slots=True)
class EvaluatorSpec:
    """The part of a run's configuration that decides its evaluator; equal specs share one.

    `target` is the first target of the run's family, so that all of them share the evaluator.
    `hosts`, `host_tags`, `prefilter` and `score` belong to evaluators that use hosts; they are empty for
    others. `calibration` names the constants that predictions use.
    """

    kind: str
    target: str
    hosts: tuple[HostConfig, ...] = ()
    host_tags: frozenset[str] = frozenset()
    prefilter: Literal["sim"] | None = None
    score: ScoreConfig = _NO_SCORE
    calibration: str = ""

    @classmethod
    def from_config(cls, config: RunConfig) -> EvaluatorSpec:
        """Return the spec for a run with this configuration."""
        from targets.registry import lead_target  # not at the top: jails that run references have no targets

        if config.evaluator not in HOST_KINDS:
            return cls(config.evaluator, lead_target(config.target), calibration=config.calibration)
        return cls(
            config.evaluator,
            lead_target(config.target),
            config.hosts,
            frozenset(config.host_tags),
            config.prefilter,
            config.score,
            config.calibration,
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


def _create_sim(wanted: EvaluatorSpec, means: EvaluatorResources) -> LocalEvaluator:
    from remote.judge_service import JudgeService
    from remote.local import LocalEvaluator
    from state.calibrations import read_calibration

    judge = JudgeService(
        home=means.home,
        slots=means.slots,
        allow_weak_jail=means.allow_weak_jail,
        calibration=read_calibration(means.home, wanted.calibration) if wanted.calibration else None,
    )
    return LocalEvaluator(judge, target=wanted.target)


def _create_ssh(wanted: EvaluatorSpec, means: EvaluatorResources) -> Evaluator:
    from remote.fleet.hosts import create_fleet
    from remote.fleet.prefilter import PrefilteredEvaluator, read_measured_pairs

    local = _create_sim(wanted, means)
    fleet = create_fleet(wanted, means, judge=local.judge, predictor=local)
    if wanted.prefilter is None:
        return fleet
    looker = _create_sim(wanted, means)
    return PrefilteredEvaluator(looker, fleet, measured=read_measured_pairs(means.home))


def _create_ray(wanted: EvaluatorSpec, means: EvaluatorResources) -> Evaluator:
    from remote.cluster.evaluator import RayEvaluator

    if wanted.calibration:
        text = "run.calibration works with the evaluators sim and ssh, not with ray"
        raise InfrastructureError("calibration_unsupported", text, retryable=False)
    return RayEvaluator(
        home=means.home,
        target=wanted.target,
        address=means.ray_address,
        slots=means.slots,
        allow_weak_jail=means.allow_weak_jail,
    )


CreateEvaluator = Callable[[EvaluatorSpec, EvaluatorResources], Evaluator]

_EVALUATORS: dict[str, CreateEvaluator] = {
    "sim": _create_sim,
    "ssh": _create_ssh,
    "ray": _create_ray,
}

_NEEDED_PART = {"sim": "tracer", "ray": "tracer", "ssh": "hosts"}
"""The part that a target must have so that these kinds can judge its kernels."""

HOST_KINDS = frozenset({"ssh"})
"""The kinds that use the hosts of a configuration."""


SIMULATED_KINDS = frozenset({"sim", "ray"})
"""The kinds that use no device: their latencies are predictions."""


def evaluator_names() -> tuple[str, ...]:
    """Return the names of the kinds that `create_evaluator` knows, sorted."""
    return tuple(sorted({*_EVALUATORS, *_brought_parts()}))


def _brought_parts() -> dict[str, str]:
    """Return where the factories are of the kinds that targets bring."""
    from targets.registry import load_families  # not at the top, as above

    return {kind: part for target in load_families() for kind, part in target.parts.evaluators.items()}


def _find_factory(kind: str) -> CreateEvaluator:
    if kind in _EVALUATORS:
        return _EVALUATORS[kind]
    from targets.base import import_part  # not at the top, as above

    part = _brought_parts().get(kind)
    if part is None:
        raise UnknownEvaluatorError(kind, evaluator_names())
    factory: CreateEvaluator = import_part(part)
    return factory


def require_evaluator(kind: str, target: str) -> None:
    """Check that an evaluator of this kind judges kernels of this target.

    Raises:
        UnsuitableEvaluatorError: it does not; the message names those that do.
    """
    from targets.registry import load_families, load_target  # not at the top, as above

    parts = load_target(target).parts
    brought = {name for family in load_families() for name in family.parts.evaluators}

    def suits(name: str) -> bool:
        needed = _NEEDED_PART.get(name)
        own = name in parts.evaluators or name not in brought
        return own and (needed is None or bool(getattr(parts, needed)))

    if not suits(kind):
        raise UnsuitableEvaluatorError(kind, target, filter(suits, evaluator_names()))


def create_evaluator(
    wanted: EvaluatorSpec,
    *,
    home: Path,
    means: EvaluatorResources | None = None,
    slots: int | None = None,
) -> Evaluator:
    """Return the evaluator for a spec.

    Raises:
        UnknownEvaluatorError: there is no such kind.
        NoHostsError: the kind evaluates on hosts, and none is named.
        InfrastructureError: this machine lacks something that the kind needs.
    """
    factory = _find_factory(wanted.kind)
    given = means or EvaluatorResources(home, slots)
    return factory(wanted, replace(given, home=home))
