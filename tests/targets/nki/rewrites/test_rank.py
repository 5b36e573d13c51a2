"""The estimate follows the cost table, and the ranking what was learnt."""

from __future__ import annotations

import json
from dataclasses import replace
from pkgutil import iter_modules

import pytest
from hypothesis import given
from hypothesis import strategies as st

import seeds
from targets.nki.rewrites import transforms, worker
from targets.nki.rewrites.estimate import estimate_kernel, find_rule_breaches
from targets.nki.rewrites.kernel_ir import ArrayArgument
from targets.nki.rewrites.rank import RankedRewrite, RankingEvidence, rank_rewrites, select_rewrites
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from targets.nki.target import read_menu
from tests.support.kernels import TARGET
from tests.support.sweeps import parametrize_sweep

NOTHING = RankingEvidence()


def arguments(name: str, size: str = "full") -> list[ArrayArgument]:
    spec = seeds.load_problem(name).spec
    return [ArrayArgument(tuple(item.resolve_shape(spec.dims(size))), item.dtype) for item in spec.inputs]


def plans(name: str, evidence: RankingEvidence = NOTHING) -> list[RankedRewrite]:
    ranking, _ = rank_rewrites(seeds.load_problem(name).kernel, arguments(name), TARGET, evidence)
    return ranking


def test_the_estimate_counts_every_execution():
    made = estimate_kernel(
        read_kernel(seeds.load_problem("matmul").kernel, arguments("matmul"), TARGET), TARGET
    )
    products = 32 * 24 * 40
    cycles = TARGET.tensor_fp32_passes * (512 + TARGET.tensor_overhead_cycles)
    transposes = 32 * 40 * TARGET.tensor_fp32_onezero_passes * (128 + TARGET.tensor_overhead_cycles)
    assert made.busy_ns["tensor"] == pytest.approx((products * cycles + transposes) / TARGET.tensor_clock_ghz)
    assert made.total_ns > max(made.busy_ns.values()) + TARGET.kernel_overhead_ns


def test_a_kernel_that_does_not_fit_is_told_apart():
    problem = seeds.load_problem("silu")
    wide = problem.kernel.replace("TILE_N = 1024", "TILE_N = 7168")
    small = replace(TARGET, sbuf_partition_bytes=64 * 1024)
    kernel = read_kernel(wide, arguments("silu"), TARGET)
    assert find_rule_breaches(kernel, estimate_kernel(kernel, TARGET), TARGET) == []
    assert any(
        reason.startswith("SBUF")
        for reason in find_rule_breaches(kernel, estimate_kernel(kernel, small), small)
    )


def test_rules_are_asked_of_new_instructions_only():
    problem = seeds.load_problem("silu")
    kernel = read_kernel(problem.kernel, arguments("silu"), TARGET)
    narrow = replace(TARGET, partitions=64)
    made = estimate_kernel(kernel, narrow)
    first = find_rule_breaches(kernel, made, narrow)[0]
    assert first.endswith("the limit is 64")
    assert find_rule_breaches(kernel, made, narrow, kernel.forms) == []


@parametrize_sweep("name", ["matmul", "rmsnorm_matmul", "silu"], quick=["silu"])
def test_rankings_are_distinct_and_worth_trying(name: str):
    found = plans(name)
    assert len({(item.technique, item.site_and_choice) for item in found}) == len(found) >= 6
    assert found[0].speedup > 1.01
    assert [item.value for item in found] == sorted((item.value for item in found), reverse=True)


@parametrize_sweep("name", ["bmm_softmax", "gqa_full", "mamba"], quick=1)
def test_integer_indices_and_broadcasts_leave_something_to_try(name: str):
    found = plans(name)
    assert len({(item.technique, item.site_and_choice) for item in found}) == len(found) >= 4
    assert found[0].speedup > 1.01


def test_what_was_tried_on_this_parent_is_not_planned_again():
    first, second, *_ = plans("silu")
    tried = frozenset({(first.technique, first.site_and_choice)})
    assert plans("silu", RankingEvidence(tried=tried))[0].site_and_choice == second.site_and_choice


def test_credit_moves_the_ranking():
    before = plans("silu")
    disappointed = RankingEvidence(credits={before[0].technique: (200, 0.0), "hoist": (1, 0.1)})
    assert plans("silu", disappointed)[0].technique != before[0].technique


def test_a_technique_off_the_bottleneck_counts_for_less():
    on = {
        item.site_and_choice: item.value
        for item in plans("matmul", RankingEvidence(frozenset({"dma"})))
        if item.technique == "block"
    }
    off = {
        item.site_and_choice: item.value
        for item in plans("matmul", RankingEvidence(frozenset({"scalar"})))
        if item.technique == "block"
    }
    assert on.keys() == off.keys()
    assert all(on[place] > off[place] for place in on)


rewrites = st.lists(
    st.builds(
        RankedRewrite,
        technique=st.sampled_from(sorted(TRANSFORMS)),
        site=st.uuids().map(str),
        choice=st.just({}),
        title=st.just(""),
        speedup=st.floats(0.9, 2.0),
        counter=st.just("total_time"),
        reason=st.just(""),
        value=st.floats(-0.1, 1.0),
    ),
    max_size=20,
)


@given(rewrites, st.integers(1, 12), st.text(max_size=8))
def test_the_choice_is_distinct_repeatable_and_led_by_the_best(
    ranking: list[RankedRewrite], count: int, seed: str
):
    ranking = sorted(ranking, key=lambda item: -item.value)
    found = select_rewrites(ranking, count, seed)
    assert found == select_rewrites(ranking, count, seed)
    assert len(found) == len({item.site for item in found}) == min(count, len(ranking))
    best = count - count // 4
    assert found[:best] == ranking[: len(found[:best])]


def test_exploration_depends_on_the_seed():
    ranking = [
        RankedRewrite("hoist", str(number), {}, "", 1.0, "total_time", "", 0.0) for number in range(40)
    ]
    assert (
        len({tuple(item.site for item in select_rewrites(ranking, 8, str(seed))) for seed in range(10)}) > 1
    )


def test_every_transformation_that_is_written_is_in_the_catalogue_and_the_menu():
    written = {
        module.name
        for module in iter_modules(transforms.__path__)
        if module.name not in {"base", "catalogue"}
    }
    listed = {type(transform).__module__.rpartition(".")[2] for transform in TRANSFORMS.values()}
    assert listed == written
    assert [name for name in TRANSFORMS if name not in read_menu()] == []


def test_the_menu_covers_the_transformations():
    assert set(read_menu()) >= set(TRANSFORMS)
    classes = {"tensor", "vector", "scalar", "gpsimd", "dma", "dependency", "underutilised"}
    for technique in read_menu().values():
        assert technique.bottlenecks <= classes
        assert technique.bottlenecks
        assert technique.title
        assert technique.description.endswith(".")


def request(**changes: object) -> str:
    values: dict[str, object] = {
        "job": "apply", "source": seeds.load_problem("silu").kernel, "target": "trn2",
        "technique": "tile_size", "site": "TILE_N", "choice": {"value": 512},
        "arguments": [[list(item.shape), item.dtype] for item in arguments("silu")],
    }  # fmt: skip
    return json.dumps(values | changes)


def test_the_worker_applies_what_was_planned():
    made = json.loads(worker.answer_request(request()))["ok"]
    assert made["source"] == seeds.load_problem("silu").kernel.replace("TILE_N = 1024", "TILE_N = 512")
    assert worker.answer_request(request()) == worker.answer_request(request())


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"technique": "magic"}, "unknown_technique"),
        ({"site": "NOWHERE"}, "does_not_apply"),
        ({"choice": {"value": 1000}}, "does_not_apply"),
        ({"choice": {"value": 1024}}, "does_not_apply"),
        ({"source": "def ("}, "unreadable_kernel"),
        (
            {"technique": "engine", "site": "tensor_scalar to denominator", "choice": {"engine": "vector"}},
            None,
        ),
    ],
)
def test_the_worker_says_what_is_wrong(changes: dict[str, object], code: str | None):
    made = json.loads(worker.answer_request(request(**changes)))
    assert made.get("error", {}).get("code") == code


def test_a_rewrite_without_effect_is_an_error():
    source = seeds.load_problem("silu").kernel.replace(
        "operand0=1.0)", "operand0=1.0, engine=nisa.engine.scalar)"
    )
    job = {"technique": "engine", "site": "tensor_scalar to denominator", "choice": {"engine": "scalar"}}
    made = json.loads(worker.answer_request(request(source=source, **job)))
    assert made["error"]["code"] == "no_change"
