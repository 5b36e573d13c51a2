"""What a look-ahead does when its time is up, with what saves work, and with what rounds too much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from string import ascii_letters

import pytest

from agent_core.roles import PredictionsEndedError
from state.model import PredictedLatency, RewriteStep
from targets.nki.rewrites.lookahead import BATCH_SIZE, LookaheadSearch
from targets.nki.rewrites.search_nodes import SearchNode
from tests.targets.nki.rewrites.test_lookahead import AMPLE, Toy, search, step


class Hasty(Toy):
    """Answers the first question, and the last one, after it was told that the time is up."""

    told = 0
    tells = 1

    async def predict(
        self, sources: Sequence[str], dims: Mapping[str, int] | None = None
    ) -> list[PredictedLatency]:
        if self.asked and self.told < self.tells:
            self.told += 1
            raise PredictionsEndedError
        return await super().predict(sources, dims)


@pytest.mark.parametrize(
    ("tells", "combined", "completed"),
    [(1, True, True), (2, True, True), (3, False, True), (5, False, False)],
)
async def test_a_search_whose_time_is_over_returns_what_it_has_found(tells, combined, completed):
    hasty = Hasty({"a": 0.9, "b": 0.8, "c": 0.7})
    hasty.tells = tells
    one, found = await search(hasty)
    assert [node.source for node in found] == [*["abc"] * combined, "c", "b", "a"], "with all gains together"
    assert one.reasons[-1] == "the share of the run's time for predictions was used up"
    both = [*found[-3].steps, *found[-2].steps]
    nodes = await one.try_together("", 100.0, [both])
    assert ("bc" in {node.source for node in nodes}) is completed
    assert len(nodes) == 3 + combined + completed


class Cut(Toy):
    """Answers one batch; then the time is up, but for single kernels."""

    async def predict(
        self, sources: Sequence[str], dims: Mapping[str, int] | None = None
    ) -> list[PredictedLatency]:
        if self.asked and len(sources) > 1:
            raise PredictionsEndedError
        return await super().predict(sources, dims)


async def test_of_a_question_that_was_cut_off_the_answers_so_far_count():
    cut = Cut(dict.fromkeys(ascii_letters, 0.99))
    _, found = await search(cut)
    assert len(cut.asked) == len(found) == BATCH_SIZE + 1
    together = cut.asked[BATCH_SIZE]
    assert found[0].source == together, "the gains together, as many as there may be steps"
    assert len(together) == AMPLE.depth
    assert set(together) <= set(cut.asked[:BATCH_SIZE])


# --- what rounds too much ---


def rough_search(toy: Toy, rough: str, finer: Sequence[str] = ()) -> LookaheadSearch:
    """A search in which kernels with this letter round too much, and these are the finer ones."""

    async def find_rough(nodes: Sequence[SearchNode]) -> list[str]:
        return [node.source for node in nodes if rough in node.source]

    async def make_finer(source: str, nodes: Sequence[SearchNode]) -> list[list[RewriteStep]]:
        assert rough in nodes[0].source
        return [list(map(step, letters)) for letters in finer]

    return LookaheadSearch(
        toy.expand_kernel,
        toy.combine_steps,
        toy.predict,
        AMPLE,
        Random(0),
        find_rough=find_rough,
        make_finer=make_finer,
    )


async def test_kernels_that_may_round_too_much_are_found_and_left():
    toy = Toy({"r": 0.5, "a": 0.9, "b": 0.8}, needs={"b": "a"})
    found = await rough_search(toy, "r").run("", 100.0)
    assert found[0].source in {"r", "abr", "ar"}, "it is found, to be judged"
    assert not [source for source in toy.expanded if "r" in source]
    assert not set(toy.asked[toy.asked.index("ab") + 1 :]) & {"br", "abr"}, "nothing more is predicted of it"
    assert "ab" in {node.source for node in found}


async def test_a_search_from_a_kernel_that_rounds_too_much_goes_on_with_such():
    toy = Toy({"a": 0.9, "b": 0.8}, needs={"b": "a"})
    found = await rough_search(toy, "r").run("r", 100.0)
    assert found[0].source == "abr"


async def test_a_search_goes_on_from_what_rounds_less():
    toy = Toy({"r": 0.5, "s": 1.2, "t": 0.6}, needs={"s": "r", "t": "s"}, guess={"t": 0.5})
    found = await rough_search(toy, "r", ["s"]).run("", 100.0)
    assert "s" in toy.expanded
    assert {"s", "st"} <= {node.source for node in found}
