"""Which rewrites a winner loses, on toy kernels whose latency is a product of factors; then on a real one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import pytest

import seeds
from agent_core.effects import SimplifyRequest
from agent_core.roles import KernelAnswer, RoleError
from state.model import ErrorInfo, PredictedLatency, RewriteStep, SequenceLeg
from targets.nki.rewrites.winner_simplification import simplify_winner
from targets.nki.rewrites.worker import perform_job
from tests.support.blobs import Blobs
from tests.support.path_kernels import make_candidate

SPEC = seeds.load_problem("silu").spec


class Toy:
    """A kernel is the letters of its rewrites; each has a factor, and `needs` another letter before it.

    `undo` are letters that remove another one: its rewrite brings the kernel back.
    """

    def __init__(
        self,
        factors: Mapping[str, float],
        *,
        needs: Mapping[str, str] | None = None,
        undo: Mapping[str, str] | None = None,
        at_full_size: Mapping[str, float] | None = None,
    ) -> None:
        self.factors = factors
        self.needs = needs or {}
        self.undo = undo or {}
        self.at_full_size = at_full_size
        self.predicted: list[str] = []

    @staticmethod
    def source(letters: str) -> str:
        return f"kernel = '{letters}'\nprint(kernel)\n"

    def ms(self, source: str, *, full: bool = True) -> float:
        letters = source.split("'")[1]
        factors = self.at_full_size if full and self.at_full_size is not None else self.factors
        return 100.0 * prod(factors.get(letter, 1.0) for letter in letters)

    async def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        if job["job"] == "simplify":
            return perform_job(job)
        if job["job"] == "proxy":
            return {
                "dims": None if self.at_full_size is None else {"m": 1},
                "shortened": [],
                "instructions": 0,
            }
        assert job["job"] == "combine"
        letters, done, made = job["source"].split("'")[1], [], []
        for number, step in enumerate(job["steps"]):
            letter = step["technique"]
            if self.needs.get(letter, "") in letters:
                letters = letters.replace(self.undo[letter], "") if letter in self.undo else letters + letter
                done.append(number)
                made.append({"steps": list(done), "source": self.source(letters)})
        return {"made": made}

    async def predict(
        self, sources: Sequence[str], dims: Mapping[str, int] | None = None, *, canonical: bool = False
    ) -> list[PredictedLatency]:
        self.predicted += sources
        found = [self.ms(source, full=dims is None) for source in sources]
        return [PredictedLatency(latency_ms=one, instructions=10) for one in found]

    async def simplify(self, sequence: str, **limits: Any) -> KernelAnswer:
        blobs = Blobs()
        job = {"job": "combine", "source": self.source(""), "steps": steps_of(self, sequence)}
        whole = await self.ask(job)
        winner = whole["made"][-1]["source"]
        best = make_candidate("winner", self.ms(winner))
        best = best.model_copy(update={"source": blobs.put(winner.encode())})
        request = SimplifyRequest.model_construct(
            key="r2.b2000.p0.k0.f0.executor", problem=None, size="reduced", target="trn2", toolchain="toy",
            best=best, within_percent=0.5,
            **{"predictions": 96, "instructions": 10**9, **limits},
        )  # fmt: skip
        steps = tuple(RewriteStep.model_validate(step) for step in steps_of(self, sequence))
        leg = SequenceLeg(source=blobs.put(self.source("").encode()), steps=steps, speedup=2.0)
        return await simplify_winner(
            request, leg, blobs.get_blob, predict=self.predict, spec=SPEC, ask=self.ask
        )


def steps_of(toy: Toy, sequence: str) -> list[dict[str, Any]]:
    gains = {letter: 1 / toy.factors.get(letter, 1.0) for letter in sequence}
    steps = (RewriteStep(technique=one, site="here", title=one, speedup=gains[one]) for one in sequence)
    return [step.model_dump() for step in steps]


def letters_of(answer: KernelAnswer) -> str:
    return answer.source.split("'")[1]


async def test_rewrites_that_bring_nothing_are_dropped():
    answer = await Toy({"a": 0.5, "b": 1.0, "c": 0.8, "d": 0.999}).simplify("abcd")
    assert letters_of(answer) == "ac"
    assert answer.note == "simplified: 2 of 4 rewrites dropped (b, d), 2 lines to 2"


async def test_what_a_dropped_rewrite_prepared_goes_with_it():
    answer = await Toy({"a": 0.5, "b": 1.0, "c": 1.001}, needs={"c": "b"}).simplify("abc")
    assert letters_of(answer) == "a"


async def test_two_that_pay_only_together_stay():
    with pytest.raises(RoleError, match="nothing_simpler: each rewrite brings something"):
        await Toy({"a": 0.5, "b": 1.1, "c": 0.5}, needs={"c": "b"}).simplify("abc")


async def test_a_pair_that_cancels_is_dropped_together():
    """Without either one alone the kernel is slower, or needs what is not there."""
    toy = Toy({"a": 0.5, "b": 1.25, "c": 0.8})
    toy.ms = lambda source, full=True: 50.0 if ("b" in source) == ("c" in source) else 80.0  # type: ignore[method-assign]
    assert letters_of(await toy.simplify("abc")) in {"a", ""}


async def test_a_rewrite_that_undoes_another_is_dropped_with_it_and_nothing_is_predicted_for_that():
    toy = Toy({"a": 0.5, "x": 0.9}, undo={"y": "x"})
    with pytest.raises(RoleError, match="nothing_simpler"):  # the text is the winner's own
        await toy.simplify("axy")
    assert not [one for one in toy.predicted if "x" in one]


async def test_small_losses_do_not_add_up_beyond_the_limit():
    answer = await Toy({"a": 0.5, **dict.fromkeys("bcdef", 0.998)}).simplify("abcdef")
    assert letters_of(answer).count("a") == 1
    assert 0.998 ** -(6 - len(letters_of(answer))) <= 1.005
    assert len(letters_of(answer)) == 4


async def test_what_holds_only_at_a_smaller_size_is_not_dropped():
    small, full = {"a": 0.5, "b": 1.0, "c": 1.0}, {"a": 0.5, "b": 0.7, "c": 1.0}
    answer = await Toy(small, at_full_size=full).simplify("abc")
    assert letters_of(answer) == "ab"


async def test_predictions_are_limited_by_count():
    toy = Toy({"a": 0.5, **dict.fromkeys("bcdefgh", 1.0)})
    await toy.simplify("abcdefgh", predictions=3)
    assert len(toy.predicted) <= 3 + 1 + 2  # the scale's own, and the check of the text


async def test_a_winner_that_no_rewrites_made_loses_text_alone():
    blobs, toy = Blobs(), Toy({})
    winner = "SPARE = 3\n" + Toy.source("a")
    best = make_candidate("winner", 100.0).model_copy(update={"source": blobs.put(winner.encode())})
    request = SimplifyRequest.model_construct(
        size="reduced", target="trn2", best=best, within_percent=0.5, predictions=9, instructions=10**9
    )
    answer = await simplify_winner(request, None, blobs.get_blob, predict=toy.predict, spec=SPEC, ask=toy.ask)
    assert answer.source == Toy.source("a")
    assert answer.note == "simplified: unused names removed, 3 lines to 2"


async def test_a_pass_that_makes_the_kernel_wrong_is_left_out_and_the_others_are_not():
    blobs, toy = Blobs(), Toy({})
    winner = "import nki\nsize = 2 * 4\nprint(size)\n"

    async def predict(sources: Sequence[str], dims: object = None, *, canonical: bool = False):
        wrong = PredictedLatency(error=ErrorInfo(code="name", message="nki is gone"))
        return [PredictedLatency(latency_ms=1.0) if "import nki" in one else wrong for one in sources]

    best = make_candidate("winner", 1.0).model_copy(update={"source": blobs.put(winner.encode())})
    request = SimplifyRequest.model_construct(
        size="reduced", target="trn2", best=best, within_percent=0.5, predictions=9, instructions=10**9
    )
    answer = await simplify_winner(request, None, blobs.get_blob, predict=predict, spec=SPEC, ask=toy.ask)
    assert answer.source == "import nki\nsize = 8\nprint(size)\n"


async def test_a_sequence_that_leads_elsewhere_today_loses_text_alone():
    toy = Toy({"a": 0.5, "b": 1.0})
    ask = toy.ask

    async def changed(job: dict[str, Any]) -> dict[str, Any]:
        made = await ask(job)
        if job["job"] == "combine":
            made = {"made": [{**one, "source": one["source"].replace("b", "z")} for one in made["made"]]}
        return made

    blobs = Blobs()
    best = make_candidate("winner", 50.0).model_copy(update={"source": blobs.put(Toy.source("ab").encode())})
    request = SimplifyRequest.model_construct(
        size="reduced", target="trn2", best=best, within_percent=0.5, predictions=9, instructions=10**9
    )
    steps = tuple(RewriteStep.model_validate(step) for step in steps_of(toy, "ab"))
    leg = SequenceLeg(source=blobs.put(Toy.source("").encode()), steps=steps, speedup=2.0)
    with pytest.raises(RoleError, match="do not lead to it any more"):
        await simplify_winner(request, leg, blobs.get_blob, predict=toy.predict, spec=SPEC, ask=changed)
