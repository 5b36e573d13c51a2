"""What every target owes: facts, a language, starting kernels, and parts that can be imported."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import remote
import seeds
from agent_core import proposers
from agent_core.prompting import builtin_prompts, prompts_for
from daemon.commands import create_run
from daemon.errors import CommandRefused
from daemon.workers import Workers
from prompts.template import find_word_names
from remote import registry as evaluators
from remote.registry import create_evaluator, evaluator_names, require_evaluator
from seeds.spec import ProblemWork
from state.log import EventLog
from state.model import RunConfig, SearchConfig
from targets import registry
from targets.base import SourceError, Target, UnknownTargetError, import_part
from targets.folders.target import SHIPPED
from targets.registry import find_target, load_target, target_names
from tests.support import fakes
from tests.targets.folders.command_target import KERNEL as AFFINE_KERNEL
from tests.targets.folders.command_target import write_command_target

ROOT = Path(__file__).parents[2]

PROBLEM = {
    "problem.toml": b"""
name = "double"
formula = "out = 2 x"
rel_l2 = 1e-5
seeds = [0]
shape_generic = true
sizes = { full = { N = 4096 }, reduced = { N = 256 } }
work = { other_flops = "N" }
[[inputs]]
name = "x"
shape = ["N"]
[[outputs]]
name = "out"
shape = ["N"]
""",
    "reference.py": b"def reference(x):\n    return 2 * x\n",
    "kernel.toy": b"scale = 2.0\nunroll = 1\n",
    "kernel.affine": AFFINE_KERNEL.encode(),
}
DEVICE_PARTS = ("probe_device", "compile_kernel", "open_device")
WORK = ProblemWork(
    read_bytes=1 << 30,
    write_bytes=1 << 30,
    matmul_flops=0,
    matmul_dtype="float32",
    other_flops=1 << 30,
    activation_elements=1 << 20,
    elementwise_elements=1 << 20,
)


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the toy target beside those that the program brings."""
    monkeypatch.setitem(registry._MODULES, "toy", "tests.support.toy_target")


def copy_riscv64(folder: Path) -> Path:
    return Path(shutil.copytree(SHIPPED / "riscv64", folder))


FOLDERS = {"a folder in C": copy_riscv64, "a folder with a command": write_command_target}


@pytest.fixture(params=[*target_names(), "toy", *FOLDERS])
def target(request: pytest.FixtureRequest, toy: None, tmp_path: Path) -> Target:
    make_folder = FOLDERS.get(request.param)
    return load_target(request.param if make_folder is None else str(make_folder(tmp_path / "mine")))


@pytest.fixture
def kernels(target: Target) -> Iterator[bytes]:
    """The starting kernels of the built-in problems that begin in the target's language."""
    problems = [seeds.load_problem(name) for name in seeds.builtin_problems()]
    file = target.language.kernel_file
    found = [one.files[file] for one in [*problems, seeds.build_problem(PROBLEM)] if file in one.files]
    assert found, f"no problem begins in {target.language.name}"
    return found


def test_it_has_names_and_positive_facts(target):
    assert find_target(target.name) is not None
    assert all((target.family, target.title, target.roofline_name, target.language.name))
    assert min(target.peaks.bandwidth_gb_s, target.peaks.matmul_tflops, target.peaks.other_gflops) > 0
    assert target.peaks.roofline_ms(WORK) > 0
    assert target.tight_bound_ms(WORK) > 0
    assert all(peak > 0 for peak in target.engine_peaks().values())
    counters = target.profile.counters
    assert len(set(counters)) == len(counters) > 0
    assert target.engine_peaks().keys() <= {share.part for share in target.profile.shares}
    assert all(share.title and share.counter for share in target.profile.shares)


def test_its_language_reads_its_own_kernels(target, kernels):
    language = target.language
    for source in kernels:
        assert language.lint(source) is None
        assert language.kernel_names(source.decode())
        assert language.operators(source.decode())
        assert language.code_digest(source) == language.code_digest(source + b"\n\n")
        assert language.code_digest(source) != language.code_digest(source.replace(b"2", b"3"))


@pytest.mark.parametrize("source", ["def (", "\0", "no kernel at all !"])
def test_its_language_refuses_what_is_no_kernel_and_never_fails_otherwise(target, source):
    language = target.language
    error = language.lint(source.encode())
    assert error is not None
    assert error.code
    assert language.operators(source) == frozenset()
    assert len(language.code_digest(source.encode())) == 64
    with pytest.raises(SourceError) as caught:
        language.kernel_names(source)
    assert caught.value.code


def test_its_menu_names_its_rewrites(target):
    menu = target.menu()
    assert menu
    assert all(name == one.id and one.title and one.description for name, one in menu.items())
    assert set(target.rewrites()) <= set(menu)


def test_its_parts_are_where_it_says(target):
    parts = target.parts
    for name, entry in parts.proposers.items():
        made = proposers.create_proposer(name)
        assert (made.name, made.repairs) == (name, entry.repairs)
        proposers.require_known_proposer(name, target.name)
    for kind in parts.evaluators:
        assert kind in evaluator_names()
    devices = parts.hosts.devices.values() if parts.hosts is not None else ()
    named = [*parts.evaluators.values(), parts.tracer, parts.judge, parts.tuner]
    named += [part for device in devices for part in (device.home, device.worker)]
    assert all(import_part(part) for part in named if part is not None)


def test_models_are_told_of_it_in_all_its_words(target):
    if target.parts.prompts is None and target.parts.prompt_pack is None:
        return
    own = prompts_for(builtin_prompts(), target.name)
    pack = own.manifest.pack_of(target.name)
    shared = (text for path, text in own.files.items() if path.endswith(".md"))
    wanted = {name for text in shared for _, name in find_word_names(text)}
    assert (pack.family, pack.words.keys() >= wanted) == (target.family, True)
    assert pack.words["fence"] == target.language.fence
    for role in own.manifest.roles:
        told = "".join(block.text for block in own.role_blocks(role, target.name))
        assert list(find_word_names(told)) == []


def test_what_its_hosts_need_is_there(target):
    hosts = target.parts.hosts
    if hosts is None:
        return
    assert (ROOT / hosts.setup_script).is_file()
    assert set(hosts.instances.values()) <= set(target_names())
    shipped = [device.worker for device in hosts.devices.values()]
    assert all(name.startswith(f"{hosts.package}.") for name in shipped)
    assert all(callable(import_part(f"{name}:{part}")) for name in shipped for part in DEVICE_PARTS)


def test_something_judges_its_kernels_and_something_proposes_them(target):
    suited = []
    for kind in evaluator_names():
        try:
            require_evaluator(kind, target.name)
        except remote.RemoteError:
            continue
        suited.append(kind)
    assert suited
    assert target.parts.proposers


def test_loading_it_imports_nothing_heavy(target, loaded_modules):
    heavy = {"nki_sim", "libcst", "numpy", "anthropic", "openai", "asyncssh"}
    if target.name != "toy":
        assert (
            loaded_modules(f"from targets.registry import load_target; load_target({target.name!r})") & heavy
            == set()
        )


@pytest.fixture
def loaded_modules():
    """Returns the top-level modules that a new process has loaded after some code."""
    import json

    def run(code: str) -> set[str]:
        script = f"import sys, json; {code}; print(json.dumps([m for m in sys.modules if '.' not in m]))"
        root = Path(__file__).parents[2]
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True
        )
        return set(json.loads(done.stdout))

    return run


def test_the_toy_target_is_optimised_by_a_whole_run(home: Path) -> None:
    config = RunConfig(
        problem="double",
        size="reduced",
        target="toy",
        evaluator="toy",
        planner=("unroll",),
        search=SearchConfig(beam=2, plans=5, rounds=2, explorers=0, within_percent=0),
    )
    submit = fakes.Submit.model_construct(verb="submit", config=config, files=PROBLEM, kernel=None)
    run = fakes.run_id(fakes.put_command(home, submit), "double")
    workers = Workers(
        create_evaluator=lambda wanted: create_evaluator(wanted, home=home),
        create_proposer=proposers.create_proposer,
    )
    fakes.finish_runs(home, run, workers=workers)
    with EventLog.open(home) as log:
        state = log.run_state(run)
        best = log.get_blob(state.best.source)
    assert state.has_ended
    assert best == b"scale = 2.0\nunroll = 8\n"
    assert state.initial.latency_ms / state.best.latency_ms == pytest.approx(1.7)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"planner": ("builtin",)}, "does not serve toy"),
        ({"evaluator": "sim"}, "does not judge kernels of toy"),
        ({"target": "trn2", "evaluator": "toy", "planner": ("builtin",)}, "does not judge kernels of trn2"),
        ({"target": "trn2", "evaluator": "fake", "planner": ("scripted",)}, "has no kernel.py to start from"),
    ],
)
def test_what_does_not_serve_a_target_is_refused_by_name(home, changes, said, monkeypatch):
    monkeypatch.setitem(evaluators._EVALUATORS, "fake", lambda wanted, means: fakes.FakeEvaluator())
    config = RunConfig(problem="double", size="reduced", target="toy", evaluator="toy", planner=("unroll",))
    submit = fakes.Submit.model_construct(
        verb="submit", config=config.model_copy(update=changes), files=PROBLEM, kernel=None
    )
    with pytest.raises(CommandRefused, match=said):
        create_run(submit, fakes.fake_workers())


def test_an_unknown_target_names_those_that_there_are():
    with pytest.raises(
        UnknownTargetError, match=r"unknown target 'trn9'.*known: arm64, riscv64, toy, trn1, trn2, trn3, x86"
    ):
        load_target("trn9")
