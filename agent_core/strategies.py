"""Strategies: whose turn it is in a round, who survives it, and whether rewrites are searched for or drawn.

A strategy is a row of a table. The judge, the rewrites, the log, what is learnt and how a round goes are the
same for all, so that one can be compared with another under one budget of judged kernels. `beam` is the
project's own search (`agent_core.beam`); the others are what it is compared with:

- `greedy`: the fastest kernel alone, and of its rewrites, one at a time, those predicted (without
  predictions: estimated) to be fastest.
- `best-of-n`: sequences of rewrites drawn evenly, all from the initial kernel; the fastest counts.
- `random`: parents drawn evenly among the survivors of a round, one rewrite drawn evenly for each kernel; the
  survivors are drawn evenly too.
- `evolution`: the fastest kernels survive, parents win tournaments among them, one rewrite or two are drawn
  for each kernel. There is no crossover: a rewrite names places of the kernel that it was planned for.

The fastest kernel survives under all of them: it is the run's result. Where kernels are drawn and predictions
are allowed, more are drawn than are judged, and the fastest of them by prediction are judged. All draws come
from the run's seed and the round.
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
"""Kernels in a tournament, of which the fastest becomes a parent."""
MUTATIONS = 2
"""Rewrites at most that `evolution` draws at a time."""
ANY_LENGTH = 1000
"""More rewrites than any sequence has."""

SelectParents = Callable[[Sequence[Candidate], int, Random], list[Candidate]]
"""So many parents of a round from those who survived the last, the fastest first; one may come up again."""
SelectSurvivors = Callable[[Sequence[Candidate], int, Callable[[Candidate], float]], list[Candidate]]
"""So many survivors from all kernels, the fastest first; each kernel has a lot, a number that is drawn."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """What tells a strategy from the beam.

    `apply_strategy` are set in the configuration of the search, whatever stands there. `select_parents` and
    `survivors` are None where the beam's rules hold. `drawn_sequence_length` is how many rewrites a drawn
    sequence has at most (besides `search.lookahead_depth`), 0 where sequences are searched for. `reuses`:
    what paid in other runs is tried first; the others are there to be compared with, each by its own means.
    """

    numbers: Mapping[str, int] = field(default_factory=dict)
    parents: SelectParents | None = None
    survivors: SelectSurvivors | None = None
    drawn: int = 0
    reuses: bool = False


def _repeat_initial(kernels: Sequence[Candidate], count: int, random: Random) -> list[Candidate]:
    """The initial kernel; the fastest where it has left the beam, under the strategy of an earlier round."""
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
"""By the names that `search.strategy` takes."""


def apply_strategy(search: SearchConfig) -> SearchConfig:
    """Return the numbers of a search with those that its strategy sets."""
    return search.model_copy(update=dict(STRATEGIES[search.strategy].numbers))


def drawn_sequence_length(search: SearchConfig) -> int:
    """Return how many rewrites a drawn sequence has at most; 0 where sequences are searched for."""
    return min(STRATEGIES[search.strategy].drawn, search.lookahead_depth)


def select_parents(state: RunState, config: RunConfig) -> list[Candidate]:
    """Return whom the slots of the next round improve, under `config`; a parent may have several slots."""
    rule = STRATEGIES[config.search.strategy].parents
    kernels = [entry.candidate for entry in state.beam]
    count = apply_strategy(config.search).beam
    if rule is None or not kernels:
        return kernels[:count]
    return rule(kernels, count, _seeded_random(config.seed, state.round + 1, "parents"))


def select_survivors(state: RunState, fresh: Sequence[Candidate]) -> beam.BeamSelection:
    """Select who survives the round of the state, from its beam and its correct kernels."""
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
    """Return how many rounds judge at most so many kernels, the initial one included; at least 1."""
    set_ = apply_strategy(search)
    each = set_.plans * set_.implementations
    slots = 1 if STRATEGIES[search.strategy].parents is None else set_.beam
    later = candidates - 1 - slots * each
    return 1 + max(0, later) // (set_.beam * each)


def _distinct_by_code(kernels: Iterable[Candidate]) -> list[Candidate]:
    """Each code once, the fastest first; of equally fast ones those that came first."""
    first: dict[str, Candidate] = {}
    for one in kernels:
        first.setdefault(one.code, one)
    return sorted(first.values(), key=_latency_ms)


def _latency_ms(one: Candidate) -> float:
    return one.latency_ms


def _seeded_random(seed: int, round_: int, what: str) -> Random:
    return Random(f"{seed}|{round_}|{what}")  # noqa: S311  a search, no secret
