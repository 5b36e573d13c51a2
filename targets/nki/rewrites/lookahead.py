"""Searches sequences of rewrites, guided by predictions; judges nothing.

Sequences that paid in other runs are tried first, each as far as it applies, whole and in parts. Then the
search runs as if it had no such sequences, with the larger part of its budget. The rest of the budget starts
from everything known, because a fast kernel from a given sequence would otherwise hide what only pays without
it.

The search goes in generations. It expands a few of the known kernels: the fastest, the fastest that got most
of its gain from another technique, and one drawn at random. The rewrites of each are ranked by their expected
value, and the best are predicted. Then the rewrites that gained are applied together, one after the other as
far as they still apply, and the result is predicted too. So ten independent rewrites take one generation and
not ten. A kernel up to `SLOWDOWN_LIMIT` slower than the fastest can still be expanded, because some rewrites
only pay together. After some generations without a gain, lower-ranked rewrites of the fastest kernel are
predicted as well. If these bring nothing either, the search backtracks: it goes on among the kernels without
the step that leads no further.

Kernels that most likely round too much can be judged, but are not expanded, unless the search began with such
a kernel. If one of them is the fastest, its rewrites are tried together with fewer split products.

The expected value of a rewrite is between its gain elsewhere in this search and the static estimate, shifted
towards what its technique has measured in the run. All work is limited by counts, all randomness comes from
one seed, and nothing depends on the order in which answers arrive: equal questions get equal answers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from math import exp, log
from operator import itemgetter
from random import Random
from typing import TypeVar

from agent_core.roles import PredictionsEndedError
from state.model import PredictedLatency, RewriteStep
from targets.nki.rewrites.search_nodes import (
    SIBLING_DISCOUNT,
    TEMPERATURE,
    Expansion,
    RewriteCandidate,
    RewriteKey,
    SearchNode,
    SearchSeed,
    make_rewrite_key,
    node_order,
)

SLOWDOWN_LIMIT = 1.4
"""How much slower than the fastest a kernel may be and still be expanded."""
MIN_EXPECTED_SPEEDUP = 0.8
"""Expected speed-up over the fastest kernel below which a rewrite is not predicted."""
GENERATION_SIZE = 8
"""Rewrites predicted per expanded kernel."""
FIRST_SHARE = 0.4
"""Share of all predictions that the parent's rewrites may use: their gains guide everything after."""
FIRST_INSTRUCTIONS_SHARE = 0.2
"""Share of all instructions that they may use. Of large kernels, few are predicted before the time ends."""
DRAWN_SHARE = 0.25
"""Share of a generation's predictions that is drawn, not taken from the top."""
REPEAT_DISCOUNT = 0.9
"""Discount of each further rewrite of one technique in a generation."""
PATIENCE = 3
"""Generations without a gain before the fastest kernel is revisited, or a step is undone."""
REVISIT_SIZE = 64
"""Rewrites predicted of a kernel that is revisited."""
MAX_BACKTRACKS = 2
"""Steps that a search may undo before it ends."""
MAX_COMBINATIONS = 4
"""Kernels predicted that apply several gains of one kernel together."""
MIN_GAIN = 1.002
"""Predicted speed-up from which a rewrite counts as a gain."""
COPYING_GROWTH = 1.3
"""Growth of a kernel's source that marks a rewrite as copying part of it."""
MULTIPLYING = frozenset({"split_products"})
"""Techniques that make several instructions of one, however little the source grows."""
SEED_SHARE = 0.25
"""Share of all predictions, and of their instructions, for sequences of other runs; at least one is tried. If
one gains, the same share is reserved for going on from everything known.
"""

BATCH_SIZE = 32
"""Kernels predicted at a time. If the time for predictions ends, the answers to earlier batches count."""
BATCH_INSTRUCTIONS = 400_000
"""Instructions predicted at a time, of kernels of which not so many can be."""
MIN_BATCH_SIZE = 4
"""Kernels predicted at a time at least, however large: two of them side by side, twice."""

T = TypeVar("T")

PredictSources = Callable[[Sequence[str]], Awaitable[Sequence[PredictedLatency]]]
"""Predictions of kernels, at the problem's size."""
ExpandKernel = Callable[[str], Awaitable[Expansion]]
"""The rewrites of a kernel, by its source."""
CombineSteps = Callable[[str, Sequence[RewriteStep]], Awaitable[Sequence[tuple[tuple[int, ...], str]]]]
"""Applies steps one after the other, leaving out those that no longer apply.

The result has, after each applied step, the numbers of all steps so far and the source.
"""
FindRough = Callable[[Sequence[SearchNode]], Awaitable[Collection[str]]]
"""The sources of those kernels that most likely round too much."""
MakeFiner = Callable[[str, Sequence[SearchNode]], Awaitable[Sequence[Sequence[RewriteStep]]]]
"""Sequences from a source that round less than the first of some kernels, but are otherwise like its own."""


async def _find_no_rough(nodes: Sequence[SearchNode]) -> Collection[str]:
    del nodes
    return ()


async def _make_no_finer(source: str, nodes: Sequence[SearchNode]) -> Sequence[Sequence[RewriteStep]]:
    del source, nodes
    return ()


async def predict_last(predict: PredictSources, sources: Sequence[str]) -> Sequence[PredictedLatency]:
    """Predict kernels that complete what was found; return nothing if even these are too many."""
    for _ in range(2):  # If the time is up, the first question may only tell so.
        with suppress(PredictionsEndedError):
            return await predict(sources)
    return ()


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Limits on a search's work, in counts."""

    predictions: int
    instructions: int
    depth: int
    width: int


@dataclass(eq=False)
class LookaheadSearch:
    """One search from one kernel. The result is `best_node`, then `found`."""

    expand: ExpandKernel
    combine: CombineSteps
    predict: PredictSources
    limits: SearchLimits
    random: Random
    find_rough: FindRough = _find_no_rough
    make_finer: MakeFiner = _make_no_finer
    found: dict[str, SearchNode] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    predicted: int = 0
    failed: int = 0
    instructions: int = 0
    _answers: dict[str, PredictedLatency] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)
    _expanded: set[str] = field(default_factory=set)
    _gains: dict[RewriteKey, float] = field(default_factory=dict)
    _again: set[str] = field(default_factory=set)
    _copying: set[RewriteKey] = field(default_factory=set)
    _turned: set[RewriteKey] = field(default_factory=set)
    _rough: frozenset[str] = frozenset()
    _is_refined: bool = False
    _share: float = 1.0
    _ended: PredictionsEndedError | None = None

    @property
    def best_node(self) -> SearchNode:
        return min(self.found.values(), key=node_order)

    @property
    def _best_open_node(self) -> SearchNode:
        """The fastest kernel without the undone steps; the first kernel has no steps."""
        return min((one for one in self.found.values() if self._is_open(one)), key=node_order)

    def _is_open(self, one: SearchNode) -> bool:
        is_turned = not self._turned.isdisjoint(map(make_rewrite_key, one.steps))
        return not is_turned and one.source not in self._rough

    def _backtrack(self) -> bool:
        """Undo the step that leads no further: the best kernel's first copying step, else its last."""
        places = [make_rewrite_key(step) for step in self._best_open_node.steps]
        if not places or len(self._turned) == MAX_BACKTRACKS:
            return False
        self._turned.add(next((place for place in places if place in self._copying), places[-1]))
        return True

    async def run(
        self, source: str, latency_ms: float, leads: Sequence[Sequence[SearchSeed]] = ()
    ) -> list[SearchNode]:
        """Search from a kernel with this latency; return all kernels reached, the fastest first, without it.

        `leads` are the results of other runs' sequences on it, each after one more step, the nearest sequence
        first.
        """
        root = SearchNode(source, (), latency_ms, 0)
        self.found[source] = root
        self._seen.add(source)
        try:
            await self._search(root, leads)
        except PredictionsEndedError as ended:
            self.reasons = (*self.reasons, ended.info.message)
        del self.found[source]
        return self._list_reached()

    def _list_reached(self) -> list[SearchNode]:
        """All kernels but the one that the search began with, the fastest first."""
        return sorted((one for one in self.found.values() if one.steps), key=node_order)

    async def _search(self, root: SearchNode, leads: Sequence[Sequence[SearchSeed]]) -> None:
        latency_ms = root.latency_ms
        given = await self._try_seeds(root, leads)
        if any(latency_ms > MIN_GAIN * one.latency_ms for one in given):
            self._share = 1 - SEED_SHARE
        await self._run_generations(root)
        self._share = 1.0
        for one in given:
            self.found.setdefault(one.source, one)
        if given:
            await self._run_generations(root)

    async def try_together(
        self, source: str, latency_ms: float, sequences: Sequence[Sequence[RewriteStep]]
    ) -> list[SearchNode]:
        """Predict the searched kernel after each of these sequences, as far as their steps apply.

        Return what `run` does.
        """
        told = [steps for steps in sequences if steps]
        made = await asyncio.gather(*(self.combine(source, steps) for steps in told))
        ends: dict[str, list[RewriteStep]] = {}
        for steps, prefixes in zip(told, made, strict=True):
            for numbers, text in prefixes[-1:]:
                if text not in self.found:
                    ends.setdefault(text, [steps[number] for number in numbers])
        root = SearchNode(source, (), latency_ms, 0)
        answers = await predict_last(self._predict_sources, list(ends))
        for (text, steps), answer in zip(ends.items(), answers, strict=False):
            self._add_node(root, steps, text, answer)
        return self._list_reached()

    async def _leave_rough(self, root: SearchNode) -> None:
        """From now on, do not expand kernels that round too much, unless the root does already.

        When the fastest kernel is such a one for the first time, predict sequences that round less.
        """
        reached = self._list_reached()
        rough = await self.find_rough([root, *reached])
        if reached and reached[0].source in rough and not self._is_refined:
            self._is_refined = True
            finer = await self.make_finer(root.source, reached)
            reached = await self.try_together(root.source, root.latency_ms, finer)
            rough = await self.find_rough([root, *reached])
        self._rough = frozenset() if root.source in rough else frozenset(rough)

    async def _run_generations(self, root: SearchNode) -> None:
        """Run generations while the limits allow it and there is something to expand."""
        idle = 0
        while self._predictions_left > 0:
            nodes = self._select_nodes()
            each = GENERATION_SIZE if self._expanded else int(self.limits.predictions * FIRST_SHARE)
            if not nodes or idle >= PATIENCE:
                nodes, each = self._select_revisit(), REVISIT_SIZE
                if not nodes:
                    if not self._backtrack():
                        break
                    idle = 0
                    continue
            before_ms = self._best_open_node.latency_ms
            await self._expand_nodes(nodes, each)
            await self._leave_rough(root)
            idle = 0 if before_ms > MIN_GAIN * self._best_open_node.latency_ms else idle + 1

    @property
    def _predictions_left(self) -> int:
        """The number of predictions left for now."""
        return int(self.limits.predictions * self._share) - self.predicted - self.failed

    async def _expand_nodes(self, nodes: Sequence[SearchNode], each: int) -> None:
        """Predict at most `each` rewrites of each of these kernels, and the combinations of gains."""
        expansions = await asyncio.gather(*(self.expand(node.source) for node in nodes))
        share = 1.0 if self._expanded else FIRST_INSTRUCTIONS_SHARE
        self._expanded |= {node.source for node in nodes}
        self.reasons = self.reasons or expansions[0].reasons
        grown = list(zip(nodes, expansions, strict=True))
        gained = await self._predict_candidates(grown, max(each, 1), share)
        await self._combine_gains(gained)
        if self._ended is not None:
            raise self._ended

    # --- what paid elsewhere --------------------------------------------------------------------------

    async def _try_seeds(self, root: SearchNode, leads: Sequence[Sequence[SearchSeed]]) -> list[SearchNode]:
        """Predict the sequences of other runs: each as a whole first, then parts of them."""
        parts = [_pick_evenly(one, MAX_COMBINATIONS)[::-1] for one in leads if one]
        ordered = [lead for row in zip_longest(*parts) for lead in row if lead is not None]
        fresh: dict[str, SearchSeed] = {}
        for lead in ordered:
            fresh.setdefault(lead.source, lead)
        fresh.pop(root.source, None)
        most = max(1, int(self.limits.predictions * SEED_SHARE))
        picked: list[SearchSeed] = []
        total = 0
        for lead in list(fresh.values())[:most]:
            total += lead.instructions
            if picked and total > self.limits.instructions * SEED_SHARE:
                break
            picked.append(lead)
        answers = await self._predict_sources([lead.source for lead in picked])
        made = (
            self._make_node(root, lead.steps, lead.source, answer, given=len(lead.steps))
            for lead, answer in zip(picked, answers, strict=True)
        )
        return [one for one in made if one is not None]

    # --- which kernels to look further from ---------------------------------------------------------

    def _select_nodes(self) -> list[SearchNode]:
        """Choose kernels to expand: the fastest, the fastest with another technique, and one drawn."""
        limit = self._best_open_node.latency_ms * SLOWDOWN_LIMIT
        ready = sorted(
            (
                one
                for one in self.found.values()
                if self._is_open(one)
                and one.source not in self._expanded
                and one.depth < self.limits.depth
                and one.latency_ms <= limit
                and self._can_afford(one.instructions)
            ),
            key=node_order,
        )
        chosen: list[SearchNode] = []
        for one in ready:
            if len(chosen) < max(1, self.limits.width - 1) and all(
                _have_different_techniques(one, other) for other in chosen
            ):
                chosen.append(one)
        rest = [one for one in ready if one not in chosen]
        drawn = [self.random.choice(rest)] if rest and len(chosen) < self.limits.width else []
        return [*chosen, *drawn]

    def _select_revisit(self) -> list[SearchNode]:
        """The fastest kernel, unless it was already revisited."""
        leader = self._best_open_node
        if leader.source in self._again or not leader.steps or not self._can_afford(leader.instructions):
            return []
        self._again.add(leader.source)
        return [leader]

    def _can_afford(self, instructions: int) -> bool:
        return self.instructions + instructions <= self.limits.instructions * self._share

    # --- which rewrites to predict ------------------------------------------------------------------

    async def _predict_candidates(
        self, grown: Sequence[tuple[SearchNode, Expansion]], each: int, share: float = 1.0
    ) -> list[tuple[SearchNode, list[RewriteStep]]]:
        """Predict the most promising rewrites; return each kernel's gains in their order of combination.

        They take at most this share of all instructions.
        """
        wanted = [
            (node, move) for node, made in grown for move in made.moves if move.source not in self._seen
        ]
        if self._rough:
            rough = await self.find_rough([_imagine_node(node, move) for node, move in wanted])
            wanted = [(node, move) for node, move in wanted if move.source not in rough]
        picked = self._limit_instructions(
            self._pick_candidates(wanted, [node for node, _ in grown], each), share
        )
        largest = max((move.instructions for _, move in picked), default=0)
        answers = await self._predict_in_time([move.source for _, move in picked], largest)
        self._seen |= {move.source for _, move in picked}
        gains: dict[str, list[tuple[tuple[bool, float], RewriteStep]]] = {}
        for (node, move), answer in zip(picked, answers, strict=False):
            if answer.latency_ms is None:
                continue
            speedup = node.latency_ms / answer.latency_ms
            self._gains[move.rewrite_key] = log(speedup)
            if len(move.source) > COPYING_GROWTH * len(node.source):
                self._copying.add(move.rewrite_key)
            step = _make_step(move, speedup)
            self._add_node(node, [step], move.source, answer)
            if speedup > MIN_GAIN:
                # Rewrites that copy statements come last: others would have to be applied to each copy.
                copies = move.rewrite_key in self._copying or move.technique in MULTIPLYING
                rank = copies, -speedup
                gains.setdefault(node.source, []).append((rank, step))
        return [
            (node, [step for _, step in sorted(gains[node.source], key=itemgetter(0))])
            for node, _ in grown
            if node.source in gains
        ]

    def _pick_candidates(
        self, wanted: list[tuple[SearchNode, RewriteCandidate]], nodes: Sequence[SearchNode], each: int
    ) -> list[tuple[SearchNode, RewriteCandidate]]:
        """The top of the ranking of each kernel, and some drawn from the rest, as many as may be predicted.

        A kernel that is slower for now gets as many as the fastest, because it is expanded for rewrites that
        only pay there.
        """
        ranked = self._rank_candidates(wanted)
        picked: list[tuple[SearchNode, RewriteCandidate]] = []
        for node in nodes:
            room = self._predictions_left - len(picked)
            mine = [one for one in ranked if one[1][0] is node]
            picked += self._sample_ranked(mine, min(each, room))
        return picked

    def _sample_ranked(
        self, ranked: list[tuple[float, tuple[SearchNode, RewriteCandidate]]], count: int
    ) -> list[tuple[SearchNode, RewriteCandidate]]:
        drawn = int(count * DRAWN_SHARE) if len(ranked) > count else 0
        top, rest = ranked[: count - drawn], ranked[count - drawn :]
        while rest and len(top) < count:
            weights = [exp((value - rest[0][0]) / TEMPERATURE) for value, _ in rest]
            top.append(rest.pop(self.random.choices(range(len(rest)), weights)[0]))
        return [pair for _, pair in top]

    def _rank_candidates(
        self, wanted: list[tuple[SearchNode, RewriteCandidate]]
    ) -> list[tuple[float, tuple[SearchNode, RewriteCandidate]]]:
        """Kernel and rewrite with its expected value, as a logarithm relative to the fastest kernel."""
        best_ms = self._best_open_node.latency_ms
        sites: Counter[RewriteKey] = Counter()
        techniques: Counter[tuple[str, str]] = Counter()
        sources: set[str] = set()
        out = []
        for node, move in sorted(wanted, key=lambda pair: -self._expected_gain(pair[1])):
            expected = self._expected_gain(move)
            reached = log(best_ms / node.latency_ms) + expected
            if move.source in sources or reached < log(MIN_EXPECTED_SPEEDUP):
                continue
            sources.add(move.source)
            site = (node.source, move.technique, move.site)
            discount = (
                SIBLING_DISCOUNT ** sites[site] * REPEAT_DISCOUNT ** techniques[node.source, move.technique]
            )
            sites[site] += 1
            techniques[node.source, move.technique] += 1
            out.append(
                (reached - expected + (expected * discount if expected > 0 else expected), (node, move))
            )
        return sorted(out, key=lambda one: (-one[0], one[1][1].rewrite_key, one[1][1].source))

    def _expected_gain(self, move: RewriteCandidate) -> float:
        """Return the mean of the rewrite's gain elsewhere and its expected value here."""
        return (self._gains.get(move.rewrite_key, move.value) + move.value) / 2

    def _limit_instructions(
        self, picked: list[tuple[SearchNode, RewriteCandidate]], share: float
    ) -> list[tuple[SearchNode, RewriteCandidate]]:
        """Keep as many as a share of the instruction budget allows, but at least one.

        What is left is enough for the combinations of one kernel's gains.
        """
        kept: list[tuple[SearchNode, RewriteCandidate]] = []
        most = share * self._share * self.limits.instructions
        total = 0
        for node, move in picked:
            total += move.instructions
            if kept and (total > most or not self._can_afford(total + MAX_COMBINATIONS * node.instructions)):
                break
            kept.append((node, move))
        return kept

    # --- several gains at once ----------------------------------------------------------------------

    async def _combine_gains(self, gained: Sequence[tuple[SearchNode, list[RewriteStep]]]) -> None:
        """Predict the combined gains of each kernel; without time for them, all gains of the first kernel."""
        several = [
            (node, steps[: self.limits.depth - node.depth]) for node, steps in gained if len(steps) > 1
        ]
        made = await asyncio.gather(*(self.combine(node.source, steps) for node, steps in several))
        wanted: list[tuple[SearchNode, list[RewriteStep], str]] = []
        for (node, steps), prefixes in zip(several, made, strict=True):
            fresh = [(n, s) for n, s in prefixes if len(n) > 1 and s not in self._seen]
            chosen = _pick_evenly(fresh, MAX_COMBINATIONS)
            wanted += [(node, [steps[i] for i in n], source) for n, source in chosen]
        wanted = [one for one in wanted[: self._predictions_left] if self._can_afford(one[0].instructions)]
        largest = max((node.instructions for node, _, _ in wanted), default=0)
        answers = await self._predict_in_time([source for _, _, source in wanted], largest)
        self._seen |= {source for _, _, source in wanted}
        if self._ended is not None and wanted:
            first = [one for one in wanted if one[0] is wanted[0][0]]
            wanted = [*wanted[: len(answers)], first[-1]]
            answers = [*answers, *await predict_last(self._predict_sources, [first[-1][2]])]
        for (node, steps, source), answer in zip(wanted, answers, strict=False):
            self._add_node(node, steps, source, answer)

    # --- asking ---------------------------------------------------------------------------------------

    async def _predict_sources(self, sources: Sequence[str]) -> list[PredictedLatency]:
        """Predict kernels; the search proper may ask again for a given one, which is predicted only once."""
        fresh = [source for source in sources if source not in self._answers]
        if fresh:
            answers = await self.predict(fresh)
            self._answers.update(zip(fresh, answers, strict=True))
            for one in answers:
                self.predicted += one.latency_ms is not None
                self.failed += one.latency_ms is None
                self.instructions += one.instructions
        return [self._answers[source] for source in sources]

    async def _predict_in_time(self, sources: Sequence[str], largest: int) -> list[PredictedLatency]:
        """Predict kernels, or the first ones of them if the time ends, and nothing if it has ended before.

        None has many more instructions than `largest`.
        """
        answers: list[PredictedLatency] = []
        size = max(MIN_BATCH_SIZE, min(BATCH_SIZE, BATCH_INSTRUCTIONS // max(1, largest)))
        try:
            for first in range(0, len(sources) if self._ended is None else 0, size):
                answers += await self._predict_sources(sources[first : first + size])
        except PredictionsEndedError as ended:
            self._ended = ended
        return answers

    def _add_node(
        self, node: SearchNode, steps: Sequence[RewriteStep], source: str, answer: PredictedLatency
    ) -> None:
        found = self._make_node(node, steps, source, answer)
        if found is not None:
            self.found[source] = found

    def _make_node(
        self,
        node: SearchNode,
        steps: Sequence[RewriteStep],
        source: str,
        answer: PredictedLatency,
        *,
        given: int = 0,
    ) -> SearchNode | None:
        """The kernel that steps lead to; None if it has no latency, or is too many steps away."""
        if answer.latency_ms is None or node.depth + len(steps) - given > self.limits.depth:
            return None
        told = (*node.steps, *_scale_gains(steps, node.latency_ms / answer.latency_ms))
        return SearchNode(
            source, told, answer.latency_ms, answer.instructions, answer.code, node.given + given
        )


def _pick_evenly(prefixes: Sequence[T], count: int) -> list[T]:
    """At most `count` prefixes, evenly spaced, including the longest."""
    if len(prefixes) <= count:
        return list(prefixes)
    return [prefixes[(number + 1) * len(prefixes) // count - 1] for number in range(count)]


def _have_different_techniques(one: SearchNode, other: SearchNode) -> bool:
    """Whether the two kernels got most of their gains from different techniques."""
    return _main_technique(one) != _main_technique(other)


def _main_technique(found: SearchNode) -> str | None:
    return max(found.steps, key=lambda step: step.speedup).technique if found.steps else None


def _scale_gains(steps: Sequence[RewriteStep], speedup: float) -> list[RewriteStep]:
    """The steps with their gains scaled so that their product equals the total gain."""
    total = sum(log(step.speedup) for step in steps)
    power = log(speedup) / total if total > 0 and speedup > 1 else None
    each = speedup ** (1 / len(steps))
    return [
        step.model_copy(update={"speedup": round(each if power is None else step.speedup**power, 9)})
        for step in steps
    ]


def _imagine_node(node: SearchNode, move: RewriteCandidate) -> SearchNode:
    """The kernel that a rewrite leads to, before its latency is predicted: that of its parent."""
    steps = (*node.steps, _make_step(move, 1.0))
    return SearchNode(move.source, steps, node.latency_ms, move.instructions)


def _make_step(move: RewriteCandidate, speedup: float) -> RewriteStep:
    return RewriteStep(
        technique=move.technique,
        site=move.site,
        title=move.title,
        choice=dict(move.choice),
        speedup=round(speedup, 9),
    )
