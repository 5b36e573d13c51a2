"""What the program's own prompts say is true: names, arguments, figures, techniques and bottlenecks."""

from __future__ import annotations

import ast
import json
import re
from contextlib import suppress
from pathlib import Path

import pytest

import nki_sim
from nki_sim import ArraySpec, support, targets
from nki_sim.errors import KernelError
from prompts import FileKind, ReviewStatus, read_prompts
from state.model import Prediction
from targets.nki.target import PARTS, read_menu

NKI = read_prompts({"nki": PARTS.prompts})
"""The texts that all targets share, with what NKI adds."""
TEXTS = {path: text for path, text in NKI.files.items() if path.endswith(".md")}
CALLS = {
    (path, call): path for path, text in TEXTS.items() for call in re.findall(r"`(nisa\.\w+\([^`]*\))`", text)
}
INSTRUCTIONS = support.describe_support()["supported"]


@pytest.mark.parametrize("path", TEXTS)
def test_every_name_of_the_interface_exists(path):
    spaces = support.list_namespaces()
    known = {"nisa": spaces["nki.isa"], "nl": spaces["nki.language"]}
    named = set(re.findall(r"\b(nisa|nl)\.([a-z]\w*)", TEXTS[path])) - {("nl", "arange")}  # said to be gone
    assert [f"{module}.{name}" for module, name in sorted(named) if name not in known[module]] == []


@pytest.mark.parametrize(("path", "call"), CALLS)
def test_every_instruction_is_called_with_its_arguments(path, call):
    node = ast.parse(call, mode="eval").body
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Attribute)
    arguments = [text.partition("=")[0] for text in INSTRUCTIONS[node.func.attr]["arguments"]]
    told = [name.id for name in node.args if isinstance(name, ast.Name)]
    told += [keyword.arg for keyword in node.keywords if keyword.arg != "engine"]
    assert [name for name in told if name not in arguments] == []
    places = [arguments.index(name) for name in told]
    assert places == sorted(places)


def test_what_only_one_target_has_is_said_to_be_its_own():
    common = re.findall(r"`nisa\.(\w+)\(", TEXTS["guide/api.md"])
    assert [name for name in common if set(INSTRUCTIONS[name]["targets"]) != set(NKI.manifest.targets)] == []
    for target in NKI.manifest.targets:
        told = re.findall(r"`nisa\.(\w+)\(", TEXTS[f"{target}/api.md"])
        assert [name for name in told if target not in INSTRUCTIONS[name]["targets"]] == []
    for target in ("trn2", "trn3"):
        assert "range_select" in TEXTS[f"{target}/api.md"].split("- ")[1]


def test_the_table_of_instructions_is_read():
    assert len(CALLS) > 25


@pytest.mark.parametrize("target", NKI.manifest.targets)
def test_the_guide_s_figures_are_the_target_s(target):
    device, text = targets.load(target), TEXTS[f"{target}/architecture.md"]
    dma = device.dma_engine_bytes_per_ns
    wanted = [
        f"{device.partitions} partitions of {device.sbuf_partition_bytes >> 10} KiB",
        f"{device.psum_banks} banks of {device.psum_bank_bytes >> 10} KiB",
        *(f"| {device.clock_ghz(engine):g} GHz |" for engine in ("tensor", "vector", "scalar", "gpsimd")),
        f"float32 {device.tensor_fp32_passes} passes",
        f"float32 transposes {device.tensor_fp32_onezero_passes}",
        f"{device.gpsimd_overhead_cycles} + N for patterns",
        f"at most {device.matmul_stationary_max} wide",
        f"at most {device.matmul_moving_max} wide",
        f"{device.dma_engines} engines, {'17' if target == 'trn1' else f'{dma:g}'} GB/s each",
        f"blocks of {device.vector_transpose_max} x {device.vector_transpose_max}",
    ]
    assert [figure for figure in wanted if figure not in text] == []


def told_of(path: str) -> str:
    """A shared text with the words of the targets."""
    blocks = NKI.role_blocks(path.partition("/")[0], "trn2")
    return next(block.text for block in blocks if block.path == path)


def test_the_planner_is_told_every_class_of_bottleneck():
    classes = {name for technique in read_menu().values() for name in technique.bottlenecks} | {"overhead"}
    text = told_of("planner/task.md")
    assert [name for name in classes if f"`{name}`" not in text] == []


def test_the_answers_that_are_asked_for_are_json_that_the_program_can_hold():
    (plan,) = re.findall(r"```json\n(.*?)```", told_of("planner/task.md"), re.DOTALL)
    Prediction.model_validate(json.loads(plan)["prediction"])
    for path in ("summarizer/task.md", "reflector/task.md"):
        (answer,) = re.findall(r"```json\n(.*?)```", TEXTS[path], re.DOTALL)
        assert isinstance(json.loads(answer), dict)


def test_every_file_of_the_folder_is_in_the_manifest():
    root = Path(__file__).parents[4]
    folders = (root / "prompts", root / "targets" / "nki" / "prompts")
    found = [str(path.relative_to(folder)) for folder in folders for path in folder.rglob("*.md")]
    assert sorted(found) == sorted(TEXTS)


ITEMS = NKI.manifest.items


def test_every_file_has_its_version_its_source_and_how_far_it_was_checked():
    assert set(ITEMS) == set(TEXTS)
    assert [path for path, item in ITEMS.items() if item.version < 1 or not item.source] == []
    sections = {kind for kind in FileKind if kind is not FileKind.BLOCK}
    folders = {
        "api": FileKind.API,
        "examples": FileKind.EXAMPLE,
        "menu": FileKind.MENU,
        "planner/approach": FileKind.APPROACH,
        "executor/variation": FileKind.VARIATION,
    }
    for path, item in ITEMS.items():
        assert item.kind is folders.get(path.rpartition("/")[0], FileKind.BLOCK)
        assert (item.kind in sections) == (path not in blocks())


def blocks() -> set[str]:
    manifest = NKI.manifest
    return {
        block.path for role in manifest.roles for target in manifest.targets
        for block in NKI.role_blocks(role, target)
    }  # fmt: skip


def test_texts_without_facts_name_no_instruction_and_those_with_names_say_that_they_were_compared():
    for path, text in TEXTS.items():
        if ITEMS[path].status is ReviewStatus.WORDS:
            assert re.findall(r"\bnisa\.\w+\(", text) == [], path
    compared = {path for path, item in ITEMS.items() if item.status is ReviewStatus.COMPARED}
    assert {path for path, _ in CALLS} - compared <= {"guide/rules.md"}


def test_sections_are_for_targets_that_there_are_and_can_be_called_for():
    for path, item in ITEMS.items():
        assert set(item.targets) <= set(NKI.manifest.targets)
        if item.kind in (FileKind.API, FileKind.EXAMPLE):
            assert item.terms, path
            assert TEXTS[path].startswith("# ")


def test_a_section_s_instructions_are_those_of_its_targets():
    for path, item in ITEMS.items():
        for name in re.findall(r"`nisa\.(\w+)\(", TEXTS[path]) if item.kind is FileKind.API else ():
            assert set(item.targets) <= set(INSTRUCTIONS[name]["targets"]), (path, name)


def test_techniques_for_models_are_not_those_of_the_rewrites_and_name_bottlenecks_that_there_are():
    known = {name for technique in read_menu().values() for name in technique.bottlenecks}
    for target in NKI.manifest.targets:
        for one in NKI.list_sections(FileKind.MENU, target):
            assert one.name not in read_menu(), "an id names a rewrite or a technique for models, not both"
            assert re.fullmatch(r"[a-z][a-z0-9_]{2,39}", one.name)
            assert one.title
            assert one.text
            assert set(one.item.bottlenecks) <= known
            assert one.item.bottlenecks


@pytest.mark.parametrize(
    "words",
    [
        "each with its own in-order queue",
        "disturb each other only in the same PSUM bank",
        "no more than 90 % of the DMA rate",
        "GpSimd also has a DMA of its own",
        "`nl.gather_flattened(",
        "`nl.no_reorder()`",
        "`nisa.range_select(",
        "compute-bound, memory-bound, underutilised",
        "results: nl.shared_hbm only",
        "`neuronxcc.nki`",
        "Operands start at partition 0",
        "the first product of a sum must overwrite",
    ],
)
def test_trainium2_s_rules_interface_and_pitfalls_are_told(words):
    own = [" ".join(text.split()) for path, text in TEXTS.items() if not path.startswith("trn1/")]
    assert any(words in text for text in own)


COPIED = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    made = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.sbuf)
    {}
    nisa.dma_copy(dst=out, src=made)
    return out
"""


@pytest.mark.parametrize(
    ("line", "runs_on"),
    [
        ("nisa.tensor_copy(dst=made, src=tile, engine=nisa.engine.scalar)", {"trn2", "trn3"}),
        (
            "nisa.tensor_scalar(made, tile, nl.multiply, 2, False, nl.add, 1, engine=nisa.engine.scalar)",
            {"trn2", "trn3"},
        ),
        ("nisa.activation(dst=made, op=nl.exp, data=tile, bias=1.0)", {"trn2", "trn3"}),
        ("nisa.activation(dst=made, op=nl.copy, data=tile, scale=2.0)", {"trn1", "trn2", "trn3"}),
    ],
)
def test_what_each_target_s_page_says_of_scalar_is_so(line, runs_on):
    arguments = [ArraySpec((128, 256), "float32")]
    found = set()
    for target in NKI.manifest.targets:
        with suppress(KernelError):
            nki_sim.trace(COPIED.format(line), args=arguments, target=target)
            found.add(target)
    assert found == runs_on
