"""The edges of the room: evaluators by name, bounds, and the messages between processes."""

from __future__ import annotations

import asyncio
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

import remote
import seeds
from nki_sim import targets
from remote import framing
from remote.errors import InfrastructureError, RemoteError, UnknownEvaluatorError
from remote.local import LocalEvaluator
from remote.pool import WorkerLimits, worker_environment
from remote.registry import EvaluatorSpec
from targets.registry import load_target


def test_evaluators_by_name(home):
    evaluator = remote.create_evaluator(EvaluatorSpec("sim", "trn2"), home=home, slots=1)
    assert isinstance(evaluator, LocalEvaluator)
    assert evaluator.name == "sim"
    assert "nki_sim" in evaluator.toolchain()
    assert "sim" in remote.evaluator_names()


def test_an_unknown_evaluator_is_named_with_those_known(home):
    with pytest.raises(UnknownEvaluatorError, match=r"unknown evaluator 'simm' - did you mean 'sim'\?"):
        remote.create_evaluator(EvaluatorSpec("simm", "trn2"), home=home)
    assert issubclass(UnknownEvaluatorError, RemoteError)


@pytest.mark.parametrize("target", targets.names())
@pytest.mark.parametrize("name", seeds.builtin_problems())
def test_bounds_are_those_of_roofline_and_simulator(name, target):
    problem = seeds.load_problem(name)
    found = remote.compute_bounds(problem, "full", target)
    work = problem.spec.minimal_work("full")
    table = targets.load(target)
    assert found.plain_ms == load_target(target).peaks.roofline_ms(work)
    moving_ms = work.total_bytes / table.dma_bytes_per_ns / 1e6
    assert found.tight_ms >= moving_ms + table.kernel_overhead_ns / 1e6
    assert found.tight_ms > remote.compute_bounds(problem, "reduced", target).tight_ms


@pytest.mark.parametrize(
    ("size", "target", "code"), [("huge", "trn2", "unknown_size"), ("full", "trn9", "unknown_target")]
)
def test_bounds_of_what_does_not_exist(size, target, code):
    with pytest.raises(InfrastructureError) as caught:
        remote.compute_bounds(seeds.load_problem("silu"), size, target)
    assert caught.value.code == code
    assert not caught.value.retryable


@given(st.lists(st.tuples(st.binary(max_size=50), st.binary(max_size=50)), max_size=5))
def test_messages_come_out_as_they_went_in(messages):
    stream = io.BytesIO(b"".join(framing.pack_message(*message) for message in messages))
    assert list(iter(lambda: framing.read_message(stream), None)) == messages


async def test_messages_over_a_stream_reader():
    reader = asyncio.StreamReader()
    reader.feed_data(framing.pack_message(b"head", b"body") + framing.pack_message(b"next")[:-1])
    reader.feed_eof()
    assert await framing.receive_message(reader) == (b"head", b"body")
    with pytest.raises(asyncio.IncompleteReadError):
        await framing.receive_message(reader)


@given(st.integers(1, 19))
def test_a_message_cut_short_is_an_error(length):
    with pytest.raises(EOFError):
        framing.read_message(io.BytesIO(framing.pack_message(b"head")[:length]))


def test_workers_share_the_machine_and_see_no_secrets(monkeypatch):
    monkeypatch.setenv("NKI_TEST_SECRET", "hush")
    assert not any("SECRET" in name for name in worker_environment())
    one, many = WorkerLimits.for_slots(1), WorkerLimits.for_slots(1000)
    assert one.memory_bytes >= many.memory_bytes >= 4 << 30
