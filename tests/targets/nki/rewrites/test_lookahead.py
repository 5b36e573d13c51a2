"""The search over sequences, on toy kernels whose latency is a product of factors: exact, and in no time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log, prod
from random import Random
from typing import Any

import pytest

from nki_sim.functions import VALID_RANGES
from state.model import ErrorInfo, PredictedLatency, RewriteStep, digest_of
from targets.nki.rewrites.lookahead import ExpandKernel, LookaheadSearch, SearchLimits
from targets.nki.rewrites.lookahead_role import (
    NARROW_FUNCTIONS,
    NEAR_EQUAL_PREDICTED,
    EngineClient,
    make_finer_sequences,
    select_variants,
)
from targets.nki.rewrites.search_nodes import Expansion, RewriteCandidate, SearchNode, SearchSeed

AMPLE = SearchLimits(predictions=200, instructions=10**9, depth=12, width=3)


class Toy:
    """A kernel is a set of switches, written as letters; each has a factor, `needs` one that must be on.

    `wrong` are letters whose kernel cannot be predicted, `guess` what is thought of a switch beforehand.
    """

    def __init__(
        self,
        factors: Mapping[str, float],
        *,
        needs: Mapping[str, str] | None = None,
        wrong: str = "",
        guess: Mapping[str, float] | None = None,
    ) -> None:
        self.factors = factors
        self.needs = needs or {}
        self.wrong = wrong
        self.guess = guess or {}
        self.asked: list[str] = []
        self.expanded: list[str] = []

    def ms(self, source: str) -> float:
        return 100.0 * prod(self.factors.get(letter, 1.0) for letter in source)

    async def expand_kernel(self, source: str) -> Expansion:
        self.expanded.append(source)
        await asyncio.sleep(0)
        return Expansion(tuple(self._move(source, letter) for letter in self._free(source)), ("no more",))

    def _free(self, source: str) -> list[str]:
        return [
            letter for letter in self.factors if letter not in source and self.needs.get(letter, "") in source
        ]

    def _move(self, source: str, letter: str) -> RewriteCandidate:
        return RewriteCandidate(
            technique=f"flip_{letter}",
            site="here",
            choice={},
            title=f"flip {letter}",
            source="".join(sorted(source + letter)),
            value=self.guess.get(letter, 0.0),
            instructions=10,
        )

    async def combine_steps(
        self, source: str, steps: Sequence[RewriteStep]
    ) -> list[tuple[tuple[int, ...], str]]:
        made = []
        for number, step in enumerate(steps):
            source = "".join(sorted(source + step.technique[-1]))
            made.append((tuple(range(number + 1)), source))
        return made

    async def predict(
        self, sources: Sequence[str], dims: Mapping[str, int] | None = None
    ) -> list[PredictedLatency]:
        self.asked += sources
        return [self._predict_latency(source) for source in sources]

    def _predict_latency(self, source: str) -> PredictedLatency:
        if set(source) & set(self.wrong):
            return PredictedLatency(instructions=10, error=ErrorInfo(code="capacity", message="too large"))
        return PredictedLatency(latency_ms=self.ms(source), instructions=10, code=digest_of(source.encode()))


async def search(
    toy: Toy, limits: SearchLimits = AMPLE, seed: int = 0, leads: Sequence[Sequence[SearchSeed]] = ()
) -> tuple[LookaheadSearch, list[SearchNode]]:
    one = LookaheadSearch(toy.expand_kernel, toy.combine_steps, toy.predict, limits, Random(seed))
    return one, await one.run("", 100.0, leads)


async def nothing_together(source: str, steps: Sequence[RewriteStep]) -> list[tuple[tuple[int, ...], str]]:
    del source, steps
    return []


def step(letter: str) -> RewriteStep:
    return RewriteStep(technique=f"flip_{letter}", site="here", title=letter, speedup=2.0)


def with_long_source(expand: ExpandKernel, letter: str) -> ExpandKernel:
    """The same rewrites, of which one makes the source longer by more than it says."""

    async def expanded(source: str) -> Expansion:
        made = await expand(source)
        return Expansion(
            tuple(
                replace(move, source=f"{move.source}{'.' * 9}") if move.technique[-1] == letter else move
                for move in made.moves
            )
        )

    return expanded


def lead(letters: str, instructions: int = 10) -> list[SearchSeed]:
    """What a sequence of another run makes of the first kernel, step by step."""
    steps = tuple(
        RewriteStep(technique=f"flip_{letter}", site="there", title=letter, speedup=2.0) for letter in letters
    )
    return [
        SearchSeed(steps[:n], "".join(sorted(letters[:n])), instructions) for n in range(1, len(letters) + 1)
    ]


async def test_gains_that_do_not_depend_on_one_another_are_carried_out_together():
    toy = Toy(dict.fromkeys("abcdefghij", 0.9))
    _, found = await search(toy)
    assert found[0].source == "abcdefghij"
    assert toy.expanded.index("abcdefghij") == 1, "ten steps do not take ten generations"
    assert [step.technique for step in found[0].steps] == [f"flip_{letter}" for letter in "abcdefghij"]
    assert prod(step.speedup for step in found[0].steps) == pytest.approx(100 / found[0].latency_ms)


async def test_a_step_that_costs_a_little_is_taken_for_one_that_it_allows():
    _, found = await search(Toy({"a": 1.15, "b": 0.5}, needs={"b": "a"}))
    assert found[0].source == "ab"
    assert [round(step.speedup, 2) for step in found[0].steps] == [0.87, 2.0]


async def test_a_step_that_costs_too_much_is_not_looked_further_from():
    toy = Toy({"a": 1.5, "b": 0.5}, needs={"b": "a"})
    _, found = await search(toy)
    assert [one.source for one in found] == ["a"]
    assert toy.expanded == [""]


async def test_what_is_thought_to_be_hopeless_is_not_predicted():
    toy = Toy({"a": 0.9, "b": 0.9}, guess={"b": -0.5})
    await search(toy)
    assert "b" not in toy.asked


async def test_what_a_rewrite_brought_elsewhere_counts_as_much_as_what_is_thought_of_it():
    toy = Toy({"a": 0.5, "b": 0.99, "c": 1.5}, guess={"c": 1.0, "a": 0.01, "b": 0.01})
    one, found = await search(toy, SearchLimits(predictions=7, instructions=10**9, depth=12, width=1))
    assert found[0].source == "ab"
    assert one._expected_gain(toy._move("ab", "c")) == pytest.approx((1 - log(1.5)) / 2)


async def test_a_kernel_that_is_slower_for_now_gets_as_many_predictions():
    """Here all that follows `a` looks better than what follows `b`, which is what leads far."""
    fillers = dict.fromkeys("cdefghijklmn", 0.999)
    factors = {"a": 0.9, "b": 0.95, "z": 0.5, **fillers}
    toy = Toy(factors, needs={**dict.fromkeys(fillers, "a"), "z": "b"})
    toy.combine_steps = nothing_together
    _, found = await search(toy, SearchLimits(predictions=30, instructions=10**9, depth=12, width=2))
    assert "z" in found[0].source


async def test_kernels_looked_further_from_came_by_different_techniques():
    """Of those that `a` brought most of their gain one is looked further from, beside the fastest other."""
    toy = Toy({})
    one = LookaheadSearch(
        toy.expand_kernel, toy.combine_steps, toy.predict, SearchLimits(100, 10**9, 12, 3), Random(0)
    )
    gains = {"a": 1.8, "b": 1.1, "c": 1.2, "d": 1.7}
    for letters, ms in (("ac", 48.0), ("ab", 49.0), ("a", 50.0), ("db", 55.0), ("d", 56.0)):
        steps = tuple(step(letter).model_copy(update={"speedup": gains[letter]}) for letter in letters)
        one.found[letters] = SearchNode(letters, steps, ms, 10)
    first, second, third = one._select_nodes()
    assert (first.source, second.source) == ("ac", "db")
    assert third.source in ("ab", "a", "d")


async def test_what_copies_statements_is_joined_last():
    """The larger gain is of a rewrite that makes the source longer: it comes behind the other."""
    toy = Toy({"a": 0.5, "b": 0.9})
    expand = with_long_source(toy.expand_kernel, "a")
    joined: list[list[str]] = []

    async def combine_steps(source: str, steps: Sequence[RewriteStep]) -> list[tuple[tuple[int, ...], str]]:
        del source
        joined.append([one.technique for one in steps])
        return []

    await LookaheadSearch(expand, combine_steps, toy.predict, AMPLE, Random(0)).run("." * 20, 100.0)
    assert joined[0] == ["flip_b", "flip_a"]


async def test_what_little_is_thought_of_is_predicted_before_a_step_is_turned_back_from():
    """`z` is behind all else in the ranking of every kernel, and far from being drawn."""
    others = "bcdefghijklmnopqrstuvw"
    factors = {"a": 0.5, **dict.fromkeys(others, 1.01), "z": 0.8}
    toy = Toy(
        factors, needs=dict.fromkeys([*others, "z"], "a"), guess=dict.fromkeys(others, 0.1) | {"z": -0.2}
    )
    _, found = await search(toy)
    assert found[0].source == "az"
    first = toy.asked.index("az")
    assert first > 3 * 8
    assert set(toy.asked[:first]) > {f"a{letter}" for letter in others}


async def test_a_step_that_leads_no_further_is_turned_back_from():
    """`a` is by far the fastest and shuts out what `b` opens: only without it is the rest looked at."""
    factors = {"a": 0.6, "b": 0.9, "c": 0.8, "d": 0.8, "e": 0.8}
    toy = Toy(factors, needs={"c": "b", "d": "c", "e": "d"})
    expand = toy.expand_kernel

    async def shut(source: str) -> Expansion:
        made = await expand(source)
        return Expansion(tuple(move for move in made.moves if "a" not in move.source or move.source == "a"))

    toy.combine_steps = nothing_together
    one = LookaheadSearch(shut, toy.combine_steps, toy.predict, AMPLE, Random(0))
    found = await one.run("", 100.0)
    assert found[0].source == "bcde"
    assert toy.expanded.index("a") < toy.expanded.index("b")


@pytest.mark.parametrize(("long", "turned"), [("a", "flip_a"), ("z", "flip_b")])
async def test_the_first_step_that_copies_statements_is_turned_back_from_else_the_last(long, turned):
    toy = Toy({"a": 0.9, "b": 0.9})
    toy.combine_steps = nothing_together
    one = LookaheadSearch(
        with_long_source(toy.expand_kernel, long), toy.combine_steps, toy.predict, AMPLE, Random(0)
    )
    one.found["." * 20] = root = SearchNode("." * 20, (), 100.0, 0)
    await one._predict_candidates([(root, await one.expand(root.source))], 8)
    one.found["ab"] = both = SearchNode("ab", (step("a"), step("b")), 81.0, 10)
    assert one._backtrack()
    assert {place[0] for place in one._turned} == {turned}
    assert one._best_open_node is not both


async def test_a_search_ends_where_there_is_no_step_to_turn_back_from():
    one = LookaheadSearch(Toy({}).expand_kernel, nothing_together, Toy({}).predict, AMPLE, Random(0))
    one.found[""] = SearchNode("", (), 100.0, 0)
    assert not one._backtrack()


async def test_counts_limit_the_work():
    letters = dict.fromkeys("abcdefghijklmnopqrstuvwxyz", 0.999)
    one, _ = await search(Toy(letters), SearchLimits(predictions=20, instructions=10**9, depth=12, width=3))
    assert one.predicted == 20
    one, _ = await search(Toy(letters), SearchLimits(predictions=200, instructions=55, depth=12, width=3))
    assert one.instructions <= 60
    _, found = await search(Toy(letters), SearchLimits(predictions=200, instructions=10**9, depth=2, width=3))
    assert max(len(one.steps) for one in found) == 2


async def test_one_kernel_is_looked_at_however_large_it_is():
    one, found = await search(Toy({"a": 0.5}), SearchLimits(predictions=9, instructions=1, depth=9, width=3))
    assert (one.predicted, found[0].source) == (1, "a")


async def test_kernels_without_a_prediction_are_counted_and_left():
    one, found = await search(Toy({"a": 0.9, "b": 0.1}, wrong="b"))
    assert [item.source for item in found] == ["a"]
    assert (one.predicted, one.failed) == (1, 2)


async def test_a_search_without_gains_ends():
    toy = Toy(dict.fromkeys("abcdefghijklmnop", 1.01))
    one, _ = await search(toy)
    assert len(toy.expanded) <= 1 + 3 * 3
    assert one.predicted < AMPLE.predictions


async def test_nothing_is_predicted_twice():
    toy = Toy(dict.fromkeys("abcdefgh", 0.95))
    await search(toy)
    assert len(toy.asked) == len(set(toy.asked))


@pytest.mark.parametrize("seed", range(3))
async def test_equal_questions_get_equal_answers(seed):
    factors = {letter: 0.9 + 0.02 * number for number, letter in enumerate("abcdefgh")}
    limits = SearchLimits(predictions=12, instructions=10**9, depth=12, width=3)
    first, again = Toy(factors), Toy(factors)
    _, one = await search(first, limits, seed)
    _, other = await search(again, limits, seed)
    assert first.asked == again.asked
    assert [item.steps for item in one] == [item.steps for item in other]


def search_node(source: str, latency_ms: float) -> SearchNode:
    steps = tuple(RewriteStep(technique=f"flip_{one}", site="here", title=one) for one in source)
    return SearchNode(source, steps, latency_ms, 10, source)


def test_what_is_judged_differs_first():
    reached = [
        search_node("ab", 50),
        search_node("abc", 50.01),
        search_node("a", 60),
        search_node("d", 70),
        search_node("e", 105),
    ]
    chosen = select_variants(reached, 6, 100.0, frozenset())
    assert [one.source for one in chosen] == ["ab", "d", "a", "e"]
    assert [one.source for one in select_variants(reached, 2, 100.0, frozenset())] == ["ab", "d"]


def test_the_second_kernel_is_the_simplest_of_another_family():
    reached = [
        search_node("abcd", 50),
        search_node("abce", 50.1),
        search_node("xyza", 50.5),
        search_node("xyz", 51),
        search_node("xy", 52),
    ]
    chosen = select_variants(reached, 3, 100.0, frozenset(), near=NEAR_EQUAL_PREDICTED)
    assert [one.source for one in chosen] == ["abcd", "xyz"]


@pytest.mark.parametrize(
    ("reached", "second"),
    [
        ({"abcdef": 50, "ab": 50.5, "xyz": 51}, "xyz"),
        ({"abcd": 50, "cdxy": 50.3, "cd": 51}, "cdxy"),
        ({"abcd": 50, "xy": 50.3, "xyz": 51}, "xy"),
    ],
    ids=["not a part of the first", "nor of both", "nor with more steps"],
)
def test_the_second_kernel_is_of_its_own(reached: dict[str, float], second: str):
    nodes = [search_node(name, latency) for name, latency in reached.items()]
    chosen = select_variants(nodes, 2, 100.0, frozenset(), near=NEAR_EQUAL_PREDICTED)
    assert [one.source for one in chosen] == [nodes[0].source, second]


def test_the_simplest_kernel_keeps_half_of_the_gain():
    reached = [search_node("abc", 50), search_node("abd", 50.2), search_node("ab", 50.49)]
    chosen = select_variants(reached, 2, 50.5, frozenset(), near=NEAR_EQUAL_PREDICTED)
    assert [one.source for one in chosen] == ["abc", "abd"]


def test_without_another_family_the_second_kernel_is_simpler():
    reached = [
        search_node(name, 50 + number / 2) for number, name in enumerate(("abcd", "abce", "abc", "ab"))
    ]
    chosen = select_variants(reached, 3, 100.0, frozenset(), near=NEAR_EQUAL_PREDICTED)
    assert [one.source for one in chosen] == ["abcd", "abc"]
    assert select_variants(reached[:1], 3, 100.0, frozenset()) == reached[:1]


def test_at_most_two_of_almost_the_same_latency_are_judged():
    reached = [
        search_node(name, latency) for name, latency in zip("abcde", (50, 50.1, 50.2, 50.4, 51), strict=True)
    ]
    assert [one.source for one in select_variants(reached, 6, 100.0, frozenset())] == ["a", "b", "d", "e"]


def test_fewer_are_close_where_latencies_are_predicted():
    reached = [
        search_node(name, latency) for name, latency in zip("abcde", (50, 50.1, 54, 56, 105), strict=True)
    ]
    chosen = select_variants(reached, 3, 100.0, frozenset(), near=NEAR_EQUAL_PREDICTED)
    assert [one.source for one in chosen] == ["a", "b", "d"]
    chosen = select_variants(reached, 6, 100.0, frozenset(), near=NEAR_EQUAL_PREDICTED)
    assert [one.source for one in chosen] == ["a", "b", "d", "e"]


def test_one_kernel_has_no_function_of_a_narrow_domain():
    fast, slow, same = search_node("a", 50), search_node("b", 60), search_node("c", 70)
    narrow = RewriteStep(technique="intrinsic", site="here", title="rsqrt", choice={"function": "rsqrt"})
    others = [replace(one, steps=(*one.steps, narrow)) for one in (fast, slow)]
    assert select_variants([*others, same], 2, 100.0, frozenset()) == [others[0], same]
    assert select_variants([*others, same], 1, 100.0, frozenset()) == [others[0]]
    assert select_variants([*others], 2, 100.0, frozenset()) == others
    assert VALID_RANGES.keys() == NARROW_FUNCTIONS


def test_at_most_half_of_the_kernels_may_round_too_much():
    names = "abcdefgh"
    reached = [search_node(name, 50 + number) for number, name in enumerate(names)]
    rough = dict.fromkeys("abcdefg", 3e-5)
    chosen = select_variants(reached, 4, 100.0, frozenset(), rough=rough)
    assert [one.source for one in chosen] == ["a", "h", "b"]
    chosen = select_variants(reached, 4, 100.0, frozenset(), rough=dict.fromkeys("bcdefg", 3e-5))
    assert [one.source for one in chosen] == ["a", "b", "c", "h"]
    chosen = select_variants(reached, 4, 100.0, frozenset(), rough=dict.fromkeys(names, 3e-5))
    assert [one.source for one in chosen] == ["a", "b", "c", "d"]


class RoundingEngine:
    """Writes a kernel that names its steps. All products at once round too much.

    `products to up` are split before the loops are fused, `products to nothing` nowhere.
    """

    async def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        if job["job"] == "rounding":
            return {"rounding": [3e-5 if "all products" in source else 1e-5 for source in job["sources"]]}
        sites = [told["site"] for told in job["steps"]]
        gone = {"products to nothing"} | ({"products to up"} if "i and j" in sites[:1] else set())
        kept = tuple(number for number, site in enumerate(sites) if site not in gone)
        return {"made": [{"steps": kept, "source": "bfloat16 " + ", ".join(sites)}] if kept else []}

    def client(self) -> EngineClient:
        nothing: Any = None
        return EngineClient(nothing, nothing, nothing, self.ask, {"rel_l2": 2e-5})


async def test_sequences_with_fewer_split_products_have_two_one_or_none():
    first, every, gone, gate, up, engine = (
        RewriteStep(technique=technique, site=site, title=site, speedup=speedup)
        for technique, site, speedup in (
            ("fuse_loops", "i and j", 1.1),
            ("split_products", "all products", 1.3),
            ("split_products", "products to nothing", 1.2),
            ("split_products", "products to gate", 1.08),
            ("split_products", "products to up", 1.09),
            ("engine", "copy", 1.01),
        )
    )
    found = [
        SearchNode(name, steps, 50, 10, name)
        for name, steps in zip("abcd", ((first, every, engine), (gate,), (engine, up), (gone,)), strict=True)
    ]
    made = await make_finer_sequences(RoundingEngine().client(), "", found)
    assert made == [
        [up, first, gate, engine], [up, first, engine], [first, gate, engine], [first, engine]
    ]  # fmt: skip
    assert await make_finer_sequences(RoundingEngine().client(), "", found[3:]) == [[]]


def test_kernels_that_may_round_too_much_differ_in_what_they_split():
    """If the first one is refuted, those with the same splits are, too."""
    splits = {
        name: RewriteStep(technique="split_products", site=name, title=name, speedup=1.0) for name in "xyza"
    }
    reached = [
        SearchNode(f"{number}", tuple(splits[name] for name in names), 50 + 3 * number, 10, f"{number}")
        for number, names in enumerate(["xyz", "a", "zyx", "xy", "yz", "x"])
    ]
    rough = {name: 3e-5 if name < "3" else 2.2e-5 for name in "01234"}
    chosen = select_variants(reached, 6, 100.0, frozenset(), rough=rough)
    assert [one.source for one in chosen] == ["0", "5", "3", "4"]


async def test_steps_are_tried_together_without_one_of_them():
    toy = Toy({"a": 0.9, "b": 0.8, "c": 0.7})
    one, found = await search(toy)
    assert found[0].source == "abc"
    del one.found["ac"]
    kept = [item for item in found[0].steps if item.technique != "flip_b"]
    nodes = await one.try_together("", 100.0, [kept, [], kept])
    (made,) = [node for node in nodes if node.source == "ac"]
    assert made.latency_ms == pytest.approx(63.0)
    assert {item.technique for item in made.steps} == {"flip_a", "flip_c"}


def test_what_was_judged_before_and_what_is_far_slower_is_not_judged():
    reached = [search_node("ab", 50), search_node("a", 60), search_node("e", 145)]
    assert [one.source for one in select_variants(reached, 6, 100.0, frozenset({"ab"}))] == ["a"]


def test_of_two_ways_to_one_code_the_shorter_is_judged():
    long, short = search_node("ab", 50), search_node("c", 50)
    twin = SearchNode(short.source, short.steps, 50, 10, "ab")
    (chosen,) = select_variants([twin, long], 6, 100.0, frozenset())
    assert chosen is twin


# --- what paid in other runs ---


async def test_what_paid_elsewhere_is_tried_first_and_looked_further_from_last():
    toy = Toy(dict.fromkeys("abcdef", 0.9), guess=dict.fromkeys("abc", -0.5))
    _, found = await search(toy, leads=[lead("abc"), lead("d")])
    assert toy.asked[:4] == ["abc", "d", "ab", "a"], "all of each, the nearest first, then parts"
    own = toy.expanded.index("abc")
    assert own > 0
    assert not {*"abc"} & set("".join(toy.expanded[:own])), "until then as if nothing had been given"
    assert found[0].source == "abcdef"
    assert [step.site for step in found[0].steps[:3]] == ["there"] * 3
    assert prod(step.speedup for step in found[0].steps) == pytest.approx(100 / found[0].latency_ms)


async def test_what_gained_elsewhere_leaves_the_own_search_three_quarters():
    toy = Toy(dict.fromkeys("abcdefghijkl", 0.99))
    limits = SearchLimits(predictions=40, instructions=10**9, depth=12, width=3)
    await search(toy, limits, leads=[lead("abcd")])
    assert toy.asked[:4] == ["abcd", "abc", "ab", "a"]
    assert len(toy.asked) == 40
    alone = Toy(dict.fromkeys("abcdefghijkl", 0.99))
    await search(alone, limits)
    given = toy.asked[:4]
    own = [one for one in alone.asked if one not in given]
    assert toy.asked[4:20] == own[:16], "what was given is known, all else is asked as without it"


async def test_what_paid_elsewhere_does_not_hide_what_only_pays_without_it():
    class Either(Toy):
        def _free(self, source: str) -> list[str]:
            return [one for one in super()._free(source) if not {one, *source} >= {"a", "b"}]

    small = dict.fromkeys("defghijk", 0.99)
    toy = Either({"a": 0.5, "b": 0.6, "c": 0.6, **small}, needs={"c": "b", **dict.fromkeys(small, "a")})
    limits = SearchLimits(predictions=24, instructions=10**9, depth=12, width=3)
    one = LookaheadSearch(toy.expand_kernel, nothing_together, toy.predict, limits, Random(0))
    found = await one.run("", 100.0, [lead("a")])
    assert found[0].source == "bc", "a parent twice as slow as what it was given is looked at all the same"


async def test_what_does_not_pay_here_is_one_kernel_among_others():
    toy = Toy({"a": 1.5, "b": 0.9})
    _, found = await search(toy, leads=[lead("a")])
    assert found[0].source == "b"
    assert toy.expanded[0] == ""


async def test_what_is_given_counts_and_is_a_part_of_what_may_be_predicted():
    toy = Toy(dict.fromkeys("abcdefgh", 0.99))
    limits = SearchLimits(predictions=8, instructions=10**9, depth=12, width=2)
    one, _ = await search(toy, limits, leads=[lead("abcd"), lead("efgh")])
    assert toy.asked[:2] == ["abcd", "efgh"]
    assert toy.asked[2] not in ("abc", "efg"), "a quarter, and no more"
    assert one.predicted == len(toy.asked) == 8


@pytest.mark.parametrize(("predictions", "tried"), [(1, 1), (8, 2), (12, 3)])
async def test_a_quarter_of_the_predictions_is_for_what_is_given_one_at_least(predictions, tried):
    toy = Toy(dict.fromkeys("abcd", 0.9), guess=dict.fromkeys("abcd", -9.0))
    limits = SearchLimits(predictions=predictions, instructions=10**9, depth=12, width=2)
    await search(toy, limits, leads=[lead("ab"), lead("cd"), lead("ad")])
    assert toy.asked == ["ab", "cd", "ad"][:tried]


async def test_instructions_limit_what_is_given_but_for_one():
    toy = Toy(dict.fromkeys("abcd", 0.9), guess=dict.fromkeys("abcd", -9.0))
    limits = SearchLimits(predictions=100, instructions=2000, depth=12, width=2)
    await search(toy, limits, leads=[lead("ab", 600), lead("cd", 600)])
    assert toy.asked == ["ab"]
    assert toy.expanded, "the search goes on with what is left"
    other = Toy(dict.fromkeys("abcd", 0.9), guess=dict.fromkeys("abcd", -9.0))
    await search(other, limits, leads=[lead("ab", 300), lead("cd", 150), lead("ad", 300)])
    assert other.asked == ["ab", "cd"]


async def test_depth_is_for_steps_that_are_searched():
    toy = Toy(dict.fromkeys("abcdefg", 0.9), guess=dict.fromkeys("abcde", -9.0))
    limits = SearchLimits(predictions=100, instructions=10**9, depth=1, width=2)
    _, found = await search(toy, limits, leads=[lead("abcde")])
    assert {len(one.steps) - one.given for one in found} <= {0, 1}
    assert max(len(one.steps) for one in found) == 6


async def test_sequences_that_come_to_the_same_or_to_nothing_are_predicted_once():
    toy = Toy(dict.fromkeys("ab", 0.9), wrong="b")
    same = [SearchSeed(lead("a")[0].steps, "", 10)]
    one, found = await search(toy, leads=[lead("a"), [], same, lead("b"), lead("a")])
    assert toy.asked[:2] == ["a", "b"]
    assert toy.asked.count("a") == 1
    assert "" not in toy.asked
    assert (found[0].source, one.failed) == ("a", toy.asked.count("b") + toy.asked.count("ab"))


async def test_who_is_given_nothing_searches_as_before():
    plain, given = (Toy(dict.fromkeys("abcdefgh", 0.95)) for _ in range(2))
    await search(plain, seed=3)
    await search(given, seed=3, leads=[[], []])
    assert plain.asked == given.asked
