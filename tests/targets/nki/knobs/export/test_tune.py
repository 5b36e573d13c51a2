"""`agentctl tune`: runs by a judge that takes no time, the files that they leave, every way to be refused."""

from __future__ import annotations

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from agentctl.verbs.tune import _load_workload, _set_target
from daemon.config import load_config
from remote import registry
from state.events import PlanProposed, RoundStarted, RunCompleted
from state.model import StopReason
from state.reader import LogReader
from targets.nki.knobs.export.files import OURS
from targets.nki.knobs.tuning.roofline import peak_flops_per_ms
from tests.support.fakes import TOOLCHAIN
from tests.support.tuning_jobs import WORKLOAD, TextJudge

FEW = (
    "--set", "run.evaluator=fake", "--set", "run.search.beam=2", "--set", "run.search.plans=3",
    "--set", "run.search.lookahead_predictions=10", "--set", "run.search.explorers=0", "--rounds", "2",
)  # fmt: skip
KNOBS = ("--set", 'run.planner=["knobs"]', "--json")


@pytest.fixture
def judge(ctl, monkeypatch) -> TextJudge:
    made = TextJudge()
    monkeypatch.setitem(registry._EVALUATORS, "fake", lambda wanted, means: made)
    return made


@pytest.fixture(scope="module")
def text() -> str:
    return WORKLOAD.replace("TARGET_MFU = 0.25", "TARGET_MFU = 1")


@pytest.fixture
def workload(tmp_path, text) -> Path:
    path = tmp_path / "product.py"
    path.write_text(text)
    return path


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_workload_becomes_a_run_and_files(ctl, home, judge, workload, tmp_path):
    called = ctl("tune", workload, *FEW, *KNOBS)
    assert called.status == 0, called.err
    told = called.json
    assert told["problem"] == "product"
    assert told["cache_root"] == str(tmp_path / "cache")
    assert told["best_ms"] < told["initial_ms"]
    summary = json.loads((tmp_path / "cache" / "summary.json").read_text())
    assert list(summary) == ["function", "run", "baseline", "target_mfu", "tuning"]
    assert (summary["function"], summary["run"]) == ("product", told["id"])
    assert summary["baseline"]["source"] == OURS
    assert summary["baseline"]["min_ms"] == told["initial_ms"]
    assert summary["target_mfu"] == 1.0
    assert list(summary["tuning"]) == ["batch_0", "batch_1"]
    last = summary["tuning"]["batch_1"]
    assert (last["min_ms"], last["predicted"]) == (told["best_ms"], True)
    assert last["running_best_kernel"] == told["best_folder"]
    best = tmp_path / "cache" / last["running_best_kernel"]
    assert (best / "kernel.py").read_bytes() == Path(told["kernel_file"]).read_bytes()
    assert (best / "ir.txt").read_text().startswith("KernelIR(graph=Graph(name='product'")
    result = json.loads((best / "result.json").read_text())
    assert result["cpu_sim"]["passed"] is True
    assert result["predicted"] is True
    assert result["author"] == "knobs"
    first = tmp_path / "cache" / "nkipy_baseline"
    assert json.loads((first / "result.json").read_text())["author"] is None
    assert (first / "log.txt").read_text().startswith(f"kernel r0.b0.p0.k0.f0, {OURS}\n")
    assert result["mfu"] == last["mfu"] == told["mfu"]
    assert result["hardware_output"] is None
    for key in ("mfu_max_achievable_estimated_percent", "roofline_efficiency", "mbu_estimated_percent"):
        assert result[key] > 0

    _rebuilt(ctl, told, tmp_path / "cache", workload)
    with LogReader.open(home) as reader:
        plans = [item.event for item in reader.read(stream=told["id"], types=[PlanProposed.__name__])]
    assert plans
    assert all(event.plan.technique.startswith("knob_") for event in plans)
    calls = dict(judge.calls)
    assert ctl("tune", workload, *FEW, *KNOBS).status == 0
    assert judge.calls == calls, "a second run judges nothing again"


def _rebuilt(ctl, told, root, workload):
    """Deleted files come back from the log as they were, there or elsewhere; others' files are left alone."""
    before = tree(root)
    shutil.rmtree(root)
    assert ctl("tune", workload, "--export", told["id"]).status == 0
    assert tree(root) == before
    stale = root / "batch_7" / "kernel_3"
    stale.mkdir(parents=True)
    (stale / "result.json").write_text("{}")
    (root / "mine.txt").write_text("mine")
    called = ctl("tune", "--export", told["id"], "--into", root, "--json")
    assert called.json["files"] == len(before)
    assert tree(root) == {**before, "mine.txt": b"mine"}
    assert not stale.parent.exists()


@pytest.mark.slow
def test_points_and_edits_compete_in_one_run(ctl, home, judge, workload, tmp_path):
    called = ctl("tune", workload, *FEW, "--json", "--into", tmp_path / "out")
    assert called.status == 0, called.err
    run = called.json["id"]
    with LogReader.open(home) as reader:
        rounds = [item.event for item in reader.read(stream=run, types=[RoundStarted.__name__])]
    planners = [[slot.planner for slot in event.slots] for event in rounds]
    assert planners[0] == ["knobs"]
    assert set(planners[1]) == {"knobs", "builtin"}
    edits = sorted((tmp_path / "out").glob("edit_*/kernel"))
    assert edits
    notes = (edits[0] / "NOTES.md").read_text()
    assert "By `builtin`, from `" in notes
    assert "Predicted before it was judged: " in notes
    title = notes.splitlines()[4].rpartition(" [")[0]
    assert notes.count(title) == 1
    assert not (edits[0] / "ir.txt").exists()


class Impatient(TextJudge):
    """Judges three kernels, and is interrupted by the next."""

    async def evaluate(self, request, blobs, /):
        if sum(self.calls.values()) == 3:
            signal.raise_signal(signal.SIGINT)
        return await super().evaluate(request, blobs)


@pytest.mark.slow
def test_what_an_interrupted_run_wrote_is_brought_up_to_date(ctl, home, monkeypatch, workload, tmp_path):
    judges = {"fake": Impatient()}
    monkeypatch.setitem(registry._EVALUATORS, "fake", lambda wanted, means: judges["fake"])
    called = ctl("tune", workload, *FEW, *KNOBS)
    assert called.status == 130, called.err
    run, root = called.json["id"], tmp_path / "cache"
    again = next(line for line in called.err.splitlines() if line.startswith("What comes later is written"))
    assert again.endswith(f" --export {run} --into {root}")
    judges["fake"] = TextJudge()
    before = tree(root)
    assert ctl("resume", run, "--json").status == 0
    assert tree(root) == before
    assert ctl(*again.partition("agentctl ")[2].split()).status == 0
    resumed = tree(root)
    assert len(resumed) > len(before)
    assert json.loads(resumed["summary.json"])["tuning"]["batch_1"]["min_ms"] is not None


class Device(TextJudge):
    """Measures what others predict."""

    async def evaluate(self, request, blobs, /):
        answer = await super().evaluate(request, blobs)
        timed = answer.evaluation.benchmark
        assert timed is not None
        measured = timed.model_copy(update={"predicted": False, "samples": 7, "draws_ms": ()})
        evaluation = answer.evaluation.model_copy(update={"benchmark": measured})
        return replace(answer, evaluation=evaluation)


@pytest.mark.slow
def test_what_a_device_says_is_told_as_measured(ctl, monkeypatch, workload, tmp_path):
    monkeypatch.setitem(registry._EVALUATORS, "fake", lambda wanted, means: Device())
    called = ctl("tune", workload, *FEW, "--set", 'run.planner=["knobs"]', "--rounds", "1")
    assert called.status == 0, called.err
    assert " % measured" in called.out.splitlines()[-1]
    result = json.loads((tmp_path / "cache" / "nkipy_baseline" / "result.json").read_text())
    assert result["predicted"] is False
    told = result["hardware_output"]
    assert (told["toolchain"], told["samples"]) == (TOOLCHAIN, 7)
    assert told["counters"]["mbu_estimated_percent"] == result["mbu_estimated_percent"] > 0


@pytest.mark.slow
def test_wrong_kernels_are_told_with_what_the_judge_said(ctl, judge, workload, tmp_path):
    judge.wrong = "01234567"
    assert ctl("tune", workload, *FEW, *KNOBS).status == 0
    results = [json.loads(path.read_text()) for path in (tmp_path / "cache").glob("batch_*/*/result.json")]
    wrong = [one for one in results if not one["cpu_sim"]["passed"]]
    assert wrong
    assert len(wrong) < len(results)
    assert {one["cpu_sim"]["error"]["code"] for one in wrong} == {"wrong_result"}
    assert {one["min_ms"] for one in wrong} == {one["mfu"] for one in wrong} == {None}
    logs = "".join(path.read_text() for path in (tmp_path / "cache").glob("batch_*/*/log.txt"))
    assert "incorrect (stage numerics)" in logs
    assert "wrong_result line 3: relative L2 error 1" in logs


@pytest.mark.slow
def test_the_target_ends_the_run(ctl, home, judge, workload, text):
    workload.write_text(text.replace("TARGET_MFU = 1", "TARGET_MFU = 0.0001"))
    called = ctl("tune", workload, *FEW, *KNOBS)
    assert called.json["reason"] == StopReason.TARGET
    assert "target: an MFU of 0.0 %" in called.err
    with LogReader.open(home) as reader:
        (ended,) = reader.read(stream=called.json["id"], types=[RunCompleted.__name__])
        assert reader.run_state(called.json["id"]).config.search.target_ms > 0
    assert "reached the target of" in ended.event.detail


SOFTMAX = """import numpy as np
from nkigym.ops import NKISoftmax


def f_nkigym(x):
    output = NKISoftmax()(data=x)
    return output


def f_numpy(x):
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


INPUT_SPECS = {"x": ((256, 512), "float32")}
CACHE_ROOT, HOSTS, TARGET_MFU = "cache", [], 0.5
"""


def write_for_target(home, path, **given):
    wanted = load_config(home, {}, given)
    return _set_target(wanted, _load_workload(home, path, wanted.config))


def test_knobs_are_searched_beside_whom_the_configuration_file_names(home, workload):
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text('[run]\nplanner = ["scripted"]\n')
    found, _ = write_for_target(home, workload)
    assert found.config.run.planner == ("knobs", "scripted")
    assert found.sources["run.planner"] == "tune"


def test_a_run_begins_from_the_first_point_unless_the_configuration_says_otherwise(home, workload):
    assert load_config(home, {}).config.run.starts == "both"
    assert write_for_target(home, workload)[0].config.run.starts == "kernel"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text('[run]\nstarts = "translation"\n')
    assert write_for_target(home, workload)[0].config.run.starts == "translation"


def test_a_target_below_the_tight_bound_is_named_as_such(home, tmp_path, text):
    path = tmp_path / "product.py"
    path.write_text(text.replace("TARGET_MFU = 1", "TARGET_MFU = 0.99"))
    assert "below the model bound" in write_for_target(home, path)[1]
    path.write_text(text.replace("TARGET_MFU = 1", "TARGET_MFU = 0.1"))
    assert "below the model bound" not in write_for_target(home, path)[1]


def test_a_target_is_a_latency_unless_one_was_given_or_there_is_no_product(home, workload):
    found, note = write_for_target(home, workload)
    flops, ms = 2 * 512 * 512 * 1024, found.config.run.search.target_ms
    assert flops / (ms * peak_flops_per_ms("float32", "trn2")) == pytest.approx(1.0)
    assert note.startswith("target: an MFU of 100.0 %, which is ")
    assert "allows" not in note
    assert found.config.run.planner == ("knobs", "builtin")
    given = {"run.search.target_ms": 2.5, "run.planner": ["builtin"]}
    found, note = write_for_target(home, workload, **given)
    assert found.config.run.search.target_ms == 2.5
    assert found.config.run.planner == ("builtin",)
    assert note == "target: 2.5 ms, by run.search.target_ms, not TARGET_MFU"
    thin = workload.read_text().replace("float32", "bfloat16").replace("512, 512", "512, 64")
    workload.write_text(thin.replace("512, 1024", "64, 1024"))
    assert "; the roofline of trn2 allows " in write_for_target(home, workload)[1]
    workload.write_text(SOFTMAX)
    found, note = write_for_target(home, workload)
    assert found.config.run.search.target_ms is None
    assert "has no products" in note


@pytest.mark.slow
def test_the_small_size_is_a_problem_of_its_own(ctl, home, judge, workload):
    called = ctl("tune", workload, *FEW, *KNOBS, "--size", "reduced", "--rounds", "1")
    assert called.status == 0, called.err
    with LogReader.open(home) as reader:
        state = reader.run_state(called.json["id"])
        source = reader.get_blob(state.initial.source).decode()
    assert "assert lhs.shape == (256, 256)" in source
    assert state.config.size == "reduced"
    told = ctl("status", called.json["id"], "--json")
    assert "full" not in told.out


@pytest.mark.slow
def test_hosts_of_the_workload_are_the_run_s_unless_others_are_named_or_the_simulator_is(
    ctl, home, judge, workload, text
):
    workload.write_text(text.replace("HOSTS = []", 'HOSTS = ["127.0.0.1:1"]'))
    refused = ctl("tune", workload, "--size", "full", *KNOBS)
    assert refused.status == 1
    assert "no host can be used: 127.0.0.1:1: " in refused.err
    assert ctl("tune", workload, *FEW, *KNOBS, "--rounds", "1", "--sim").status == 0


@pytest.mark.parametrize("inside", ["", "deeper"])
def test_a_folder_that_cannot_be_is_said_before_anything_begins(ctl, home, workload, text, inside):
    workload.with_name("file").write_text("where no folder can be")
    place = Path("file", inside)
    workload.write_text(text.replace('"cache"', f'"{place}"'))
    called = ctl("tune", workload, *FEW)
    assert called.status == 2
    assert f"{workload.with_name('file') / inside}: cannot be written: " in called.err
    assert not home.exists()


@pytest.mark.slow
def test_a_folder_that_becomes_a_file_does_not_end_a_run(ctl, judge, workload, tmp_path, monkeypatch):
    def in_the_way(home, root):
        root.write_text("where no folder can be")

    monkeypatch.setattr("targets.nki.knobs.tuner.check_root", in_the_way)
    called = ctl("tune", workload, *FEW, *KNOBS, "--rounds", "1", "--into", tmp_path / "file")
    assert called.status == 0
    assert str(tmp_path / "file") in called.json["cache_error"]


ALONE = """import numpy as np

EPS = 1e-6


def f_numpy(x, w):
    normed = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + EPS)
    return normed @ w


INPUT_SPECS = {"x": ((256, 256), "bfloat16"), "w": ((256, 256), "bfloat16")}
CACHE_ROOT, HOSTS, TARGET_MFU = "cache", [], 1
"""


@pytest.mark.slow
def test_mathematics_alone_is_translated_and_its_knobs_are_searched(ctl, home, judge, tmp_path):
    path = tmp_path / "alone.py"
    path.write_text(ALONE)
    called = ctl("tune", path, *FEW, *KNOBS)
    assert called.status == 0, called.err
    with LogReader.open(home) as reader:
        state = reader.run_state(called.json["id"])
        files = {name: reader.get_blob(digest) for name, digest in state.problem.files.items()}
        plans = [item.event for item in reader.read(types=[PlanProposed.__name__])]
    assert b"nisa.nc_matmul" in files["kernel.py"], "the run begins from the translation"
    assert state.config.starts == "kernel"
    assert b'dtype = "bfloat16"\n\n[work]' in files["problem.toml"], "results have the type of the inputs"
    assert b'matmul_dtype = "bfloat16"' in files["problem.toml"]
    assert plans
    assert all(event.plan.technique.startswith("knob_") for event in plans)
    assert b"NKIMatmul" in files["workload.json"]


@pytest.mark.slow
def test_mathematics_beyond_the_operators_is_tuned_from_its_translation(ctl, home, judge, tmp_path):
    path = tmp_path / "alone.py"
    path.write_text(ALONE.replace("normed @ w", "np.cumsum(normed @ w, axis=1)"))
    called = ctl("tune", path, *FEW, "--json", "--rounds", "1")
    assert called.status == 0, called.err
    assert "knobs are not searched: a constant of the shape (256, 256) is no number" in called.err
    with LogReader.open(home) as reader:
        assert reader.run_state(called.json["id"]).config.planner == ("builtin",)


def test_mathematics_that_has_no_translation_is_named_with_its_line(ctl, tmp_path):
    path = tmp_path / "alone.py"
    path.write_text(ALONE.replace("normed @ w", "np.sort(normed, axis=1) @ w"))
    called = ctl("tune", path)
    assert called.status == 1
    line = "(line 8: return np.sort(normed, axis=1) @ w)"
    assert (
        f"workload {path}: no translation: the reference cannot be followed: it uses np.sort {line}"
        in called.err
    )


def test_mathematics_alone_has_only_its_own_shapes(ctl, home, tmp_path):
    path = tmp_path / "alone.py"
    path.write_text(ALONE)
    called = ctl("tune", path, "--size", "reduced")
    assert called.status == 2
    assert "has no size 'reduced': f_numpy alone is translated at its own shapes" in called.err
    path.write_text(ALONE.replace("f_numpy(x, w)", "f_numpy(x, weight)"))
    called = ctl("tune", path)
    assert "f_numpy: takes x, weight; INPUT_SPECS has x, w" in called.err
    assert not home.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a WORKLOAD, or give --export RUN"),
        (("nothing.py",), "workload nothing.py has 1 fault:\n  - there is no such file"),
        (("WORKLOAD", "--size", "tiny"), "Input should be 'full' or 'reduced'"),
        (("WORKLOAD", "--target", "trn9"), "trn9"),
    ],
)
def test_what_is_asked_wrongly_is_said_before_anything_begins(ctl, home, workload, arguments, message):
    called = ctl("tune", *(workload if item == "WORKLOAD" else item for item in arguments))
    assert called.status == 2
    assert message in called.err
    assert not home.exists()


def test_all_faults_of_a_file_are_told_at_once(ctl, home, workload):
    workload.write_text("HOSTS = []\n")
    called = ctl("tune", workload)
    assert called.status == 2
    assert "has 5 faults:" in called.err
    assert called.err.count("missing") == 5


def test_a_problem_without_a_graph_is_not_planned_by_knobs(ctl, home):
    called = ctl("run", "--problem", "mamba", "--set", 'run.planner=["knobs"]')
    assert called.status == 2
    assert "the problem mamba carries no workload.json" in called.err
    assert not home.exists()


def test_exporting_needs_a_run_and_a_place(ctl, home, finished, workload, tmp_path):
    assert ctl("tune", "--export", "no-such-run").status == 3
    assert "say where" in ctl("tune", "--export", finished).err
    called = ctl("tune", "--export", finished, "--into", tmp_path / "any", "--json")
    assert called.status == 0
    summary = json.loads((tmp_path / "any" / "summary.json").read_text())
    assert summary["baseline"]["source"] == "the initial kernel of the problem"
    assert summary["target_mfu"] is None
    assert (tmp_path / "any" / "edit_0" / "kernel" / "NOTES.md").exists()
