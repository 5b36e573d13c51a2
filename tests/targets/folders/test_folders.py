"""Folders as targets: what is wrong with one is said at once; a command's answers are believed no further
than its outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_core.prompting import builtin_prompts, prompts_for
from seeds import build_problem
from state.model import Verdict
from targets.base import UnknownTargetError
from targets.folders.description import TargetFolderError, read_folder
from targets.registry import describe_change, find_target, load_target
from tests.targets.c.kernels import PROBLEM
from tests.targets.folders.command_target import KERNEL
from tests.targets.folders.conftest import FolderJudge, Judged

AFFINE_PROBLEM = {**PROBLEM, "kernel.affine": KERNEL.encode()}


def edit(folder: Path, file: str, old: str, new: str) -> None:
    path = folder / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("target.toml", "format = 1", "format = 2", "format"),
        ("target.toml", "bandwidth_gb_s = 256", "bandwidth_gb_s = 0", "rates.bandwidth_gb_s"),
        ("target.toml", "counts =", "count =", "c.count: unknown key"),
        ("target.toml", 'counts = "instructions"\n', "", "come together"),
        ("target.toml", "[c]", "[d]", "d: unknown key"),
        ("target.toml", 'name = "riscv64"', 'name = "../x"', "name"),
        ("target.toml", "[rates]", "[rates", "not TOML"),
        ("menu.toml", 'title = "Vectorise"\n', "", "vectorise: title: required"),
        ("items.toml", "[architecture]", "[architectures]", "architecture.md has no entry"),
    ],
)
def test_every_fault_of_a_folder_is_named(own_folder: Path, file: str, old: str, new: str, said: str) -> None:
    edit(own_folder, file, old, new)
    with pytest.raises(TargetFolderError) as caught:
        read_folder(own_folder)
    assert said in str(caught.value)
    assert str(own_folder) in str(caught.value)


def test_what_is_no_folder_of_a_target_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnknownTargetError, match=r"there is no target\.toml"):
        load_target(str(tmp_path))
    assert find_target(str(tmp_path / "gone")) is None
    with pytest.raises(UnknownTargetError, match="absolute path"):
        load_target("targets/folders/riscv64")


def test_a_changed_folder_is_another_target_to_a_run_that_goes_on(own_folder: Path) -> None:
    began = f"a compiler, {load_target(str(own_folder)).identity}"
    assert describe_change(str(own_folder), began) is None
    edit(own_folder, "prompts/architecture.md", "32 of 256 bits", "32 of 512 bits")
    said = describe_change(str(own_folder), began)
    assert said is not None
    assert "has changed since the run began" in said
    assert began in said
    assert list(read_folder(own_folder).changed_items()) == ["architecture"]
    assert describe_change("trn2", "") is None


def test_files_of_editors_and_caches_change_nothing(own_folder: Path) -> None:
    before = read_folder(own_folder).digest
    for name in (".swp", "menu.toml~", "__pycache__/evaluate.pyc"):
        (own_folder / name).parent.mkdir(exist_ok=True)
        (own_folder / name).write_text("x")
    assert read_folder(own_folder).digest == before


def test_models_are_told_the_folder_s_words_and_what_c_shares(own_folder: Path) -> None:
    name = str(own_folder)
    told = prompts_for(builtin_prompts(), name)
    text = "".join(block.text for block in told.role_blocks("planner", name))
    assert "32 of 256 bits" in text
    assert "void kernel(...)" in text
    assert builtin_prompts().version != told.version
    assert prompts_for(builtin_prompts(), "x86") is builtin_prompts()


@pytest.mark.parametrize(
    ("text", "verdict", "code"),
    [
        (KERNEL, Verdict.CORRECT, None),
        (KERNEL.replace("shift = 1", "shift = 3"), Verdict.INCORRECT, None),
        (KERNEL.replace("shift = 1", "short = 1\nshift = 1"), Verdict.INCORRECT, "wrong_size"),
        (KERNEL.replace("shift = 1", ""), Verdict.COMPILE_ERROR, "no_shift"),
        ("scale = 2\n", Verdict.LINT_ERROR, "no_kernel"),
    ],
)
def test_a_command_runs_kernels_and_home_judges_them(
    judge: FolderJudge, command_folder: Path, text: str, verdict: Verdict, code: str | None
) -> None:
    found = judge(command_folder, text, problem=build_problem(AFFINE_PROBLEM))
    assert found.verdict is verdict, found.error
    assert code is None or (found.error is not None and found.error.code == code)
    if verdict is Verdict.CORRECT:
        assert found.latency_ms == 0.5
        assert found.evaluation.benchmark is not None
        assert not found.evaluation.benchmark.predicted
        assert found.counters["cycles"] == 12
        assert found.evaluation.bottleneck == "cycles"


@pytest.mark.parametrize(
    ("word", "said"), [("garbage", "answer is wrong"), ("breaks", "the board does not answer")]
)
def test_a_command_that_fails_is_no_fault_of_the_kernel(
    judge: FolderJudge, command_folder: Path, word: str, said: str
) -> None:
    from remote.errors import InfrastructureError

    with pytest.raises(InfrastructureError, match=said):
        judge(command_folder, f"{KERNEL}{word} = 1\n", problem=build_problem(AFFINE_PROBLEM))


def test_a_command_that_hangs_is_a_timeout(judge: FolderJudge, command_folder: Path) -> None:
    edit(command_folder, "target.toml", "deadline_s = 20", "deadline_s = 1")
    found = judge(command_folder, f"{KERNEL}hangs = 1\n", problem=build_problem(AFFINE_PROBLEM))
    assert found.verdict is Verdict.TIMEOUT


def test_a_verdict_says_that_the_folder_changed(judge: FolderJudge, command_folder: Path) -> None:
    problem = build_problem(AFFINE_PROBLEM)
    first = judge(command_folder, KERNEL, problem=problem)
    same = judge(command_folder, KERNEL, problem=problem, toolchain=first.evaluation.toolchain)
    edit(command_folder, "target.toml", "version = 2", "version = 3")
    later = judge(command_folder, KERNEL, problem=problem, toolchain=first.evaluation.toolchain)
    assert warning_codes(same) == []
    assert warning_codes(later) == ["target_changed"]


def warning_codes(found: Judged) -> list[str]:
    return [one.code for one in found.evaluation.warnings]
