"""Computes a kernel's latency from a host's samples; nothing else that it reports about time is trusted.

The protocol of the field's papers: rounds of 2 warm-ups and 10 runs, each round on the next core, until
the samples of one round lie within the device's own spread. That round counts. If none of 10 rounds is that
steady, the kernel is `unstable`, which is a verdict and not a number. Candidate and parent alternate run by
run, so drift affects both alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from state.model import Benchmark


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingProtocol:
    """How often a kernel is run, and up to which relative spread a round counts."""

    warmups: int = 2
    runs: int = 10
    rounds: int = 10
    spread_ratio: float


_MOST_MS = 1e12


class BadSamplesError(Exception):
    """The samples that a host sent are impossible."""


def check_samples(
    samples: object, protocol: TimingProtocol, *, ran_s: float | None = None
) -> tuple[float, ...]:
    """Return a round's samples.

    There must be as many as requested, positive and finite; measured ones must fit into the job's run time.

    Raises:
        BadSamplesError: they do not.
    """
    if not isinstance(samples, Sequence) or len(samples) != protocol.runs:
        raise BadSamplesError(f"a round has {protocol.runs} samples, these are not as many")
    found = tuple(float(v) for v in samples if isinstance(v, int | float) and 0 < v < _MOST_MS)
    if len(found) != len(samples):
        raise BadSamplesError("samples are positive numbers of milliseconds")
    if ran_s is not None and sum(found) / 1e3 > ran_s:
        raise BadSamplesError(f"samples of {sum(found) / 1e3:.3g} s in a job that took {ran_s:.3g} s")
    return found


def spread_ratio(samples: Sequence[float]) -> float:
    """Return the spread of a round's samples, relative to their median."""
    return (max(samples) - min(samples)) / median(samples)


def is_steady(samples: Sequence[float], protocol: TimingProtocol) -> bool:
    """Whether a round counts."""
    return spread_ratio(samples) < protocol.spread_ratio


def summarise_samples(samples: Sequence[float]) -> Benchmark:
    """Return the latency of the round that counts: its median, between its extremes."""
    return Benchmark(
        latency_ms=median(samples),
        lo_ms=min(samples),
        hi_ms=max(samples),
        predicted=False,
        samples=len(samples),
    )
