"""The arithmetic of `agentctl stats`: shares, rates and costs, as pure functions of the facts of runs.

**Fast@p** is the share of attempts that led to a correct kernel more than p times as fast as the run's
initial kernel. The thresholds follow AccelOpt (`get_avg_good_speedup` of `accelopt/plotting_utils.py` in
its repository, which counts kernels whose speed-up over the baseline is above each threshold; `FAST_AT`
are its defaults). As in fast_p of KernelBench (arXiv 2502.10517), it is a share, and failed attempts
count in the whole. An attempt is one implementation of one plan with all its repairs; its final result
counts. Over several runs, Fast@p is also given by problem: the share of problems whose best kernel of
all runs is that fast.

**Cost per kept improvement** is all money spent over the number of kernels that were kept and were
faster than their parents beyond noise. It is None if no such kernel was kept, or if the price of a model
that was asked is unknown: an unknown cost never counts as 0.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import geometric_mean, median
from typing import Any, TypeVar

from agentctl.stats.facts import ANSWERED, LOST, Charge, KernelFact, RunFacts, merge_facts
from state.model import PERSON
from state.spend import NANO

Figures = dict[str, Any]
Fact = TypeVar("Fact", Charge, KernelFact)

FAST_AT = (1.0, 1.01, 1.05, 1.1, 1.2, 1.4)
"""The p of Fast@p: AccelOpt's thresholds."""


def run_figures(run: RunFacts, fast_at: Sequence[float]) -> Figures:
    """Return the figures of one run; `fast_at` are the p of Fast@p."""
    problem, size, target = run.task
    return {
        "run": run.run,
        "problem": problem,
        "size": size,
        "target": target,
        "predicted": run.predicted,
        "best_speedup": run.speedup,
        **_shared_figures(run.charges, run.kernels, fast_at),
        "rounds": _round_figures(_own_attempts(run.kernels), fast_at),
    }


def combined_figures(runs: Sequence[RunFacts], fast_at: Sequence[float]) -> Figures:
    """Return the figures of several runs together; what they share counts once. Give the oldest run
    first.

    `geomean_speedup` is the geometric mean of the best speed-ups of the problems, each at a size on a
    target.
    """
    best = _best_by_task(runs)
    known = [speedup for speedup in best.values() if speedup is not None]
    return {
        "runs": len(runs),
        "problems": len(best),
        "geomean_speedup": geometric_mean(known) if known else None,
        "fast_problems": [
            _fast_share(p, [speedup is not None and speedup > p for speedup in best.values()])
            for p in fast_at
        ],
        **_shared_figures(*merge_facts(runs), fast_at),
    }


def _best_by_task(runs: Iterable[RunFacts]) -> dict[tuple[str, str, str], float | None]:
    """Return the best speed-up of each problem at a size on a target."""
    best: dict[tuple[str, str, str], float | None] = {}
    for run in runs:
        before = best.get(run.task)
        best[run.task] = max((one for one in (before, run.speedup) if one is not None), default=None)
    return best


def _shared_figures(
    charges: Sequence[Charge], kernels: Sequence[KernelFact], fast_at: Sequence[float]
) -> Figures:
    validity, cost = _validity_figures(kernels), _cost_figures(charges)
    return {
        "fast": _fast_at(_own_attempts(kernels), fast_at),
        "kernels": validity,
        "repairs": _repair_figures(kernels),
        "calls": _call_figures(charges),
        **cost,
        "cost_per_improvement_usd": _cost_per(cost["cost_usd"], validity["improvements"]),
        "models": _model_figures(charges, kernels),
        "roles": [
            {"role": role, "calls": _call_figures(mine), **_cost_figures(mine)}
            for role, mine in _group_facts(charges, lambda one: one.role if one.model else None)
        ],
        "techniques": [
            _technique_figures(name, mine) for name, mine in _group_facts(kernels, lambda one: one.technique)
        ],
    }  # fmt: skip


# --- kernels ---------------------------------------------------------------------------------------


def _final_attempts(kernels: Iterable[KernelFact]) -> list[KernelFact]:
    """Return the final result of each attempt, including its repairs; pending attempts are left out."""
    last: dict[int, KernelFact] = {}
    for one in sorted(kernels, key=lambda one: (one.repair, one.seq)):
        last[one.chain] = one
    return [one for one in last.values() if one.verdict is not None or not one.proposed]


def _own_attempts(kernels: Iterable[KernelFact]) -> list[KernelFact]:
    """Return the run's own attempts under its current judging; Fast@p is a share of these."""
    return _final_attempts(one for one in kernels if one.author != PERSON and one.counts)


def _round_figures(tried: Sequence[KernelFact], fast_at: Sequence[float]) -> list[Figures]:
    return [
        {"round": number, "fast": _fast_at([one for one in tried if one.round == number], fast_at)}
        for number in sorted({one.round for one in tried})
    ]


def _fast_at(tried: Sequence[KernelFact], fast_at: Sequence[float]) -> list[Figures]:
    return [_fast_share(p, [(one.gain or 0.0) > p for one in tried]) for p in fast_at]


def _fast_share(p: float, faster: Sequence[bool]) -> Figures:
    return {"p": p, "count": sum(faster), "of": len(faster), "percent": _percent(sum(faster), len(faster))}


def _validity_figures(kernels: Iterable[KernelFact]) -> Figures:
    """Return how many kernels were proposed, have a verdict, are correct, and were kept."""
    mine = list(kernels)
    proposed = [one for one in mine if one.proposed]
    judged = sum(one.verdict is not None for one in proposed)
    valid = sum(one.is_valid for one in proposed)
    return {
        "failed": len(mine) - len(proposed),
        "proposed": len(proposed),
        "judged": judged,
        "valid": valid,
        "validity_percent": _percent(valid, judged),
        "kept": sum(one.kept for one in proposed),
        "improvements": sum(one.improved for one in proposed),
    }


def _repair_figures(kernels: Iterable[KernelFact]) -> Figures:
    """Return how many attempts were repaired, how often, and how many of them became correct."""
    rounds = [one for one in kernels if one.repair > 0]
    chains = {one.chain for one in rounds}
    mended = {one.chain for one in rounds if one.is_valid}
    return {
        "attempts": len(chains),
        "rounds": len(rounds),
        "succeeded": len(mended),
        "percent": _percent(len(mended), len(chains)),
    }


def _technique_figures(name: str, kernels: Iterable[KernelFact]) -> Figures:
    """Return the results of a technique; its speed-ups are over the parents of its kernels."""
    ends = _final_attempts(kernels)
    speedups = [one.speedup for one in ends if one.is_valid and one.speedup is not None]
    return {
        "technique": name,
        "tried": len(ends),
        "valid": sum(one.is_valid for one in ends),
        "kept": sum(one.kept for one in ends),
        "improvements": sum(one.improved for one in ends),
        "median_speedup": median(speedups) if speedups else None,
    }


# --- calls -----------------------------------------------------------------------------------------


def _call_figures(charges: Iterable[Charge]) -> Figures:
    """Return the results of attempts at answers, the tokens that they read and wrote, and their
    duration.

    `estimated_tokens` are those in and out that the agent estimated, as an endpoint counted none; without
    any there is no such key, as in reports of before.
    `usable_percent` is the share of them whose answer became what it was asked for. `uncounted_tokens`
    were charged for attempts whose use is unknown; no other count includes them.
    """
    asked = [one for one in charges if one.outcome is not None]
    counted = [one.tokens for one in asked if one.tokens is not None]
    guessed = sum(one.total for one in counted if one.estimated)
    took = [one.ms for one in asked if one.ms is not None]
    usable = sum(one.usable is True for one in asked)
    failed = Counter(one.outcome for one in asked if one.outcome not in (ANSWERED, LOST))
    return {
        "made": len(asked),
        "answered": sum(one.outcome == ANSWERED for one in asked),
        "usable": usable,
        "usable_percent": _percent(usable, len(asked)),
        "failed": dict(sorted(failed.items())),
        "lost": sum(one.outcome == LOST for one in asked),
        "input_tokens": sum(one.input for one in counted),
        "cached_tokens": sum(one.cached for one in counted),
        "output_tokens": sum(one.output for one in counted),
        "uncounted_tokens": sum(one.charged_tokens for one in asked if one.tokens is None),
        "total_ms": round(sum(took), 3),
        "median_ms": median(took) if took else None,
        **({"estimated_tokens": guessed} if guessed else {}),
    }


def _cost_figures(charges: Iterable[Charge]) -> Figures:
    """Return what was spent: None if a price is unknown, with the known part and the number of unknown
    prices.
    """
    costs = [one.cost_nano_usd for one in charges]
    known = sum(cost for cost in costs if cost is not None) / NANO
    unpriced = costs.count(None)
    return {"cost_usd": None if unpriced else known, "priced_usd": known, "unpriced": unpriced}


def _model_figures(charges: Sequence[Charge], kernels: Sequence[KernelFact]) -> list[Figures]:
    """Return the models that were asked and the authors of kernels: `builtin` and `person` have no calls."""
    asked, wrote = (
        dict(_group_facts(charges, lambda one: one.model)),
        dict(_group_facts(kernels, lambda one: one.author)),
    )
    return [
        {
            "model": name,
            **_validity_figures(wrote.get(name, ())),
            "calls": _call_figures(asked.get(name, ())),
            **_cost_figures(asked.get(name, ())),
        }
        for name in sorted({*asked, *wrote})
    ]


def _group_facts(facts: Iterable[Fact], of: Callable[[Fact], str | None]) -> list[tuple[str, list[Fact]]]:
    """Group the facts by a name, sorted; facts without a name are left out."""
    found: dict[str, list[Fact]] = defaultdict(list)
    for one in facts:
        name = of(one)
        if name is not None:
            found[name].append(one)
    return sorted(found.items())


def _percent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None


def _cost_per(cost: float | None, number: int) -> float | None:
    return cost / number if cost is not None and number else None
