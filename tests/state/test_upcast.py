"""Old events: lifted to today's shape on reading, never rewritten; newer ones are refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.config import Config
from state import events, upcast
from state.chain import GENESIS
from state.errors import LogDamaged, LogTooNew
from state.events import EVENT_TYPES, FAMILIES, RoundStarted, RunPaused
from state.model import PauseCause
from state.records import EventRow
from tests.support.sweeps import scale_examples


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


def test_a_version_that_only_gained_fields_needs_no_upcaster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EVENT_TYPES["RunPaused"], "version", 4)
    steps = {("RunPaused", 2): lambda body: {"reason": body["why"]}}
    lifted = upcast.upcast_payload("RunPaused", 1, '{"why":"old"}', upcasters=steps)
    assert json.loads(lifted) == {"reason": "old"}


def test_upcasters_are_for_versions_that_exist() -> None:
    for name, step in upcast.UPCASTERS:
        assert 1 <= step < EVENT_TYPES[name].version


BLIND = {"lookahead_predictions": 0, "simplify": False}
"""What runs have that began before planners looked ahead, and winners were simplified."""


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


@pytest.mark.parametrize("kind", ["RunCreated", "ConfigChanged"])
def test_winners_of_runs_from_before_stay_as_they_are(kind: str) -> None:
    payload = json.dumps({"config": {"search": {"beam": 2}}})
    assert json.loads(upcast.upcast_payload(kind, 10, payload))["config"]["search"]["simplify"] is False
    now = EVENT_TYPES[kind].version
    assert "simplify" not in json.loads(upcast.upcast_payload(kind, now, payload))["config"]["search"]


def test_so_do_those_of_forks_that_judge_anew() -> None:
    payload = json.dumps({"rebase": {"config": {"search": {}}}})
    lifted = json.loads(upcast.upcast_payload("RunForked", 6, payload))
    assert lifted["rebase"]["config"]["search"] == {"simplify": False}
    assert json.loads(upcast.upcast_payload("RunForked", 6, '{"rebase":null}')) == {"rebase": None}


def test_a_configuration_file_of_before_is_read_as_it_was() -> None:
    content = Config().model_dump(mode="json")
    del content["run"]["search"]["simplify"]
    lifted = json.loads(upcast.upcast_payload("ConfigChanged", 10, json.dumps({"config": content})))
    assert Config.model_validate(lifted["config"]) == Config()


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


def test_kinds_are_checked_before_anything_is_folded() -> None:
    upcast.check_kinds([("RunPaused", 1), ("RunCreated", 1)])
    check: Callable[[list[tuple[str, int]]], None] = upcast.check_kinds
    newer = EVENT_TYPES["RunPaused"].version + 1
    with pytest.raises(LogTooNew, match=f"RunPaused version {newer}"):
        check([("RunCreated", 1), ("RunPaused", newer)])


def test_a_round_of_before_prompts_were_recorded_is_read() -> None:
    old = upcast.decode_event(row(type="RoundStarted", sv=1, payload='{"round":1,"slots":[]}'))
    assert isinstance(old, RoundStarted)
    assert old.prompts is None


def test_a_pause_of_before_causes_were_stored_waits_for_a_person() -> None:
    old = upcast.decode_event(row(sv=2, payload='{"reason":"disk full: goes on when 16 MiB are free"}'))
    assert isinstance(old, RunPaused)
    assert old.cause is PauseCause.PERSON


def test_every_event_of_the_room_is_exported_and_belongs_to_a_family() -> None:
    found = {name for names in FAMILIES.values() for name in names}
    assert found == set(EVENT_TYPES)
    for name, cls in EVENT_TYPES.items():
        assert getattr(events, name) is cls
        assert cls.model_fields["type"].default == name
