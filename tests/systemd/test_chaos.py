"""A short chaos under a real systemd: struck once in each way, the runs end as if nothing had happened."""

from __future__ import annotations

import pytest

from benchmarks import chaos
from state.model import RunConfig, SearchConfig
from tests.support.booted_systemd import boot_systemd, find_obstacle


def small(number: int) -> RunConfig:
    search = SearchConfig(
        beam=1, explorers=0, plans=2, rounds=2, within_percent=0, reuse=False, lookahead_predictions=8
    )
    return RunConfig(problem="silu", size="reduced", starts="kernel", seed=number, search=search)


@pytest.mark.slow
def test_runs_that_were_struck_in_every_way_end_as_their_undisturbed_twins(tmp_path, monkeypatch):
    # The service has another user's cache folder; what is measured of this machine's CPU is in the prompts.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if reason := find_obstacle():
        pytest.skip(reason)
    with boot_systemd() as machine:
        struck = chaos.Chaos(machine, runs=2, seed=1, pause_seconds=(0.1, 1.0), configs=small)
        struck.install()
        struck.go_on(iter(chaos.STRIKES), seconds=600)
        result = chaos.report(struck, tmp_path / "twins")
    assert chaos.sound(result), chaos.lines(result)
    assert result["strikes"] == dict.fromkeys(chaos.STRIKES, 1)
    assert result["runs"] >= 2
    assert result["effects"] > 10


def test_what_chaos_looks_for_would_be_seen():
    class Shorter:
        def read(self, *, after, limit):
            return []

    seen = chaos.Seen(["a", "b"])
    assert seen.count_lost(Shorter()) == 2
    clean = {"same_state": 1, "same_best_kernel": 1, "runs": 1, "lost_events": 0, "duplicate_effects": 0}
    assert chaos.sound({**clean, "findings": []})
    for fault in ({"same_state": 0}, {"same_best_kernel": 0}, {"lost_events": 1}, {"duplicate_effects": 1}):
        assert not chaos.sound({**clean, "findings": [], **fault})
    assert not chaos.sound({**clean, "findings": ["chain"]})
