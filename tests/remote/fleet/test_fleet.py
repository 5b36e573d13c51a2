"""The fleet: who gets a job, what becomes of jobs whose host fails, and what is said when none is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from remote.errors import InfrastructureError, NoHostError, NoHostsError, NotReadyError
from remote.evaluator import PredictionRequest
from remote.ssh.errors import HostAuthError
from tests.remote.fleet.members import (
    QUICK,
    TOOLCHAIN,
    FakeMember,
    about,
    fleet,
    host_lost_error,
    request,
    stands,
    unreachable,
    until,
)


@asynccontextmanager
async def prepare_fleet(*members: FakeMember, **options: object) -> AsyncIterator:
    made = fleet(*members, **options)
    try:
        await made.prepare()
        yield made
    finally:
        await made.aclose()


async def evaluate(one, *names: str):
    return await asyncio.gather(*(one.evaluate(request(name), None) for name in names))


def test_a_fleet_without_hosts_is_refused():
    with pytest.raises(NoHostsError, match=r"set run\.hosts, or give --host"):
        fleet()


async def test_jobs_go_to_free_slots_and_no_host_has_more_than_it_takes():
    small, large = FakeMember("a"), FakeMember("b", about(slots=3))
    for one in (small, large):
        one.gate.clear()
    async with prepare_fleet(small, large) as made:
        assert made.slots == 4
        jobs = asyncio.ensure_future(evaluate(made, *(f"r1s0p{number}i0" for number in range(9))))
        await until(lambda: small.under_way == 1 and large.under_way == 3)
        assert {one.waiting for one in made.standings()} == {5}
        for one in (small, large):
            one.gate.set()
        answers = await jobs
    assert [one.evaluation.code for one in answers] == [
        request(f"r1s0p{number}i0").source for number in range(9)
    ]
    assert sorted(small.judged + large.judged) == [f"r1s0p{number}i0" for number in range(9)]
    assert (small.most, large.most) == (1, 3)


async def test_the_toolchain_is_unknown_until_a_host_was_asked():
    made = fleet(FakeMember("a"))
    with pytest.raises(NotReadyError):
        made.toolchain()
    await made.prepare()
    assert made.toolchain() == TOOLCHAIN
    await made.aclose()


async def test_a_job_whose_host_fails_is_done_by_another_which_it_then_prefers():
    bad, good = FakeMember("a", job_failures=[host_lost_error()]), FakeMember("b")
    async with prepare_fleet(
        bad, good, policy=replace(QUICK, first_rest_s=3600, longest_rest_s=3600)
    ) as made:
        (found,) = await evaluate(made, "r1s0p0i0")
        assert found.evaluation.is_correct
        assert (bad.judged, good.judged) == ([], ["r1s0p0i0"])
        standing = stands(made, "a")
        assert (standing.state, standing.why, standing.lost) == ("resting", "the connection broke", 1)
        assert standing.until is not None
        await evaluate(made, "r1s0p1i0", "r1s0p2i0")
        assert good.judged == ["r1s0p0i0", "r1s0p1i0", "r1s0p2i0"]


async def test_a_host_that_rested_comes_back_and_is_used_again():
    one = FakeMember("a", failures=[], job_failures=[host_lost_error()])
    async with prepare_fleet(one) as made:
        await evaluate(made, "r1s0p0i0")
        assert one.judged == ["r1s0p0i0"]
        assert one.prepared == 2
        assert stands(made, "a").state == "up"


async def test_when_no_host_is_left_the_error_names_each_with_its_reason():
    gone, refusing = (
        FakeMember("a"),
        FakeMember("ubuntu@b", failures=[HostAuthError("ubuntu@b: it refuses our keys")]),
    )
    async with prepare_fleet(gone, refusing) as made:
        gone.job_failures, gone.failures = [host_lost_error()], [unreachable()]
        with pytest.raises(NoHostError) as caught:
            await evaluate(made, "r1s0p0i0")
        assert caught.value.code == "no_host"
        told = "no host is left for trn2: a: connection refused; ubuntu@b: it refuses our keys"
        assert str(caught.value) == told
        gone.failures.clear()
        await until(lambda: stands(made, "a").state == "up")
        await evaluate(made, "r1s0p0i0")
    assert gone.judged == ["r1s0p0i0"]


async def test_preparing_ends_as_soon_as_all_hosts_have_refused_and_can_be_tried_anew():
    patient = replace(QUICK, patience_s=3600, first_rest_s=3600, longest_rest_s=3600)
    one = FakeMember("a", failures=[unreachable()])
    made = fleet(one, policy=patient)
    async with asyncio.timeout(60):
        with pytest.raises(NoHostError, match="no host can be used: a: connection refused"):
            await made.prepare()
    assert one.closed == 1
    one.failures.clear()
    async with asyncio.timeout(60):
        await made.prepare()
    assert made.toolchain() == TOOLCHAIN
    await made.aclose()


async def test_one_host_that_answers_is_enough_and_a_silent_one_joins_later():
    silent, quick = FakeMember("a", failures=[unreachable()]), FakeMember("b")
    async with prepare_fleet(silent, quick) as made:
        await evaluate(made, "r1s0p0i0")
        silent.failures.clear()
        await until(lambda: stands(made, "a").state == "up")


async def test_a_host_that_never_answers_is_given_up_for_now():
    class Hanging(FakeMember):
        async def prepare(self):
            await asyncio.Event().wait()

    hanging = Hanging("a", took_s={"starting the worker there": 1.0, "logging in": 44.0})
    async with prepare_fleet(hanging, FakeMember("b"), policy=replace(QUICK, connect_s=0.05)) as made:
        await until(lambda: stands(made, "a").state == "resting")
        slow = stands(made, "a")
        assert slow.why == "it was not ready within 0.05 s: logging in 44 s, starting the worker there 1 s"
        assert "`time ssh a true` says how long a login takes" in str(slow.remedy)


async def test_hosts_with_another_toolchain_or_without_a_tag_are_set_aside_and_say_so():
    tags = frozenset({"lab"})
    other = FakeMember("a", about(toolchain="neuronx-cc 2.19", tags=tags))
    bare = FakeMember("b")
    pair = [FakeMember(name, about(tags=tags)) for name in ("c", "d")]
    async with prepare_fleet(other, bare, *pair, needs=tags) as made:
        await until(lambda: all(one.state != "connecting" for one in made.standings()))
        assert [one.state for one in made.standings()] == ["set_aside", "set_aside", "up", "up"]
        assert "its times do not compare: it has neuronx-cc 2.19" in str(stands(made, "a").why)
        assert stands(made, "b").why == "it has no tag lab"
        await evaluate(made, *(f"r1s0p{number}i0" for number in range(4)))
        assert made.slots == 2
    assert other.judged == bare.judged == []


async def test_a_target_that_no_host_has_is_told_at_once():
    patient = replace(QUICK, patience_s=3600)
    async with prepare_fleet(FakeMember("a"), policy=patient) as made, asyncio.timeout(60):
        with pytest.raises(NoHostError, match="no host is left for trn1: a: it runs kernels for trn2"):
            await made.evaluate(request(target="trn1"), None)


async def test_a_simulator_on_a_host_takes_kernels_for_any_target():
    async with prepare_fleet(FakeMember("a", about(device="nki_sim", targets=None))) as made:
        assert (await made.evaluate(request(target="trn1"), None)).evaluation.is_correct


async def test_a_job_that_ends_every_host_is_given_up():
    members = [FakeMember(name, job_failures=[host_lost_error()] * 9) for name in "abcde"]
    async with prepare_fleet(*members) as made:
        with pytest.raises(InfrastructureError, match="the connection broke"):
            await evaluate(made, "r1s0p0i0")
        assert sum(one.lost for one in made.standings()) == QUICK.most_hosts


async def test_what_is_no_fault_of_the_host_is_the_evaluations_own():
    bad = InfrastructureError("bad_blob", "a blob is missing", retryable=False)
    one = FakeMember("a", job_failures=[bad])
    async with prepare_fleet(one) as made:
        with pytest.raises(InfrastructureError, match="a blob is missing"):
            await evaluate(made, "r1s0p0i0")
        assert stands(made, "a").state == "up"


async def test_cancelling_ends_the_job_on_its_host_and_frees_the_slot():
    one = FakeMember("a")
    one.gate.clear()
    async with prepare_fleet(one) as made:
        first = asyncio.ensure_future(made.evaluate(request("r1s0p0i0"), None))
        second = asyncio.ensure_future(made.evaluate(request("r1s0p1i0"), None))
        await until(lambda: one.under_way == 1)
        second.cancel()
        first.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert (one.cancelled, one.under_way) == (1, 0)
        one.gate.set()
        await evaluate(made, "r1s0p2i0")


async def test_predictions_are_made_at_home():
    made = fleet(FakeMember("a", failures=[unreachable()]))
    asked = PredictionRequest("builtin", ("x", "y"), request().problem, "full", "trn2", TOOLCHAIN)
    found = await made.predict(asked, None)
    assert [one.latency_ms for one in found] == [2.0, 2.0]
    await made.aclose()


async def test_closing_does_not_wait_for_a_host_that_hangs():
    class Stuck(FakeMember):
        async def aclose(self):
            await asyncio.Event().wait()

    made = fleet(Stuck("a"), FakeMember("b"), policy=replace(QUICK, close_s=0.01))
    await made.prepare()
    async with asyncio.timeout(60):
        await made.aclose()


async def test_how_hosts_stand_is_published_when_it_changes():
    told = []
    async with prepare_fleet(FakeMember("a"), publish=told.append) as made:
        await until(lambda: bool(told))
        await evaluate(made, "r1s0p0i0")
    (last,) = told[-1]
    assert (last.state, last.done, last.slots, last.device) == ("closed", 1, 1, "trn2")
    assert last.heard is not None


async def test_a_full_disk_does_not_end_a_fleet():
    def full(_):
        raise OSError(28, "No space left on device")

    async with prepare_fleet(FakeMember("a"), publish=full) as made:
        await evaluate(made, "r1s0p0i0")


# --- comparing hosts -------------------------------------------------------------------------------


async def test_a_host_that_drifts_is_quarantined_after_a_second_reading_and_released_when_it_is_back():
    often = replace(QUICK, calibrate_s=0.02, quarantine_s=0.02)
    steady = [FakeMember(name) for name in ("a", "b")]
    hot = FakeMember("c", readings=[1.0, 1.5])
    async with prepare_fleet(*steady, hot, policy=often) as made:
        await until(lambda: stands(made, "c").state == "quarantined")
        standing = stands(made, "c")
        assert standing.ratio == pytest.approx(1.5)
        assert standing.why == "it takes 1.50 times as long as the others"
        await evaluate(made, *(f"r1s0p{number}i0" for number in range(4)))
        assert hot.judged == []
        hot.readings[:] = [1.01]
        await until(lambda: stands(made, "c").state == "up")


async def test_a_host_with_which_we_fail_ourselves_is_still_looked_after():
    class Odd(FakeMember):
        async def calibrate(self) -> float:
            found = await super().calibrate()
            if found < 0:
                raise OverflowError("int too large to convert to float")
            return found

    one = Odd("b", readings=[1.0, -1.0, 1.0])
    async with prepare_fleet(FakeMember("a"), one, policy=replace(QUICK, calibrate_s=0.02)) as made:
        await until(lambda: one.prepared > 1 and stands(made, "b").state == "up")


async def test_one_reading_that_is_off_is_no_drift():
    often = replace(QUICK, calibrate_s=0.02)
    one = FakeMember("c", readings=[1.0, 1.5, 1.0])
    async with prepare_fleet(FakeMember("a"), FakeMember("b"), one, policy=often) as made:
        await until(lambda: len(one.readings) == 1)
        await until(lambda: stands(made, "c").ratio == 1.0)
        assert stands(made, "c").state == "up"


async def test_the_last_host_is_never_quarantined():
    often = replace(QUICK, calibrate_s=0.02)
    one = FakeMember("a", readings=[1.0, 2.0])
    async with prepare_fleet(one, policy=often) as made:
        await until(lambda: stands(made, "a").ratio == 2.0)
        await evaluate(made, "r1s0p0i0")
        assert stands(made, "a").state == "up"


async def test_a_time_from_a_host_that_was_quarantined_meanwhile_is_not_used():
    often = replace(QUICK, calibrate_s=0.02, quarantine_s=3600)
    hot = FakeMember("a", readings=[1.0])
    others = [FakeMember(name) for name in ("b", "c")]
    hot.gate.clear()
    async with prepare_fleet(hot, *others, policy=often) as made:
        job = asyncio.ensure_future(made.evaluate(request(), None))
        await until(lambda: hot.under_way == 1)
        hot.readings[:] = [2.0]
        await until(lambda: stands(made, "a").state == "quarantined")
        hot.gate.set()
        await job
    assert hot.judged == ["r1s0p0i0"]
    assert [one.judged for one in others].count(["r1s0p0i0"]) == 1


async def test_of_two_hosts_that_disagree_none_is_quarantined_and_both_are_marked_until_they_agree():
    """A host that says from the start that all takes twice as long would else have the honest one's place."""
    often = replace(QUICK, calibrate_s=0.02, quarantine_s=0.02)
    honest, lying = FakeMember("a", readings=[1.0, 1.06]), FakeMember("b", readings=[2.0])
    async with prepare_fleet(honest, lying, policy=often) as made:
        await until(lambda: not any(one.compares for one in made.standings()))
        assert {one.state for one in made.standings()} == {"up"}
        assert "b 2 ms, 1.00 times its first reading" in str(stands(made, "a").why)
        assert stands(made, "a").ratio is None
        answers = await evaluate(made, *(f"r1s0p{number}i0" for number in range(4)))
        assert honest.judged
        assert not any(one.where.compares for one in answers)
        lying.readings[:] = [1.06]
        await until(lambda: all(one.compares and one.why is None for one in made.standings()))
        (answer,) = await evaluate(made, "r1s0p5i0")
        assert answer.where.compares


# --- jails -----------------------------------------------------------------------------------------

MODEL = {"author": "anthropic"}


async def test_kernels_of_models_wait_for_a_host_with_a_strong_jail_while_others_use_the_weak_one():
    weak, strong = FakeMember("a", about(any_author=False, slots=4)), FakeMember("b")
    strong.gate.clear()
    async with prepare_fleet(weak, strong) as made:
        first, second = (
            asyncio.ensure_future(made.evaluate(request(f"r1s0p{number}i0", **MODEL), None))
            for number in range(2)
        )
        await until(lambda: strong.under_way == 1 and made.standings()[0].waiting == 1)
        await made.evaluate(request("r1s0p2i0"), None)
        strong.gate.set()
        await asyncio.gather(first, second)
    assert (weak.judged, sorted(strong.judged)) == (["r1s0p2i0"], ["r1s0p0i0", "r1s0p1i0"])


async def test_where_all_jails_are_weak_one_error_says_which_key_and_how_to_mend_it():
    patient = replace(QUICK, patience_s=3600)
    async with prepare_fleet(FakeMember("a", about(any_author=False)), policy=patient) as made:
        async with asyncio.timeout(60):
            with pytest.raises(InfrastructureError) as caught:
                await made.evaluate(request(**MODEL), None)
        assert (caught.value.code, caught.value.retryable) == ("weak_jail", False)
        assert "install bubblewrap there, or set daemon.allow_weak_jail" in caught.value.message
        assert stands(made, "a").state == "up"


async def test_a_kernel_waits_for_a_strong_jail_that_is_away():
    weak, strong = FakeMember("a", about(any_author=False)), FakeMember("b", job_failures=[host_lost_error()])
    async with prepare_fleet(weak, strong) as made:
        await made.evaluate(request(**MODEL), None)
    assert strong.judged == ["r1s0p0i0"]
