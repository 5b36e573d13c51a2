"""How many rewrites of a kernel are carried out: all, unless it is long."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

import seeds
from agent_core.roles.llm.prompt_values import words_of
from targets.nki.rewrites import explore as module
from targets.nki.rewrites.explore import check_rewrite, explore_rewrites
from targets.nki.rewrites.kernel_ir import ArrayArgument
from targets.nki.rewrites.prediction_scale import problem_job_fields
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transform import RewriteRefused
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from targets.nki.rewrites.worker import answer_request
from targets.nki.target import read_menu
from tests.support.kernels import HEADER, TARGET, Sample, relative_error
from tests.support.sweeps import QUICK_PROBLEMS, parametrize_sweep

STEP = """\
    a{i} = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a{i}, src=x[:, {first}:{last}])
    nisa.tensor_scalar(dst=a{i}, data=a{i}, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out[:, {first}:{last}], src=a{i})
"""


def children(steps: int) -> tuple[Counter[str], list[str]]:
    """By transformation, of a kernel that does one thing over and over; and the reasons against others."""
    body = "".join(STEP.format(i=i, first=64 * i, last=64 * i + 64) for i in range(steps))
    head = f"@nki.jit\ndef kernel(x):\n    out = nl.ndarray((128, {64 * steps}), dtype=x.dtype"
    source = f"{HEADER}\n{head}, buffer=nl.shared_hbm)\n{body}    return out\n"
    arguments = [ArrayArgument((128, 64 * steps), "float32")]
    found, refusals = explore_rewrites(read_kernel(source, arguments, TARGET), arguments, TARGET)
    return Counter(child.transform.id for child in found), refusals


def test_all_rewrites_of_a_kernel_are_looked_at():
    found, refusals = children(6)
    assert found["engine"] >= 6
    assert not any("so long a kernel" in reason for reason in refusals)


COUNTED = (
    HEADER
    + """
@nki.jit
def kernel(x):
    out = nl.ndarray((256, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range(2):
        for j in nl.affine_range(4):
            columns = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
            nisa.iota(dst=columns, pattern=[[1, 128]], offset=j * 128, channel_multiplier=0)
            part = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=part, src=x[i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128])
            nisa.tensor_tensor(dst=part, data1=part, data2=columns, op=nl.add)
            nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128], src=part)
    return out
"""
)


def test_an_offset_moves_with_its_loop():
    made = Sample(COUNTED, ((256, 512),), lambda x: x + np.arange(512))
    kernel = read_kernel(made.source, made.arguments, TARGET)
    found, refusals = explore_rewrites(kernel, made.arguments, TARGET)
    assert {"hoist", "interchange"} <= {child.transform.id for child in found}
    assert all(relative_error(made, child.source) < 1e-6 for child in found)
    assert "retile j: an argument of iota moves with the tiles" in refusals
    assert "hoist columns out of j: columns depends on j" in refusals
    other = made.source.replace("offset=j * 128", "offset=j * 64")
    with pytest.raises(RewriteRefused, match="an offset that moves with a loop would take other values"):
        check_rewrite(kernel, other, made.arguments, TARGET)


BLOCKS = (
    HEADER
    + """
P = 128
TILE = 256


@nki.jit
def kernel(x):
    out = nl.ndarray((256, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range(2):
        row = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.iota(dst=row, pattern=[[0, 1]], offset=i * P, channel_multiplier=0)
        for j in nl.affine_range(512 // TILE):
            block = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.iota(dst=block, pattern=[[0, 1]], offset=j * 128, channel_multiplier=0)
            t = nl.ndarray((P, TILE), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=t, src=x[i * P : (i + 1) * P, j * TILE : (j + 1) * TILE])
            nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=block, op1=nl.add, operand1=row)
            nisa.dma_copy(dst=out[i * P : (i + 1) * P, j * TILE : (j + 1) * TILE], src=t)
    return out
"""
)


def test_loops_that_count_otherwise_leave_offsets_alone():
    """The values that a wider tile loses are there in another instruction, but mean rows there."""
    columns, rows = np.arange(512) // 256 * 128, np.arange(256)[:, None] // 128 * 128
    made = Sample(BLOCKS, ((256, 512),), lambda x: x * columns + rows)
    assert relative_error(made, made.source) < 1e-6
    kernel = read_kernel(made.source, made.arguments, TARGET)
    found, refusals = explore_rewrites(kernel, made.arguments, TARGET)
    assert found
    assert all(relative_error(made, child.source) < 1e-6 for child in found)
    assert "tile_size TILE: an argument of iota moves with the tiles" in refusals


@pytest.mark.parametrize("method", ["find_sites", "list_choices", "apply"])
def test_a_fault_of_one_rewrite_is_told_and_the_others_are_looked_at(method, monkeypatch, capfd):
    def fail(*_: object) -> None:
        raise IndexError("list index out of range")

    problem = seeds.load_problem("silu")
    told = problem_job_fields(problem.spec, "reduced", "trn2")
    job = {"job": "expand", "source": problem.kernel, "credits": {}, **told}
    before = json.loads(answer_request(json.dumps(job)))["ok"]["moves"]
    monkeypatch.setattr(TRANSFORMS["engine"], method, fail)
    made = json.loads(answer_request(json.dumps(job)))["ok"]
    assert made["moves"] == [move for move in before if move["technique"] != "engine"]
    assert any("internal error: IndexError: list index out of range" in why for why in made["reasons"])
    assert "Traceback" in capfd.readouterr().err
    step = next(move for move in before if move["technique"] == "engine")
    both = {"job": "combine", "source": problem.kernel, "steps": [step, *made["moves"][:1]], **told}
    assert [one["steps"] for one in json.loads(answer_request(json.dumps(both)))["ok"]["made"]] == (
        [[0], [0, 1]] if method == "list_choices" else [[1]]
    )
    arguments = told["arguments"]
    arrays = [ArrayArgument(tuple(one[0]), one[1]) for one in arguments]
    with pytest.raises(IndexError):
        explore_rewrites(read_kernel(problem.kernel, arrays, TARGET), arrays, TARGET)


@parametrize_sweep("name", seeds.builtin_problems(), quick=QUICK_PROBLEMS)
def test_there_is_a_rewrite_of_each_problems_kernel(name: str):
    """A check that is too strict, for all rewrites alike, shows here: some kernels have few."""
    problem = seeds.load_problem(name)
    dims = problem.spec.dims("reduced")
    arrays = [
        ArrayArgument(tuple(item.resolve_kernel_shape(dims)), item.dtype) for item in problem.spec.inputs
    ]
    arguments = problem.spec.call_arguments(arrays, lambda value: value)
    found, refusals = explore_rewrites(read_kernel(problem.kernel, arguments, TARGET), arguments, TARGET)
    assert found, refusals
    words = words_of(problem.kernel, problem.files["reference.py"].decode(), problem.spec.model_dump_json())
    hidden = {
        child.transform.id for child in found if not read_menu()[child.transform.id].can_help(None, words)
    }
    assert not hidden, "models would not be offered what the engine can do"


def test_of_a_long_kernel_each_transformation_has_its_share(monkeypatch: pytest.MonkeyPatch):
    everything, _ = children(6)
    monkeypatch.setattr(module, "MAX_STATEMENTS", 320)
    found, refusals = children(6)
    assert set(found) == set(everything)
    assert max(found.values()) <= 2 < max(everything.values())
    assert "engine: of so long a kernel no more than 2 are looked at" in refusals


@pytest.mark.parametrize(("tiles", "spills"), [(3, False), (8, True)])
def test_a_kernel_that_spills_may_take_more_memory(tiles: int, spills: bool):
    """If tiles fit SBUF, they must fit afterwards too; if they do not, predictions count what spills."""
    source = f"""{HEADER}
@nki.jit
def kernel(x):
    out = nl.ndarray(({tiles}, 128, 16384), dtype=x.dtype, buffer=nl.shared_hbm)
    tiles = [nl.ndarray((128, 16384), dtype=x.dtype, buffer=nl.sbuf) for _ in range({tiles})]
    for i in nl.affine_range({tiles}):
        nisa.dma_copy(dst=tiles[i], src=x[i, :, :])
    for i in nl.affine_range({tiles}):
        for j in nl.affine_range(8):
            part = nl.ndarray((128, 2048), dtype=x.dtype, buffer=nl.sbuf)
            nisa.activation(dst=part, op=nl.exp, data=tiles[i][:, j * 2048 : (j + 1) * 2048])
            nisa.dma_copy(dst=out[i, :, j * 2048 : (j + 1) * 2048], src=part)
    return out
"""
    arguments = [ArrayArgument((tiles, 128, 16384), "float32")]
    found, refusals = explore_rewrites(read_kernel(source, arguments, TARGET), arguments, TARGET)
    widths = {child.choice["width"] for child in found if child.transform.id == "retile"}
    assert widths == ({4096, 8192, 16384} if spills else {4096})
    assert any(reason.startswith("retile j: SBUF: ") for reason in refusals) is not spills
