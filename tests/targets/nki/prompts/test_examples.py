"""The examples that models are told: each runs in the simulator on its targets, and its numbers are right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import nki_sim
from agent_core.roles.llm.blocks import AnswerFault, last_json, parse_blocks
from agent_core.roles.llm.edits import apply_edits
from agent_core.roles.llm.own_words import require_own_words
from agent_core.roles.llm.plans import PlanReply, PlanRules, check_plan
from nki_sim import ArraySpec, targets
from nki_sim.checks import program as checks
from nki_sim.running import numerics
from nki_sim.timing.forecast import forecast_program
from prompts import FileKind, ReviewStatus, read_prompts
from targets.nki.target import PARTS, read_menu

Array = NDArray[Any]
NKI = read_prompts({"nki": PARTS.prompts})


@dataclass(frozen=True)
class Case:
    """The arguments' shapes and what comes of them."""

    shapes: tuple[tuple[int, ...], ...]
    meaning: Callable[..., Array]
    tolerance: float = 2e-5


def _softmax(x: Array) -> Array:
    exps = np.exp(x - x.max(axis=1, keepdims=True))
    return exps / exps.sum(axis=1, keepdims=True)


def _scan(a: Array, b: Array) -> Array:
    state = np.zeros_like(a)
    for step in range(a.shape[1]):
        state[:, step] = a[:, step] * (state[:, step - 1] if step else 0) + b[:, step]
    return state


def _gelu(x: Array) -> Array:
    from math import erf

    return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def _causal(x: Array) -> Array:
    rows, columns = np.indices(x.shape)
    return np.where(rows >= columns, x, -1e30)


def _range_max(x: Array, low: Array, high: Array) -> Array:
    columns = np.arange(x.shape[1])[None, :]
    return np.where((columns >= low) & (columns < high), x, -3.4028235e38).max(axis=1, keepdims=True)


CASES = {
    "wide_rows": Case(((256, 1024),), lambda x: x / (1 + np.exp(-x))),
    "blocked_product": Case(((256, 256), (256, 1024)), lambda a, b: a.T @ b),
    "row_softmax": Case(((256, 512),), _softmax),
    "row_norm": Case(((256, 512),), lambda x: x / np.sqrt((x * x).mean(axis=1, keepdims=True))),
    "transposed_load": Case(((256, 1024),), lambda x: x.T),
    "scan": Case(((128, 1024), (128, 1024)), _scan),
    "causal_mask": Case(((256, 256),), _causal),
    "fast_softmax": Case(((256, 512),), _softmax),
    "mx_product": Case(((1024, 128), (1024, 1024)), lambda a, b: a.T @ b, tolerance=0.05),
    "range_mask": Case(((128, 256), (128, 1), (128, 1)), _range_max),
    "engines_side_by_side": Case(((256, 512),), lambda x: 3 * x),
    "keep_order": Case(((384, 512),), _gelu),
}


def examples() -> list[tuple[str, str]]:
    return [
        (one.name, target)
        for target in NKI.manifest.targets
        for one in NKI.list_sections(FileKind.EXAMPLE, target)
    ]


def code(name: str) -> str:
    text = NKI.files[f"examples/{name}.md"]
    (body,) = [part.partition("```")[0] for part in text.split("```python\n")[1:]]
    return body


def inputs(name: str) -> list[Array]:
    random = np.random.default_rng(7)
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in CASES[name].shapes]
    if name == "scan":
        arrays[0] = np.abs(np.tanh(arrays[0]))
    if name == "range_mask":
        arrays[1:] = [np.full((128, 1), 16, np.float32), np.arange(128, dtype=np.float32)[:, None] + 100]
    return arrays


@pytest.mark.parametrize(("name", "target"), examples())
def test_an_example_computes_what_it_says_within_the_rules_and_can_be_timed(name, target):
    device, arrays = targets.load(target), inputs(name)
    program = nki_sim.trace(
        code(name), args=[ArraySpec(one.shape, "float32") for one in arrays], target=target
    )
    assert [breach.message for breach in checks.check(program, device)] == []
    (found,) = numerics.run(program, list(arrays))
    expected = CASES[name].meaning(*(one.astype(np.float64) for one in arrays))
    assert np.linalg.norm(found - expected) <= CASES[name].tolerance * np.linalg.norm(expected)
    assert forecast_program(program, device).latency_ms > 0


def test_every_example_is_run_and_says_so():
    items = {path: item for path, item in NKI.manifest.items.items() if item.kind is FileKind.EXAMPLE}
    assert {f"examples/{name}.md" for name in CASES} == set(items)
    assert {item.status for item in items.values()} == {ReviewStatus.RUN}


def test_what_only_one_target_has_is_an_example_for_that_one_alone():
    assert ("range_mask", "trn2") in examples()
    assert ("range_mask", "trn1") not in examples()
    for name in ("fast_softmax", "mx_product"):
        assert [target for found, target in examples() if found == name] == ["trn3"]


SQUARES = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((m, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range(m // 128):
        rows = nl.ds(i * 128, 128)
        tile = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[rows, :])
        squares = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=squares, op=nl.square, data=tile)
        nisa.tensor_reduce(dst=total, op=nl.add, data=squares, axis=1)
        nisa.dma_copy(dst=out[rows, :], src=total)
    return out
"""


def test_the_example_of_edits_applies_and_keeps_what_is_computed():
    (block,) = parse_blocks(NKI.files["guide/edit_example.md"])
    edited = apply_edits(block.text, SQUARES)
    assert "activation_reduce" in edited
    assert "tensor_reduce" not in edited
    x = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32)
    for target in NKI.manifest.targets:
        program = nki_sim.trace(edited, args=[ArraySpec(x.shape, "float32")], target=target)
        assert [breach.message for breach in checks.check(program, targets.load(target))] == []
        (found,) = numerics.run(program, [x])
        np.testing.assert_allclose(found, np.square(x).sum(axis=1, keepdims=True), rtol=1e-5)


def test_the_example_of_a_plan_is_one_that_a_planner_may_answer():
    rules = PlanRules(techniques=frozenset(read_menu()), counters=frozenset({"hbm_read_bytes"}))
    reply = last_json(NKI.files["guide/plan_example.md"], PlanReply, lambda one: check_plan(one, rules))
    assert reply.reasoning
    with pytest.raises(AnswerFault, match="repeats an example"):
        require_own_words(reply, "planner")
