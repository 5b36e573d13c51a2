"""What the pool's processes answer: JSON to JSON, the same bytes for the same request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from targets.nki.knobs.errors import KnobError
from targets.nki.knobs.graph import Graph
from targets.nki.knobs.ir import KernelIR
from targets.nki.knobs.narrowing import default_ir
from targets.nki.knobs.render import render_kernel
from targets.nki.knobs.tuning import worker
from targets.nki.knobs.tuning.points import KnobPoint, describe_turns, parse_point, variant_graphs
from targets.nki.knobs.tuning.worker import answer_request
from targets.nki.knobs.validity import validity_report
from targets.nki.knobs.workload_file import dump_graphs
from tests.support.workloads import WORKLOADS

GRAPH = WORKLOADS["swiglu"].graph
GRAPHS = variant_graphs(GRAPH)
MIRROR = str(KnobPoint("identity", default_ir(GRAPH)))


def write_request(job: str, **values: Any) -> str:
    request = {
        "workload": dump_graphs({"full": GRAPH}).decode(),
        "size": "full",
        "target": "trn2",
        "job": job,
    }
    return json.dumps({**request, **values})


def ask_worker(job: str, **values: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer_request(write_request(job, **values)))
    return found


def batch(*trials: tuple[str, float | None, str], mode: str = "joint", knob: str = "") -> dict[str, Any]:
    return {"mode": mode, "knob": knob, "trials": [list(trial) for trial in trials]}


def next_job(*history: dict[str, Any]) -> dict[str, Any]:
    return {
        "variant": "identity", "history": list(history), "start": MIRROR, "bottleneck": "dma",
        "mbu_percent": None, "draw": 7, "count": 6,
    }  # fmt: skip


def following(*history: dict[str, Any], **values: Any) -> dict[str, Any]:
    made: dict[str, Any] = ask_worker("next", **{**next_job(*history), **values})["ok"]
    return made


JOBS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "next": next_job(batch((MIRROR, 1.0, ""))),
    "drawn": {"draw": 3, "count": 2},
    "render": {"point": MIRROR},
}


@pytest.mark.parametrize("job", JOBS)
def test_the_same_request_has_the_same_answer(job: str) -> None:
    text = write_request(job, **JOBS[job])
    assert answer_request(text) == answer_request(text)


def test_defaults_are_one_for_each_variant_the_mirror_first() -> None:
    made = ask_worker("defaults")["ok"]
    assert made["points"][0]["text"] == MIRROR
    assert [one["text"].split(" ")[0] for one in made["points"]] == list(GRAPHS)
    assert made["reasons"] == []
    for one in made["points"]:
        point = parse_point(one["text"], GRAPHS)
        assert one["source"] == render_kernel(point.ir)
        assert point.ir == default_ir(GRAPHS[point.variant])
        assert one["title"] == f"{point.variant}: the default of the variant {point.variant}"


def test_the_next_points_are_valid_and_none_that_was_seen() -> None:
    first = following(batch((MIRROR, 1.0, "")))
    assert (first["mode"], len(first["points"])) == ("sweep", 6)
    assert first["knob"] in {"buffer_scopes", "loop_order", "ltiles_per_block"}
    for one in first["points"]:
        assert validity_report(parse_point(one["text"], GRAPHS).ir) == []
        assert one["title"].startswith("identity: ")
    told = batch(*((one["text"], 2.0, "") for one in first["points"]), mode="sweep", knob=first["knob"])
    second = following(batch((MIRROR, 1.0, "")), told)
    assert not {one["source"] for one in first["points"]} & {one["source"] for one in second["points"]}


def test_a_single_turn_is_named_in_the_title() -> None:
    made = following(batch((MIRROR, 1.0, "")))
    turns = made["points"][:3]  # the others are drawn anywhere
    assert all(one["title"].startswith(f"identity: {made['knob']}") for one in turns)
    assert not any("," in one["title"] for one in turns)


def test_a_point_of_another_variant_than_the_parents_is_named_by_what_it_turns_of_its_default() -> None:
    made = following(batch((MIRROR, 1.0, "")), start="")
    for one in made["points"]:
        wanted = describe_turns(KnobPoint("identity", default_ir(GRAPH)), parse_point(one["text"], GRAPHS))
        assert one["title"] == f"identity: from its default, {wanted}"


def test_another_draw_leads_elsewhere() -> None:
    one, other = (following(batch((MIRROR, 1.0, "")), draw=draw) for draw in (1, 2))
    assert one["points"] != other["points"]


def test_what_is_no_point_any_more_is_left_out_of_the_history() -> None:
    old = ("identity d9.block d9=1 sbuf_gone:d9=FULL", 0.5, "")
    assert following(batch(old, (MIRROR, 1.0, ""))) == following(batch((MIRROR, 1.0, "")))


def test_points_drawn_are_different_and_of_several_variants() -> None:
    made = ask_worker("drawn", draw=3, count=8)["ok"]["points"]
    assert len({one["text"] for one in made}) == 8
    assert len({one["text"].split(" ")[0] for one in made}) > 1


def test_a_variant_that_fits_nowhere_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    def fitting(graph: Graph) -> KernelIR:
        if graph == GRAPH:
            raise KnobError("nothing fits")
        return default_ir(graph)

    monkeypatch.setattr(worker, "default_ir", fitting)
    made = ask_worker("drawn", draw=3, count=8)["ok"]["points"]
    assert made
    assert "identity" not in {one["text"].split(" ")[0] for one in made}


def test_a_variant_of_before_is_refused_by_its_name() -> None:
    told = {"history": [], "start": "", "bottleneck": "", "mbu_percent": None, "draw": 1, "count": 2}
    error = ask_worker("next", variant="gone", **told)["error"]
    assert error["code"] == "no_point"
    assert "gone" in error["message"]


def test_a_point_is_lowered_to_the_kernel_that_it_names() -> None:
    assert ask_worker("render", point=MIRROR)["ok"]["source"] == render_kernel(default_ir(GRAPH))


@pytest.mark.parametrize(
    ("values", "code", "message"),
    [
        ({"job": "render", "point": "nothing"}, "no_point", "'nothing' is no point of this workload"),
        ({"job": "defaults", "size": "huge"}, "no_graph", "no graph for the size 'huge'"),
        ({"job": "defaults", "workload": "{}"}, "no_graph", "workload.json: "),
    ],
)
def test_what_cannot_be_answered_has_a_code(values: dict[str, Any], code: str, message: str) -> None:
    found = ask_worker(**values)
    assert found["error"]["code"] == code
    assert message in found["error"]["message"]
