"""The pre-filter: who is measured, who is held back, and that nothing is taken for what it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from remote.errors import InfrastructureError
from remote.fleet.prefilter import AUDIT_INTERVAL, MIN_PREDICTIONS, PrefilteredEvaluator
from remote.fleet.residual_model import MeasuredPair
from state.model import (
    INITIAL_KEY,
    PREFILTER_STAGE,
    PREFILTERED,
    Benchmark,
    ErrorInfo,
    Level,
    Verdict,
    digest_of,
)
from tests.remote.fleet.members import TOOLCHAIN, FakeMember, answer, request

INITIAL = INITIAL_KEY.candidate_id


class Looker:
    """A simulator whose predictions are told to it, by candidate."""

    name = "sim"

    def __init__(self) -> None:
        self.predicts: dict[str, float] = {}
        self.verdicts: dict[str, Verdict] = {}
        self.bounds: dict[str, str] = {}
        self.looked: list[str] = []
        self.closed = 0

    async def prepare(self) -> None:
        pass

    async def evaluate(self, asked, blobs, /):
        self.looked.append(asked.candidate)
        found = answer(asked, ms=self.predicts.get(asked.candidate, 1.0), predicted=True)
        bound = {"bottleneck": self.bounds.get(asked.candidate)}
        found = replace(found, evaluation=found.evaluation.model_copy(update=bound))
        verdict = self.verdicts.get(asked.candidate, Verdict.CORRECT)
        if verdict is not Verdict.CORRECT:
            update = {"verdict": verdict, "benchmark": None, "error": ErrorInfo(code="x", message="y")}
            found = replace(found, evaluation=found.evaluation.model_copy(update=update))
        return found

    async def aclose(self) -> None:
        self.closed += 1


class Hosts(FakeMember):
    name = "ssh"
    slots = 3

    def toolchain(self) -> str:
        return TOOLCHAIN

    async def prepare(self) -> None:
        self.prepared += 1


def is_drawn(number: int) -> bool:
    return int(digest_of(f"k{number}".encode())[:8], 16) % AUDIT_INTERVAL == 0


@pytest.fixture
def looker() -> Looker:
    return Looker()


@pytest.fixture
def hosts() -> Hosts:
    return Hosts("a")


@pytest.fixture
def both(looker, hosts) -> PrefilteredEvaluator:
    return PrefilteredEvaluator(looker, hosts)


def slice_operand(name: str):
    return request(name, level=Level.SLICES)


NAMES = [f"k{number}" for number in range(40) if not is_drawn(number)]


async def let_in(both, looker) -> None:
    """Fill the window with kernels predicted at 1 ms."""
    for name in NAMES[: MIN_PREDICTIONS + 1]:
        looker.predicts[name] = 1.0
        await both.evaluate(slice_operand(name), None)


async def test_the_slower_half_is_held_back_and_says_why(both, looker, hosts):
    await let_in(both, looker)
    slow, fast = NAMES[10], NAMES[11]
    looker.predicts |= {slow: 2.0, fast: 0.5}
    held = await both.evaluate(slice_operand(slow), None)
    found = held.evaluation
    assert (found.verdict, found.benchmark, found.stage) == (Verdict.CORRECT, None, "prefilter")
    assert found.error is not None
    assert found.error.code == PREFILTERED
    assert found.error.message == (
        "not run on a host: 2 ms predicted, half of the last kernels have 1 ms or less"
    )
    assert held.predicted_ms == 2.0
    assert held.artefacts == {}
    through = await both.evaluate(slice_operand(fast), None)
    assert through.evaluation.benchmark == Benchmark(
        latency_ms=1.0, lo_ms=1.0, hi_ms=1.0, predicted=False, samples=10
    )
    assert through.predicted_ms == 0.5
    assert set(through.stage_ms) == {"execute", f"{PREFILTER_STAGE}execute"}
    assert slow not in hosts.judged
    assert fast in hosts.judged


async def test_the_first_few_are_all_measured(both, looker, hosts):
    for number, name in enumerate(NAMES[:MIN_PREDICTIONS]):
        looker.predicts[name] = float(number + 1)
        await both.evaluate(slice_operand(name), None)
    assert hosts.judged == NAMES[:MIN_PREDICTIONS]


async def test_one_in_some_that_would_be_held_back_is_measured(both, looker, hosts):
    await let_in(both, looker)
    drawn_ones = [f"k{number}" for number in range(60) if is_drawn(number)][:3]
    looker.predicts |= dict.fromkeys(drawn_ones, 9.0)
    for name in drawn_ones:
        await both.evaluate(slice_operand(name), None)
    assert hosts.judged[-3:] == drawn_ones


async def test_what_the_simulator_finds_wrong_is_not_sent_and_what_it_cannot_run_is(both, looker, hosts):
    looker.verdicts = {"wrong": Verdict.INCORRECT, "odd": Verdict.COMPILE_ERROR}
    wrong = (await both.evaluate(slice_operand("wrong"), None)).evaluation
    assert (wrong.verdict, wrong.toolchain) == (Verdict.INCORRECT, TOOLCHAIN)
    assert hosts.judged == []
    odd = await both.evaluate(slice_operand("odd"), None)
    assert odd.evaluation.is_correct
    assert odd.predicted_ms is None
    assert hosts.judged == ["odd"]


async def test_what_a_run_depends_on_is_never_looked_at_first(both, looker, hosts):
    await both.evaluate(request(INITIAL, level=Level.SLICES), None)
    await both.evaluate(request("k1", level=Level.WHOLE), None)
    assert looker.looked == []
    assert hosts.judged == [INITIAL, "k1"]


async def test_a_kernel_that_comes_again_is_counted_once(both, looker):
    await let_in(both, looker)
    slow = NAMES[10]
    looker.predicts[slow] = 2.0
    for _ in range(20):
        assert (await both.evaluate(slice_operand(slow), None)).evaluation.benchmark is None


async def test_failures_of_hosts_are_failures_of_both(both, hosts):
    hosts.job_failures = [InfrastructureError("no_host", "no host is left")]
    with pytest.raises(InfrastructureError, match="no host is left"):
        await both.evaluate(slice_operand("k1"), None)


async def test_it_is_another_kind_for_the_cache_and_closes_both(both, looker, hosts):
    assert (both.name, both.slots, both.toolchain()) == ("ssh after sim", 3, TOOLCHAIN)
    await both.prepare()
    await both.aclose()
    assert (hosts.prepared, hosts.closed, looker.closed) == (1, 1, 1)


async def test_measurements_that_contradict_predictions_change_who_is_held_back(looker, hosts):
    """Kernels of one kind are measured three times as slow as predicted, in runs before this one."""
    pairs = [MeasuredPair("trn2 memory", 1.0, 1.0), MeasuredPair("trn2 vector", 1.0, 3.0)] * 20
    both = PrefilteredEvaluator(looker, hosts, measured=pairs)
    looker.bounds = dict.fromkeys(NAMES, "memory")
    await let_in(both, looker)
    looker.predicts |= {NAMES[10]: 0.9, NAMES[11]: 0.9}
    looker.bounds[NAMES[10]] = "vector"
    held, through = [await both.evaluate(slice_operand(name), None) for name in NAMES[10:12]]
    assert held.evaluation.error is not None
    assert (held.evaluation.error.code, held.predicted_ms, held.predicted_bound) == (
        PREFILTERED,
        0.9,
        "vector",
    )
    assert (through.predicted_bound, NAMES[11] in hosts.judged) == ("memory", True)
