"""Old events: lifted to today's shape on reading, never rewritten; newer ones are refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state import system, upcast
from state.chain import GENESIS
from state.errors import LogDamaged, LogTooNew
from state.events import EVENT_TYPES, RoundStarted, RunPaused, idempotency_key
from state.fold import RunState, apply_event, dump_semantic, state_hash
from state.log import EventLog
from state.model import PauseCause
from state.records import EventRow, NewEvent, RecordedEvent
from tests.support.sweeps import scale_examples

GOLDEN = Path(__file__).parent / "golden"


def row(**changes: object) -> EventRow:
    plain = EventRow(
        3, "r", 2, "RunPaused", 1, 0, None, None, '{"reason":"x"}', GENESIS, GENESIS, None, None, GENESIS
    )
    return plain._replace(**changes)


def test_a_current_event_is_validated() -> None:
    assert upcast.decode_event(row()) == RunPaused(reason="x")


@pytest.mark.parametrize(
    "payload", ["{}", '{"reason":"x","more":1}', '{"type":"RunResumed","reason":"x"}', "nonsense"]
)
def test_a_payload_that_is_not_its_type_is_damage(payload: str) -> None:
    with pytest.raises(LogDamaged, match=r"event 3 \(r@2\): payload is not a RunPaused"):
        upcast.decode_event(row(payload=payload))


@pytest.mark.parametrize("changes", [{"type": "TimeTravelled"}, {"sv": EVENT_TYPES["RunPaused"].version + 1}])
def test_what_a_newer_version_wrote_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(LogTooNew, match="newer version"):
        upcast.decode_event(row(**changes))


def test_upcasters_are_chained_to_today_s_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EVENT_TYPES["RunPaused"], "version", 3)
    steps = {
        ("RunPaused", 1): lambda body: {"cause": body["why"]},
        ("RunPaused", 2): lambda body: {"reason": body["cause"]},
    }
    lifted = upcast.upcast_payload("RunPaused", 1, '{"why":"old"}', upcasters=steps)
    assert json.loads(lifted) == {"reason": "old"}
    assert json.loads(upcast.upcast_payload("RunPaused", 3, '{"reason":"new"}', upcasters=steps)) == {
        "reason": "new"
    }


def test_every_old_version_can_be_lifted_to_today_s() -> None:
    wanted = {(name, step) for name, cls in EVENT_TYPES.items() for step in range(1, cls.version)}
    assert set(upcast.UPCASTERS) == wanted


BLIND = {"lookahead_predictions": 0}
"""What runs have that began before planners looked ahead."""


@pytest.mark.parametrize(
    ("config", "lifted"),
    [
        ({"search": {"beam": 2}}, {"search": {"beam": 2, "confidence_percent": 0.0, **BLIND}}),
        ({"search": {"confidence_percent": 80.0}}, {"search": {"confidence_percent": 80.0, **BLIND}}),
        ({}, {"search": {"confidence_percent": 0.0, **BLIND}}),
        (None, None),
    ],
)
@pytest.mark.parametrize("kind", ["RunCreated", "ConfigChanged"])
def test_runs_from_before_predictions_had_draws_keep_any_gain(
    kind: str, config: object, lifted: object
) -> None:
    assert json.loads(upcast.upcast_payload(kind, 1, json.dumps({"config": config}))) == {"config": lifted}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
BODIES = st.dictionaries(
    st.sampled_from(["config", "search", "reason", "type", "key"]) | st.text(max_size=8), JSON
)


@pytest.mark.parametrize("kind", upcast.UPCASTERS, ids=lambda kind: f"{kind[0]}{kind[1]}")
@given(
    body=BODIES
    | BODIES.map(lambda inner: {"config": inner})
    | BODIES.map(lambda inner: {"config": {"search": inner}})
)
@settings(max_examples=scale_examples(40))
def test_upcasters_are_total_and_change_nothing_that_they_are_given(
    kind: tuple[str, int], body: object
) -> None:
    before = copy.deepcopy(body)
    assert isinstance(upcast.UPCASTERS[kind](body), dict)
    assert body == before


@given(kind=st.sampled_from(sorted(EVENT_TYPES)), version=st.integers(0, 4), payload=JSON)
@settings(max_examples=scale_examples(300))
def test_any_payload_of_any_version_is_read_or_named(kind: str, version: int, payload: object) -> None:
    text = json.dumps(payload)
    with suppress(LogDamaged, LogTooNew):
        event = upcast.decode_event(row(type=kind, sv=version, payload=text))
        assert isinstance(event, EVENT_TYPES[kind])


def golden(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


HISTORIES = sorted(GOLDEN.glob("*.jsonl"))


def test_there_is_a_golden_history() -> None:
    assert HISTORIES


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_a_golden_history_replays_to_the_state_it_had(path: Path, log: EventLog) -> None:
    """Each line is a row of an old log, with the hash of the state after it where one was recorded."""
    state: RunState | None = None
    compared = 0
    for number, line in enumerate(golden(path), start=1):
        stored = row(seq=number, run_seq=number, type=line["type"], sv=line["sv"], payload=line["payload"])
        event = upcast.decode_event(stored)
        assert idempotency_key(event) == line["idem"]
        state = apply_event(state, event)
        if line["state_hash"] is not None:
            compared += 1
            assert state_hash(state) == line["state_hash"], f"{path.name}:{number}"
        (kept,) = log.append_now([NewEvent("r", event)])
        assert isinstance(kept, RecordedEvent)
    assert compared >= 2
    assert log.run_state("r") == state


def test_golden_histories_cover_what_a_run_does() -> None:
    seen = {str(line["type"]) for path in HISTORIES for line in golden(path)}
    wanted = (
        "RunCreated RoundStarted PlanProposed KernelProposed ExecutionFailed EvaluationCompleted KernelKept "
        "KernelDiscarded GuardCheckpointed MemoryCurated RoundCompleted RunCompleted"
    )
    assert seen >= set(wanted.split())


def test_kinds_are_checked_before_anything_is_folded() -> None:
    upcast.check_kinds([("RunPaused", 1), ("RunCreated", 1)])
    check: Callable[[list[tuple[str, int]]], None] = upcast.check_kinds
    newer = EVENT_TYPES["RunPaused"].version + 1
    with pytest.raises(LogTooNew, match=f"RunPaused version {newer}"):
        check([("RunCreated", 1), ("RunPaused", newer)])


def test_a_run_of_before_prompts_were_recorded_hashes_as_it_did() -> None:
    old = upcast.decode_event(row(type="RoundStarted", sv=1, payload='{"round":1,"slots":[]}'))
    assert isinstance(old, RoundStarted)
    assert old.prompts is None
    first = golden(HISTORIES[0])[0]
    created = upcast.decode_event(row(type=first["type"], sv=first["sv"], payload=first["payload"]))
    state = apply_event(None, created)
    assert "prompts" not in dump_semantic(state)
    assert dump_semantic(state.model_copy(update={"prompts": "0" * 64}))["prompts"] == "0" * 64
    assert "prompts" not in system.dump_semantic(system.SystemState())


def test_a_pause_of_before_causes_were_stored_waits_for_a_person() -> None:
    old = upcast.decode_event(row(sv=2, payload='{"reason":"disk full: goes on when 16 MiB are free"}'))
    assert isinstance(old, RunPaused)
    assert old.cause is PauseCause.PERSON
