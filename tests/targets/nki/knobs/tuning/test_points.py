"""Points as text and back; what turns one into another, in words."""

from __future__ import annotations

from random import Random

import pytest

from targets.nki.knobs.errors import KnobError
from targets.nki.knobs.ir import LTILES
from targets.nki.knobs.sampling import sample_ir
from targets.nki.knobs.tuning.points import MOST_TOLD, KnobPoint, describe_turns, parse_point, variant_graphs
from targets.nki.knobs.validity import knob_difference
from tests.support.workloads import WORKLOADS


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_point_of_any_variant_comes_back_from_its_text(name: str) -> None:
    graphs = variant_graphs(WORKLOADS[name].graph)
    for variant, graph in graphs.items():
        point = KnobPoint(variant, sample_ir(WORKLOADS[name].default.__class__(graph, (), {}, {}), Random(3)))
        again = parse_point(str(point), graphs)
        assert again == point
        assert repr(again.ir) == repr(point.ir)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "identity",
        "other d0.block>d0.tile d0=1 x:d0=FULL",
        "identity d0.block>d0.tile d0=1,d1=2 sbuf_x:d0=FULL",
        "identity d0.block>d0.tile>d1.block>d1.tile d0=one,d1=1 sbuf_x:d0=FULL",
        "identity d0.block>d0.tile>d1.block>d1.tile d0=1,d1=1 sbuf_x:d0=HALF",
        "identity d0.block>d0.tile>d1.block>d1.tile d0=1,d1=1 sbuf_x",
    ],
)
def test_what_names_no_point_is_refused(text: str) -> None:
    with pytest.raises(KnobError, match="is no point of this workload"):
        parse_point(text, variant_graphs(WORKLOADS["softmax"].graph))


def test_the_knobs_in_which_two_points_differ_are_named() -> None:
    start = KnobPoint("identity", WORKLOADS["softmax"].default)
    (dim, _), *_ = start.ir.ltiles_per_block
    other = KnobPoint("identity", start.ir.with_knob((LTILES, dim), 2))
    assert describe_turns(start, other) == f"ltiles_per_block[{dim}] to 2"
    assert describe_turns(start, KnobPoint("epilogue", start.ir)) == "other knobs"
    far = KnobPoint("identity", sample_ir(WORKLOADS["attention"].default, Random(5)))
    near = KnobPoint("identity", WORKLOADS["attention"].default)
    assert " more knobs" in describe_turns(near, far)
    knobs = knob_difference(near.ir, far.ir)[: MOST_TOLD + 1]
    five = near.ir
    for knob, value in knobs:
        five = five.with_knob(knob, value)
    assert describe_turns(near, KnobPoint("identity", five)).endswith(" and 1 more knob")
