"""What goes wrong with hosts and links: nothing is lost, nothing counts twice, nothing stays behind."""

from __future__ import annotations

import pytest

from tests.support.host_faults import CUTS, ENDED_BY, FAULTS, VERBS, cut_at, run_job_through, set_up_host
from tests.support.sweeps import parametrize_sweep

pytestmark = [
    pytest.mark.needs("sshd", package="openssh-server"),
    pytest.mark.needs("iptables"),
    pytest.mark.needs("unshare", package="util-linux"),
]


# The benchmark prints all of them; these are what the others add nothing to.
ALSO = {"nothing", "link cut", "300 ms of latency, link cut", "clock a day behind"} | {
    "a tenth lost both ways, for three leases"  # takes a minute
}


@parametrize_sweep(
    "name",
    sorted(FAULTS.keys() - ALSO),
    quick=["a tenth of packets lost", "job's runner killed", "sshd killed and started again"],
)
async def test_a_job_lives_through(name, tmp_path):
    fault = FAULTS[name]
    async with set_up_host(tmp_path, fault) as there:
        outcome = await run_job_through(there, fault.inflict)
    assert outcome.is_sound, outcome
    assert outcome.begun == fault.begins


@pytest.mark.parametrize("name", ENDED_BY)
async def test_a_job_is_ended_by(name, tmp_path):
    fault, told = ENDED_BY[name]
    async with set_up_host(tmp_path, fault) as there:
        outcome = await run_job_through(there, fault.inflict)
    assert (outcome.status, outcome.begun, outcome.ended) == (
        told,
        fault.begins,
        0 if told == "deadline" else 1,
    )


@pytest.mark.slow
@pytest.mark.parametrize("when", CUTS)
async def test_a_link_may_be_cut_at_any_question(when, tmp_path):
    fault = FAULTS["nothing"]
    async with set_up_host(tmp_path, fault) as there:
        for verb in VERBS:
            await there.jobs.aclose()
            there.life = f"{when} {verb}"
            for content in there.sshd.workdir.glob("store/*"):
                content.unlink()
            with cut_at(verb, when, there.sshd) as done:
                outcome = await run_job_through(there, fault.inflict)
            assert done == [verb]
            assert outcome.is_sound, (verb, outcome)
            assert outcome.begun == 1, verb
