"""The hash chain: whatever is done to stored rows, the first bad one is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.chain import GENESIS, ChainVerifier, row_hash
from state.errors import LogDamaged
from state.events import idempotency_key
from state.records import EventRow
from tests.support.scripted_runs import ScriptedRun

EVENTS = [step.event for step in ScriptedRun(seed=5).steps()]


def chain_rows(streams: list[str]) -> list[EventRow]:
    """Rows of a log whose n-th event belongs to the n-th stream."""
    tips: dict[str, tuple[int, bytes]] = {}
    rows: list[EventRow] = []
    log_hash = GENESIS
    for number, stream in enumerate(streams, start=1):
        event = EVENTS[number % len(EVENTS)]
        run_seq, prev = tips.get(stream, (0, GENESIS))
        content = (
            number, stream, run_seq + 1, type(event).__name__, 1, number * 10, None, idempotency_key(event),
            event.model_dump_json(), prev, log_hash, None, None,
        )  # fmt: skip
        rows.append(EventRow(*content, row_hash(content)))
        log_hash = rows[-1].hash
        tips[stream] = (run_seq + 1, log_hash)
    return rows


def first_bad(rows: list[EventRow]) -> int | None:
    """The index of the first row that a walk refuses, -1 when it names another."""
    walk = ChainVerifier(
        seq=0, log_hash=GENESIS, before=lambda row: (0, GENESIS) if row.run_seq == 1 else None
    )
    for index, row in enumerate(rows):
        try:
            walk.check_row(row)
        except LogDamaged as error:
            named = (error.seq, error.stream, error.run_seq)
            return index if named == (row.seq, row.stream, row.run_seq) else -1
    return None


logs = st.lists(st.sampled_from(["a", "b", "c"]), min_size=2, max_size=12).map(chain_rows)
CHANGES = {
    "stream": lambda value: value + "x",
    "run_seq": lambda value: value + 1,
    "type": lambda value: value + "x",
    "sv": lambda value: value + 1,
    "ts_us": lambda value: value + 1,
    "cause": lambda _: 7,
    "idem": lambda value: (value or "") + "x",
    "payload": lambda value: value + " ",
    "prev": lambda value: bytes(31) + bytes([value[-1] ^ 1]),
    "log_prev": lambda value: bytes(31) + bytes([value[-1] ^ 1]),
    "state_hash": lambda _: bytes(32),
    "fold": lambda _: 9,
    "hash": lambda value: value[:-1] + bytes([value[-1] ^ 1]),
}


@given(logs)
def test_an_untouched_log_walks_to_its_end(rows: list[EventRow]) -> None:
    assert first_bad(rows) is None


@given(logs, st.data())
def test_changing_any_column_of_any_row_is_seen_at_that_row(
    rows: list[EventRow], data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(rows) - 1))
    column = data.draw(st.sampled_from(sorted(CHANGES)))
    rows[index] = rows[index]._replace(**{column: CHANGES[column](getattr(rows[index], column))})
    assert first_bad(rows) == index


@given(logs, st.data())
def test_a_dropped_row_is_seen_at_its_successor(rows: list[EventRow], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(rows) - 2))
    del rows[index]
    assert first_bad(rows) == index


@given(logs, st.data())
def test_swapped_rows_are_seen_at_the_first(rows: list[EventRow], data: st.DataObject) -> None:
    one, other = sorted(
        data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=2, max_size=2, unique=True))
    )
    rows[one], rows[other] = rows[other], rows[one]
    assert first_bad(rows) == one


@given(logs, st.data())
def test_rows_rewritten_with_fresh_hashes_still_do_not_fit_their_successors(
    rows: list[EventRow], data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(rows) - 2))
    edited = rows[index]._replace(payload='{"forged":true}')
    rows[index] = edited._replace(hash=row_hash(edited[:-1]))
    assert first_bad(rows) == index + 1


def test_columns_cannot_trade_bytes() -> None:
    row = chain_rows(["a"])[0]
    one = row._replace(stream="ab", type="c")
    two = row._replace(stream="a", type="bc")
    assert row_hash(one[:-1]) != row_hash(two[:-1])


def test_a_walk_from_the_middle_asks_for_what_came_before() -> None:
    rows = chain_rows(["a", "b", "a"])
    walk = ChainVerifier(seq=2, log_hash=rows[1].hash, before=lambda row: (1, rows[0].hash))
    walk.check_row(rows[2])
    lost = ChainVerifier(seq=2, log_hash=rows[1].hash, before=lambda row: None)
    with pytest.raises(LogDamaged, match="does not continue its stream"):
        lost.check_row(rows[2])
