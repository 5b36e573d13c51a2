"""Search strategies: which kernels are parents, which survive, and whether rewrites are searched or drawn.

A strategy is a row of a table. The judge, the rewrites, the log, the learning and the course of a round are
the same for all, so you can compare strategies under one budget of judged kernels. `beam` is the project's
own search (`agent_core.beam`); the others are baselines:

- `greedy`: only the fastest kernel is improved, one rewrite at a time, and those predicted fastest are judged
  (estimated fastest, if there are no predictions).
- `best-of-n`: draws sequences of rewrites evenly, all from the initial kernel; the fastest result counts.
- `random`: draws parents evenly from a round's survivors, one rewrite evenly for each kernel, and the
  survivors evenly too.
- `evolution`: the fastest kernels survive, parents win tournaments among them, and one or two rewrites are
  drawn for each kernel. There is no crossover, because a rewrite names sites of the kernel that it was
  planned for.

The fastest kernel survives under all of them: it is the run's result. If kernels are drawn and predictions
are allowed, more kernels are drawn than judged, and those predicted fastest are judged. All draws are seeded
by the run's seed and the round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from agent_core import beam
from stability.attempt_history import tried_codes
from state.fold import RunState
from state.model import Candidate, RunConfig, SearchConfig

CONTESTANTS = 2
"""Kernels in a tournament; the fastest of them becomes a parent."""
MUTATIONS = 2
"""The most rewrites that `evolution` draws at a time."""
ANY_LENGTH = 1000
"""More rewrites than any sequence has."""

SelectParents = Callable[[Sequence[Candidate], int, Random], list[Candidate]]
"""Picks `count` parents for a round from the last survivors, fastest first; repeats are allowed."""
SelectSurvivors = Callable[[Sequence[Candidate], int, Callable[[Candidate], float]], list[Candidate]]
"""Picks `count` survivors from all kernels, fastest first; the callable gives each a random number."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """How a strategy differs from the beam search.

    `numbers` override settings of the search. `parents` and `survivors` pick kernels; None means the beam's
    rules. `drawn` is the most rewrites in a drawn sequence (`search.lookahead_depth` is a limit too), 0 if
    sequences are searched for. `reuses` says whether sequences that paid in other runs are tried first;
    baselines do not.
    """

    numbers: Mapping[str, int] = field(default_factory=dict)
    parents: SelectParents | None = None
    survivors: SelectSurvivors | None = None
    drawn: int = 0
    reuses: bool = False


def _repeat_initial(kernels: Sequence[Candidate], count: int, random: Random) -> list[Candidate]:
    """Repeat the initial kernel, or the fastest one if an earlier strategy dropped it from the beam."""
    first = [one for one in kernels if one.parent is None] or kernels
    return [first[0]] * count


def _draw_evenly(kernels: Sequence[Candidate], count: int, random: Random) -> list[Candidate]:
    return random.choices(kernels, k=count)


def _draw_by_tournament(kernels: Sequence[Candidate], count: int, random: Random) -> list[Candidate]:
    return [min(random.choices(kernels, k=CONTESTANTS), key=_latency_ms) for _ in range(count)]


def _keep_initial_and_fastest(
    kernels: Sequence[Candidate], count: int, lot: Callable[[Candidate], float]
) -> list[Candidate]:
    return [kernels[0], *(one for one in kernels[1:] if one.parent is None)]


def _draw_survivors(
    kernels: Sequence[Candidate], count: int, lot: Callable[[Candidate], float]
) -> list[Candidate]:
    return [kernels[0], *sorted(kernels[1:], key=lot)[: count - 1]]


def _keep_fastest(
    kernels: Sequence[Candidate], count: int, lot: Callable[[Candidate], float]
) -> list[Candidate]:
    return list(kernels[:count])


STRATEGIES: Mapping[str, Strategy] = {
    "beam": Strategy(reuses=True),
    "greedy": Strategy(numbers={"beam": 1, "explorers": 0, "lookahead_depth": 1, "lookahead_width": 1}),
    "best-of-n": Strategy(parents=_repeat_initial, survivors=_keep_initial_and_fastest, drawn=ANY_LENGTH),
    "random": Strategy(parents=_draw_evenly, survivors=_draw_survivors, drawn=1),
    "evolution": Strategy(parents=_draw_by_tournament, survivors=_keep_fastest, drawn=MUTATIONS),
}
"""By name, as in the setting `search.strategy`."""


def apply_strategy(search: SearchConfig) -> SearchConfig:
    """Return the search settings with those that the strategy overrides."""
    return search.model_copy(update=dict(STRATEGIES[search.strategy].numbers))


def drawn_sequence_length(search: SearchConfig) -> int:
    """Return the most rewrites in a drawn sequence; 0 if sequences are searched for."""
    return min(STRATEGIES[search.strategy].drawn, search.lookahead_depth)


def select_parents(state: RunState, config: RunConfig) -> list[Candidate]:
    """Return the kernels that the next round's slots improve, under `config`; repeats are possible."""
    rule = STRATEGIES[config.search.strategy].parents
    kernels = [entry.candidate for entry in state.beam]
    count = apply_strategy(config.search).beam
    if rule is None or not kernels:
        return kernels[:count]
    return rule(kernels, count, _seeded_random(config.seed, state.round + 1, "parents"))


def select_survivors(state: RunState, fresh: Sequence[Candidate]) -> beam.BeamSelection:
    """Select the survivors of the state's round from its beam and its correct kernels."""
    search = apply_strategy(state.config.search)
    rule = STRATEGIES[search.strategy].survivors
    if rule is None:
        return beam.select_beam(
            state.beam,
            fresh,
            checkpoints=state.checkpoints,
            tried=tried_codes(state.attempts),
            search=search,
        )
    kernels = _distinct_by_code((*(entry.candidate for entry in state.beam), *fresh))

    def lot(one: Candidate) -> float:
        return _seeded_random(state.config.seed, state.round, one.id).random()

    return beam.select_exactly(
        rule(kernels, search.beam, lot), fresh, checkpoints=state.checkpoints, search=search
    )


def rounds_within(candidates: int, search: SearchConfig) -> int:
    """Return how many rounds judge at most `candidates` kernels, the initial one included; at least 1."""
    set_ = apply_strategy(search)
    each = set_.plans * set_.implementations
    slots = 1 if STRATEGIES[search.strategy].parents is None else set_.beam
    later = candidates - 1 - slots * each
    return 1 + max(0, later) // (set_.beam * each)


def _distinct_by_code(kernels: Iterable[Candidate]) -> list[Candidate]:
    """Return one kernel for each code, fastest first; ties keep their order."""
    first: dict[str, Candidate] = {}
    for one in kernels:
        first.setdefault(one.code, one)
    return sorted(first.values(), key=_latency_ms)


def _latency_ms(one: Candidate) -> float:
    return one.latency_ms


def _seeded_random(seed: int, round_: int, what: str) -> Random:
    return Random(f"{seed}|{round_}|{what}")  # noqa: S311  a search, no secret
