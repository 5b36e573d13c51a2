"""What ends a run between rounds, and which reason is named when several hold."""

from __future__ import annotations

import pytest

from agent_core.stop import find_ending
from state.fold import RunState
from state.model import Checkpoint, LatencyBounds, Resource, RunConfig, RunEnding, SearchConfig, StopReason
from tests.support.path_kernels import make_candidate
from tests.support.world import World

INITIAL = make_candidate("r0.b0.p0.k0.f0", 10.0)


def state(
    *, best_ms: float = 8.0, best_round: int = 1, round_: int = 1, spent: float = 0.0, noise: float = 0.0
) -> RunState:
    """Return a run between rounds: initial 10 ms, model bound 2 ms."""
    best = make_candidate(f"r{best_round}.b0.p0.k0.f0", best_ms, lineage="L", noise=noise or None)
    changes = {
        "initial": INITIAL,
        "best": best,
        "round": round_,
        "bounds": LatencyBounds(plain_ms=1.0, tight_ms=2.0),
        "checkpoints": {"L": Checkpoint(lineage="L", candidate=best)},
        "spent_usd": spent,
    }
    return World().state.model_copy(update=changes)


def config(cap_usd: float = 0.0, **search: float) -> RunConfig:
    return RunConfig(cap_usd=cap_usd, search=SearchConfig(**{"rounds": 9, "plateau_rounds": 3} | search))


@pytest.mark.parametrize(
    ("run", "settings", "reason"),
    [
        (state(), config(), None),
        (state(round_=9, best_round=9), config(), StopReason.ROUNDS),
        (state(round_=8, best_round=8), config(), None),
        (state(best_ms=5.0), config(target_speedup=2.0), StopReason.TARGET),
        (state(best_ms=5.01), config(target_speedup=2.0), None),
        (state(best_ms=5.0), config(target_ms=5.0), StopReason.TARGET),
        (state(best_ms=5.01), config(target_ms=5.0), None),
        (state(best_ms=5.0), config(target_ms=4.0, target_speedup=2.0), StopReason.TARGET),
        (state(best_ms=2.0099), config(), StopReason.NEAR_BOUND),
        (state(best_ms=2.0101), config(), None),
        (state(best_ms=2.4), config(within_percent=20), StopReason.NEAR_BOUND),
        (state(best_ms=1.5), config(within_percent=0), StopReason.NEAR_BOUND),
        (state(round_=4, best_round=1), config(), StopReason.PLATEAU),
        (state(round_=3, best_round=1), config(), None),
        (state(round_=3, best_round=0), config(), StopReason.PLATEAU),
        (state(spent=0.5), config(cap_usd=0.5), StopReason.BUDGET),
        (state(spent=0.4), config(cap_usd=0.5), None),
        (state(spent=0.1), config(cap_usd=0.0), StopReason.BUDGET),
    ],
)
def test_rules(run, settings, reason):
    ended = find_ending(run, settings)
    assert (ended and ended.reason) == reason
    if ended:
        assert ended.detail


def test_a_success_is_named_before_what_merely_ran_out():
    run = state(best_ms=2.0, round_=9, best_round=0, spent=1.0)
    assert _reason(run, config(target_speedup=4.0)) is StopReason.TARGET
    assert _reason(run, config()) is StopReason.NEAR_BOUND
    run = state(best_ms=8.0, round_=9, best_round=0, spent=1.0)
    assert _reason(run, config()) is StopReason.BUDGET
    assert _reason(state(round_=9, best_round=0), config()) is StopReason.ROUNDS


def _reason(run: RunState, settings: RunConfig) -> StopReason | None:
    ended = find_ending(run, settings)
    return ended.reason if ended else None


def test_a_round_without_proposals_for_want_of_a_budget_says_so_and_goes_on_when_the_cap_is_raised():
    idle = RunEnding(reason=StopReason.NO_PROPOSALS, detail="nothing was judged")
    run = state().model_copy(update={"idle": idle, "short": {Resource.USD: 0.5}})
    assert _reason(run, config(cap_usd=0.5)) is StopReason.BUDGET
    assert _reason(run, config(cap_usd=2.0)) is None
    assert _reason(run.model_copy(update={"short": {}}), config()) is StopReason.NO_PROPOSALS


def test_a_faster_kernel_within_noise_does_not_end_a_plateau():
    """The checkpoint stays where the last gain beyond noise was, however often the best moves a little."""
    run = state(round_=4, best_round=1)
    drifted = run.model_copy(update={"best": make_candidate("r4.b0.p0.k0.f0", 7.99, lineage="L")})
    assert _reason(drifted, config()) is StopReason.PLATEAU


def test_a_whole_run_stops_when_its_beam_no_longer_gains():
    world = World(
        config(rounds=20, plateau_rounds=2, beam=2, plans=2).model_copy(update={"planner": ("scripted",)})
    )
    world.finish()
    assert world.state.stop is StopReason.PLATEAU
    assert world.state.best is not None
    assert world.state.round == world.state.best.round + 2


def test_an_initial_kernel_near_the_bound_needs_no_round():
    world = World(bounds=LatencyBounds(plain_ms=1.0, tight_ms=4.2)).finish()
    assert (world.state.stop, world.state.round) == (StopReason.NEAR_BOUND, 0)
