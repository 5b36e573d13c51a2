"""Knobs to data and back."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from targets.nki.knobs.document import from_document, to_document
from targets.nki.knobs.errors import KnobError
from targets.nki.knobs.sampling import sample_ir
from tests.support.workloads import WORKLOADS


@pytest.mark.parametrize("name", ["matmul", "softmax"])
def test_knobs_come_back_from_json_as_they_were(name: str) -> None:
    workload = WORKLOADS[name]
    ir = sample_ir(workload.default, Random(1))
    again = from_document(workload.graph, json.loads(json.dumps(to_document(ir))))
    assert again == ir
    assert repr(again) == repr(ir)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loop_order": "d0.block"}, "loop_order is 'd0.block'; it is a list"),
        ({"ltiles_per_block": None}, "ltiles_per_block is None; it is a dict"),
        ({"num_buffers": {}}, "'num_buffers' is no knob; the knobs are loop_order"),
        ({"buffer_scopes": {"sbuf_x": "FULL"}}, "buffer_scopes[sbuf_x] is 'FULL'; it is a dict"),
        (
            {"buffer_scopes": {"sbuf_x": {"d0": "HALF"}}},
            "buffer_scopes[sbuf_x][d0] is 'HALF'; it is one of PER_TILE",
        ),
    ],
)
def test_what_is_wrong_with_a_document_is_said(change: dict[str, Any], message: str) -> None:
    workload = WORKLOADS["softmax"]
    with pytest.raises(KnobError) as caught:
        from_document(workload.graph, {**to_document(workload.default), **change})
    assert message in str(caught.value)
