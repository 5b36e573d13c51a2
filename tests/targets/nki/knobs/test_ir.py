"""The three knobs as values."""

from __future__ import annotations

from targets.nki.knobs.ir import KernelIR, Scope, knob_signature
from tests.support.workloads import WORKLOADS


def test_the_repr_does_not_depend_on_how_the_knobs_were_given() -> None:
    ir = WORKLOADS["matmul"].default
    ltiles = dict(reversed(ir.ltiles.items()))
    scopes = {name: dict(reversed(item.items())) for name, item in reversed(ir.scopes.items())}
    same = KernelIR(ir.graph, list(ir.loop_order), ltiles, scopes)  # type: ignore[arg-type]
    assert same == ir
    assert repr(same) == repr(ir)
    assert hash(same) == hash(ir)


def test_every_knob_shows_in_the_repr_and_in_the_signature() -> None:
    ir = WORKLOADS["matmul"].default
    swapped = (ir.loop_order[2], *ir.loop_order[:2], *ir.loop_order[3:])
    others = [
        ir.with_knob(("loop_order",), swapped),
        ir.with_knob(("ltiles_per_block", "d1"), 2),
        ir.with_knob(("buffer_scopes", "sbuf_rhs", "d1"), Scope.PER_BLOCK),
    ]
    assert len({repr(item) for item in [ir, *others]}) == 4
    assert len({knob_signature(item) for item in [ir, *others]}) == 4


def test_a_graph_of_other_shapes_has_another_repr() -> None:
    ir, other = (WORKLOADS[name].default for name in ("matmul", "matmul_bfloat16"))
    assert repr(ir) != repr(other)


def test_trips_and_extents_follow_from_the_blocks() -> None:
    ir = WORKLOADS["matmul"].default.with_knob(("ltiles_per_block", "d1"), 2)
    assert (ir.trip_count("d1.block"), ir.trip_count("d1.tile")) == (2, 2)
    assert [ir.tiles_in_scope("d1", scope) for scope in Scope] == [1, 2, 4]


def test_none_takes_a_knob_away() -> None:
    ir = WORKLOADS["matmul"].default
    odd = ir.with_knob(("ltiles_per_block", "d9"), 2).with_knob(
        ("buffer_scopes", "sbuf_none", "d0"), Scope.FULL
    )
    assert (
        odd.with_knob(("ltiles_per_block", "d9"), None).with_knob(("buffer_scopes", "sbuf_none", "d0"), None)
        == ir
    )
