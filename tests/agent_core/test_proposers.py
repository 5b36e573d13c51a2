"""The registry of proposers, and the scripted one."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from agent_core import proposers
from agent_core.effects import ImplementRequest, PlanRequest
from agent_core.providers import registry
from agent_core.roles import RoleError
from agent_core.roles.scripted import BROKEN_SOURCE, CONSTANT, ScriptedProposer
from state.events import ExecutionStarted, KernelProposed, PlanFailed, PlanProposed, PlanStarted
from tests.support.world import KERNEL, World, at_once, correct_evaluation, small

ASKING = [name for name in proposers.proposer_names() if proposers.is_llm_proposer(name)]


IN_ONE_PIECE = [name for name in proposers.proposer_names() if not proposers.is_built_per_effect(name)]


@pytest.mark.parametrize("name", IN_ONE_PIECE)
def test_a_proposer_is_made_by_name_and_says_the_same_of_repairs_as_the_table(name):
    made = proposers.create_proposer(name)
    assert made.name == name
    assert made.repairs is proposers.can_repair(name) is (name == "scripted")


def test_an_unknown_proposer_is_named_with_those_there_are():
    with pytest.raises(
        proposers.UnknownProposer, match=r"'bultin' \(did you mean 'builtin'\?\).*builtin, .*scripted"
    ):
        proposers.create_proposer("bultin")
    assert not proposers.can_repair("bultin")


def test_those_that_ask_models_are_named_by_endpoints_and_repair():
    assert {"anthropic", "openai", "local", "bedrock", proposers.ANY_ENDPOINT} <= set(ASKING)
    assert set(ASKING) - {proposers.ANY_ENDPOINT} == set(registry.endpoint_names())
    for name in ASKING:
        proposers.require_known_proposer(name)
        assert proposers.can_repair(name)
        assert not proposers.can_look_ahead(name)
    assert not proposers.is_llm_proposer("bultin")


def test_asking_for_names_imports_no_proposer():
    code = (
        "import sys; from agent_core import proposers; from agent_core.decide import decide; "
        "proposers.proposer_names(); "
        "heavy = ('targets.nki.rewrites', 'agent_core.roles.', 'libcst'); "
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def world() -> World:
    return World(small(beam=3, plans=6, implementations=2, rounds=3)).finish()


def test_the_same_request_gets_the_same_answer(world):
    for event in world.of(PlanStarted):
        request = PlanRequest.model_validate_json(world.blobs[event.request])
        assert _plan(world, request) == _plan(world, request)
    for event in world.of(ExecutionStarted):
        asked = ImplementRequest.model_validate_json(world.blobs[event.request])
        assert _implement(world, asked) == _implement(world, asked)


def _plan(world: World, request: PlanRequest) -> object:
    try:
        return at_once(ScriptedProposer().plan(request, world.blobs.__getitem__))
    except RoleError as error:
        return error.info


def _implement(world: World, request: ImplementRequest) -> object:
    try:
        return at_once(ScriptedProposer().implement(request, world.blobs.__getitem__))
    except RoleError as error:
        return error.info


def test_a_plan_changes_the_one_constant_that_it_names(world):
    requests = {event.key: event.request for event in world.of(ExecutionStarted)}
    for event in world.of(KernelProposed):
        asked = ImplementRequest.model_validate_json(world.blobs[requests[event.key]])
        before = dict(CONSTANT.findall(world.source(asked.parent.source)))
        after = dict(CONSTANT.findall(world.source(event.source).removesuffix(BROKEN_SOURCE)))
        changed = {name for name in before if before[name] != after[name]}
        assert changed == {asked.plan.site}
        ratio = int(after[asked.plan.site]) / int(before[asked.plan.site])
        assert ratio == {"double_constant": 2.0, "halve_constant": 0.5}[asked.plan.technique]


def test_scripted_runs_have_good_and_broken_kernels_and_repairs(world):
    sources = [world.source(event.source) for event in world.of(KernelProposed)]
    broken = [source for source in sources if source.endswith(BROKEN_SOURCE)]
    assert 0 < len(broken) < len(sources) / 2
    for source in set(sources) - set(broken):
        ast.parse(source)
    repaired = [event for event in world.of(KernelProposed) if ".f1." in event.key]
    assert any(not world.source(event.source).endswith(BROKEN_SOURCE) for event in repaired)


def test_only_constants_at_the_start_of_a_line_are_changed():
    text = KERNEL + "x = TILE_M\n    INNER = 4\nNAME = other\n"
    assert CONSTANT.findall(text) == [("TILE_M", "16"), ("TILE_N", "64"), ("BUFFERS", "1")]


def test_a_kernel_without_constants_gets_no_plan():
    world = World(
        small(rounds=1), kernel="x = 1\n", judge=lambda source: correct_evaluation(source, 1.0)
    ).finish()
    assert not world.of(PlanProposed)
    assert {event.error.code for event in world.of(PlanFailed)} == {"nothing_applies"}
