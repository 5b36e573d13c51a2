"""The drivers of public corpora, on small corpora made here: what is found, what is correct, and why not."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compat
from benchmarks.corpora import ledger, missing, pairs, processes, sources
from benchmarks.corpora.outcome import OVER, Outcome, lines, report
from benchmarks.corpora.processes import Command, Ended, Limits

LIMITS = Limits(seconds=60, data_bytes=4 << 30)

KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def {name}(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0={factor})
    nisa.dma_copy(dst=out, src=tile)
    return out
"""

REFERENCE = """
import numpy as np

def get_inputs():
    return [np.random.normal(size=(128, 16)).astype(np.float32)]

def forward(x):
    return x * 2
"""


def kernel(path: Path, *, name: str = "kernel", factor: str = "2.0") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(KERNEL.format(name=name, factor=factor))


def result_of(capsys: Any, *argv: Any) -> tuple[int, dict[str, Any]]:
    status = compat.main([str(item) for item in (*argv, "--json", "--jobs", 1, "--timeout", 60)])
    return status, json.loads(capsys.readouterr().out)


def reasons(result: dict[str, Any]) -> dict[str, str]:
    return {item["kernel"]: item["reason"] for item in result["kernels"]}


# -- pairs of files --------------------------------------------------------------------------------


@pytest.mark.slow
def test_pairs_are_run_and_compared(tmp_path: Path, capsys: Any) -> None:
    for name, factor in (("right", "2.0"), ("wrong", "2.5"), ("broken", "nothing")):
        kernel(tmp_path / f"{name}.py", factor=factor)
        (tmp_path / f"{name}_reference.py").write_text(REFERENCE)
    kernel(tmp_path / "lonely.py")
    status, result = result_of(capsys, "--corpus", tmp_path, "--kind", "kernels")
    assert (status, result["found"], result["traced"], result["correct"]) == (1, 4, 2, 1)
    why = reasons(result)
    assert why["right"] == ""
    assert why["wrong"].startswith("relative L2 {'0': 0.2")
    assert "line 12: kernel_exception: NameError" in why["broken"]
    assert why["lonely"] == "no reference beside it"
    status, result = result_of(capsys, "--corpus", tmp_path, "--kind", "kernels", "--only", "righ*")
    assert (status, result["found"]) == (0, 1)


def test_nkibenchs_files_are_paired_by_problem_with_its_tolerances(tmp_path: Path) -> None:
    for place in ("NKIBench/kernels/silu_M1_0.py", "NKIBench/kernels/mamba_M1_0.py"):
        kernel(tmp_path / place)
    (tmp_path / "NKIBench/reference").mkdir()
    (tmp_path / "NKIBench/reference/mamba_M1_numpy_1.py").write_text(REFERENCE)
    found = list(pairs.nkibench(tmp_path))
    assert [(item.name, item.reference is None, item.tolerance) for item in found] == [
        ("mamba_M1_0", False, 3e-5),
        ("silu_M1_0", True, 2e-5),
    ]


def test_an_empty_corpus_is_usage(tmp_path: Path, capsys: Any) -> None:
    assert compat.main(["--corpus", str(tmp_path), "--kind", "kernels"]) == 2
    assert compat.main(["--corpus", str(tmp_path / "none"), "--kind", "kernels"]) == 2
    assert "is not a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ended", "traced", "reason"),
    [
        (Ended(None, "", "", 9.0, 1.0), False, "time is over"),
        (Ended(-9, "", "", 9.0, 1.0), False, "exit status -9: no output"),
        (Ended(1, "no json", "what\nMemoryError\n", 9.0, 1.0), False, "exit status 1: MemoryError"),
    ],
)
def test_a_process_that_reports_nothing_says_how_it_ended(ended: Ended, traced: bool, reason: str) -> None:
    outcome = pairs.classify_ended("it", ended)
    assert (outcome.traced, outcome.good, outcome.reason) == (traced, False, reason)


# -- processes -------------------------------------------------------------------------------------


def python(code: str) -> Command:
    return Command([sys.executable, "-c", code])


def test_a_child_gives_status_output_and_peak_memory() -> None:
    ended = processes.run(python("import sys; print('out'); sys.exit('err')"), LIMITS)
    assert (ended.status, ended.out.strip(), ended.err.strip()) == (1, "out", "err")
    assert ended.peak_mib > 1


@pytest.mark.slow
def test_a_child_and_its_children_end_when_time_is_over(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    shell = Command(["/bin/sh", "-c", f"sleep 600 & echo $! > {marker}; sleep 600"])
    ended = processes.run(shell, Limits(seconds=1.0, data_bytes=1 << 30))
    assert ended.status is None
    stat = Path(f"/proc/{marker.read_text().strip()}/stat")
    until = time.monotonic() + 60
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until, "it still runs"
        time.sleep(0.01)


@pytest.mark.slow
def test_a_child_that_goes_on_writing_gets_more_time(tmp_path: Path) -> None:
    written = tmp_path / "events"
    shell = Command(["/bin/sh", "-c", f"echo one > {written}; sleep 2"])
    assert processes.run(shell, Limits(seconds=1.0, data_bytes=1 << 30)).status is None
    assert processes.run(shell, Limits(seconds=1.0, data_bytes=1 << 30), written).status == 0


def test_a_child_gets_no_more_memory_than_it_may_have() -> None:
    ended = processes.run(python("x = bytearray(1 << 30)"), Limits(seconds=30, data_bytes=256 << 20))
    assert ended.status == 1
    assert "MemoryError" in ended.err


def test_results_come_in_the_order_of_the_items() -> None:
    assert processes.each(lambda item: item * 2, [3, 1, 2], 2) == [6, 2, 4]


# -- verdicts --------------------------------------------------------------------------------------


def book_of(tmp_path: Path, *names: str) -> ledger.Ledger:
    file = tmp_path / "some_kernels.py"
    file.write_text("".join(KERNEL.format(name=name, factor="1") for name in names))
    return ledger.Ledger([file], tmp_path)


def ran(name: str) -> list[dict[str, Any]]:
    return [{"event": "kernel", "name": name, "state": state} for state in ("started", "traced", "ran")]


def parse_report(text: str) -> dict[str, Any]:
    return {"event": "line", "text": text}


def by_name(book: ledger.Ledger) -> dict[str, Outcome]:
    return {item.kernel.rpartition(":")[2]: item for item in book.outcomes()}


def test_a_scripts_words_judge_the_kernels_before_them(tmp_path: Path) -> None:
    book = book_of(tmp_path, "first", "second", "third")
    events = [
        *ran("first"),
        parse_report("NKI and NumPy match"),
        *ran("second"),
        parse_report("NKI and NumPy differ"),
    ]
    events += [*ran("third"), {"event": "ended", "good": True, "reason": ""}]
    ledger.of_script(book, events, asserts=False, end="died")
    found = by_name(book)
    assert [found[name].correct for name in ("first", "second", "third")] == [True, False, None]
    assert found["second"].reason == "NKI and NumPy differ"
    assert found["third"].reason == "the script compares it with nothing"


def test_an_assertion_judges_what_no_word_did(tmp_path: Path) -> None:
    for good, reason in ((True, ""), (False, "AssertionError: ")):
        book = book_of(tmp_path, "first")
        events = [*ran("first"), {"event": "ended", "good": good, "reason": reason}]
        ledger.of_script(book, events, asserts=True, end="died")
        assert by_name(book)["first"].good is good


def test_kernels_of_a_process_that_died_are_not_correct(tmp_path: Path) -> None:
    book = book_of(tmp_path, "first")
    ledger.of_script(book, ran("first")[:1], asserts=True, end="time is over")
    outcome = by_name(book)["first"]
    assert (outcome.traced, outcome.correct, outcome.reason) == (False, False, "time is over")


def test_a_refused_kernel_is_wrong_unless_a_test_wants_it_refused(tmp_path: Path) -> None:
    book = book_of(tmp_path, "first")
    events = [{"event": "kernel", "name": "first", "state": "started"}]
    events += [{"event": "kernel", "name": "first", "state": "failed", "reason": "KernelError: no"}]
    test = {"event": "test", "name": "t", "reason": "no"}
    ledger.of_tests(book, [*ran("first"), {**test, "outcome": "passed"}], end="died")
    ledger.of_tests(book, [*events, {**test, "outcome": "passed"}], end="died")
    assert by_name(book)["first"].good
    ledger.of_tests(book, [*events, {**test, "outcome": "failed"}], end="died")
    assert (by_name(book)["first"].good, by_name(book)["first"].reason) == (False, "KernelError: no")


def test_a_kernel_that_is_always_refused_is_not_correct(tmp_path: Path) -> None:
    book = book_of(tmp_path, "first")
    refused = {"event": "kernel", "name": "first", "state": "failed", "reason": "KernelError: no"}
    ledger.of_tests(book, [refused, {"event": "test", "outcome": "passed", "reason": ""}], end="died")
    assert not by_name(book)["first"].good


def test_wrong_once_is_wrong_and_the_first_reason_is_kept() -> None:
    outcome = Outcome("it")
    outcome.add(traced=True, correct=True, reason="")
    outcome.add(traced=True, correct=False, reason="the first")
    outcome.add(traced=True, correct=False, reason="the second")
    outcome.add(traced=True, correct=True, reason="")
    assert (outcome.good, outcome.reason, outcome.runs, outcome.failures) == (False, "the first", 4, 2)
    assert any("the first" in line for line in lines(report("kernels", "here", "trn2", [outcome])))


def test_modules_that_fail_blame_the_kernels_they_name(tmp_path: Path) -> None:
    book = book_of(tmp_path, "first", "second")
    module = tmp_path / "test_x.py"
    module.write_text("from elsewhere import first\n")
    book.blame(module, "ImportError", called=False)
    found = by_name(book)
    assert found["first"].reason == "test_x.py: ImportError"
    assert found["second"].reason == "nothing in the corpus runs it"


@pytest.mark.parametrize(
    ("text", "complaint", "called", "extra"),
    [
        ("import elsewhere\n", OVER, False, {"test_x": "test_x.py: time is over"}),
        ("import elsewhere\n", OVER, True, {}),
        ("import elsewhere\n", "no test was run", False, {}),
        ("from elsewhere import first\n", OVER, False, {"first": "test_x.py: time is over"}),
        ("from elsewhere import first\n", OVER, True, {"first": "test_x.py: time is over"}),
    ],
)
def test_what_time_ended_is_among_the_kernels_found(
    text: str, complaint: str, called: bool, extra: dict[str, str], tmp_path: Path
) -> None:
    book = book_of(tmp_path, "first")
    module = tmp_path / "test_x.py"
    module.write_text(text)
    book.blame(module, complaint, called=called)
    assert {name: item.reason for name, item in by_name(book).items() if item.reason[:4] != "noth"} == extra


SLOW = """
import time

def test_slow():
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_module_that_time_ended_is_counted(tmp_path: Path, capsys: Any) -> None:
    place = tmp_path / "test/integration/nkilib/core/norm/test_slow_norm.py"
    place.parent.mkdir(parents=True)
    place.write_text(SLOW)
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n"
        "    for name in ('test-mode', 'output-directory', 'platform-target'):\n"
        "        parser.addoption('--' + name)\n"
    )
    arguments = ["--corpus", tmp_path, "--kind", "nki-library", "--json", "--timeout", 4, "--only"]
    assert compat.main([str(item) for item in (*arguments, "*slow_norm*")]) == 1
    result = json.loads(capsys.readouterr().out)
    assert reasons(result) == {"test_slow_norm": "test_slow_norm.py: time is over"}
    assert compat.main([str(item) for item in (*arguments, "*fast_norm*")]) == 2
    capsys.readouterr()


@pytest.mark.parametrize(
    "pattern", ["*slow_norm*", "slow_norm", "test_slow_norm", "*/norm/*.py", "test_*.py", None]
)
def test_only_takes_patterns_and_parts_of_names(pattern: str | None) -> None:
    assert sources.is_selected("core/norm/test_slow_norm.py", pattern)
    assert not sources.is_selected("core/norm/test_slow_norm.py", "slow_norm*")


# -- what files say --------------------------------------------------------------------------------


def test_kernels_are_found_by_their_decorators(tmp_path: Path) -> None:
    file = tmp_path / "many.py"
    file.write_text(
        "@nki.jit\ndef a(): ...\n@nki.jit(mode='x')\ndef b(): ...\n@jit\ndef c(): ...\n"
        "@nki.compiler.skip\n@nki.baremetal\ndef d(): ...\n@functools.cache\ndef e(): ...\ndef f(): ...\n"
    )
    assert sources.kernels(file) == ["a", "b", "c", "d"]
    file.write_text("def broken(:")
    assert sources.kernels(file) == []


@pytest.mark.parametrize(
    ("text", "acts"),
    [
        ("import x\nA = 1\ndef f(): ...\n", False),
        ("'''doc'''\n", False),
        ("if __name__ == '__main__':\n    f()\n", True),
        ("f()\n", True),
    ],
)
def test_scripts_are_files_that_do_something(text: str, acts: bool, tmp_path: Path) -> None:
    file = tmp_path / "it.py"
    file.write_text(text)
    assert sources.acts(file) is acts


def test_absent_packages_are_hollow_until_they_are_used(tmp_path: Path) -> None:
    corpus = tmp_path / "pack"
    corpus.mkdir()
    (corpus / "__init__.py").touch()
    user = corpus / "user.py"
    user.write_text(
        "import no_such_client.deep as client\nfrom .gone import thing\nimport torch\nimport json\n"
        "class Mine(client.Base): pass\n"
        "try:\n    Mine()\n    json.loads('[1]')\nexcept client.Error:\n    pass\n"
        "try:\n    client.connect()\nexcept ModuleNotFoundError as error:\n    print(error)\n"
    )
    names = missing.absent(missing.imported_by([user], tmp_path), [tmp_path])
    assert names == {"no_such_client", "pack.gone"}
    code = (
        "import sys; sys.modules['torch'] = sys\nfrom benchmarks.corpora import missing; missing.install()\n"
        "import pack.user"
    )
    root = Path(compat.__file__).parents[1]
    variables = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{root}", missing.VARIABLE: ",".join(names)}
    ended = processes.run(Command([sys.executable, "-c", code], variables), LIMITS)
    assert (ended.err, ended.out.strip()) == ("", "needs the package no_such_client.deep")


# -- corpora with scripts and tests of their own ---------------------------------------------------

SCRIPT = """
import numpy as np
from doubling import {name}

def check(mode, kernel):
    x = np.ones((128, 16), dtype=np.float32)
    assert np.allclose(kernel(x), 2 * x), mode

check("accuracy", {name})
"""

TEST = """
import numpy as np
import pytest
import nki
from pack.tripling import triple


@pytest.mark.simulation
@pytest.mark.parametrize("factor", [3, 3, 2, 3])
def test_triple(factor):
    x = np.ones((128, 16), dtype=np.float32)
    assert np.allclose(nki.simulate(triple)(x), factor * x)
"""

CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--simulation-only", action="store_true")

def pytest_configure(config):
    config.addinivalue_line("markers", "simulation: runs without a device")
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout laid out as nki-samples is."""
    tutorial = tmp_path / "src/pack/tutorials/double"
    kernel(tutorial / "doubling.py", name="double")
    both = (tutorial / "doubling.py").read_text() + KERNEL.format(name="double_badly", factor="2.5")
    (tutorial / "doubling.py").write_text(both)
    (tutorial / "run_double.py").write_text(SCRIPT.format(name="double").replace("import double", "import *"))
    kernel(tmp_path / "src/pack/tripling.py", name="triple", factor="3.0")
    for folder in (tmp_path / "test/unit", tmp_path / "src/pack"):
        folder.mkdir(parents=True, exist_ok=True)
    (tmp_path / "test/unit/test_triple.py").write_text(TEST)
    (tmp_path / "test/unit/conftest.py").write_text(CONFTEST)
    return tmp_path


@pytest.mark.slow
def test_scripts_and_marked_tests_of_a_checkout_are_run(checkout: Path, capsys: Any) -> None:
    status, result = result_of(capsys, "--corpus", checkout, "--kind", "nki-samples", "--tests", 2)
    found = {item["kernel"].rpartition(":")[2]: item for item in result["kernels"]}
    assert {name: item["correct"] for name, item in found.items()} == {
        "double": True,
        "double_badly": False,
        "triple": True,
    }
    assert found["double_badly"]["reason"].startswith("AssertionError: accuracy")
    assert (found["triple"]["runs"], found["triple"]["failures"]) == (2, 0)
    assert (status, result["traced"], result["correct"]) == (1, 3, 2)


SHARING = """
import numpy as np

calls = []

def check(kernel):
    calls.append(kernel)
    assert len(calls) <= 2, "another kernel was here"
    x = np.ones((128, 16), dtype=np.float32)
    assert np.allclose(kernel(x), 2 * x)

check(first)
"""


def test_kernels_of_a_contribution_do_not_see_what_others_left(tmp_path: Path, capsys: Any) -> None:
    script = tmp_path / "contributed/three.py"
    names = ("first", "second", "third")
    kernel(script)
    script.write_text("".join(KERNEL.format(name=name, factor="2.0") for name in names) + SHARING)
    status, result = result_of(capsys, "--corpus", tmp_path, "--kind", "nki-samples")
    assert (status, result["found"], result["correct"]) == (0, 3, 3), reasons(result)


def test_a_script_that_needs_an_absent_package_says_so(checkout: Path, capsys: Any) -> None:
    script = next(checkout.rglob("run_double.py"))
    script.write_text("import jax_that_is_absent\n" + script.read_text())
    _, result = result_of(capsys, "--corpus", checkout, "--kind", "nki-samples", "--only", "run_double")
    assert set(reasons(result).values()) == {"run_double.py: needs the package jax_that_is_absent"}


CHECKED = """
import numpy as np

import nki


def test_kernel():
    x = np.ones((128, 16), np.float32)
    assert np.allclose(nki.simulate(kernel)(x), 2 * x)
"""


def test_a_repository_is_run_by_its_own_tests_and_scripts(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/test_kernels.py").write_text(KERNEL.format(name="kernel", factor="2.0") + CHECKED)
    checked = CHECKED.replace("kernel)", "triple)").replace("test_kernel", "check_triple")
    script = KERNEL.format(name="triple", factor="3.0") + checked
    (tmp_path / "main.py").write_text(f"{script}\n\nif __name__ == '__main__':\n    check_triple()\n")
    (tmp_path / "other.py").write_text("raise SystemExit('it has nothing to do with it')")
    status, result = result_of(capsys, "--corpus", tmp_path, "--kind", "repository")
    assert status == 1
    assert (result["found"], result["traced"], result["correct"]) == (2, 2, 1)
    assert reasons(result) == {"deep/test_kernels.py:kernel": "", "main.py:triple": "AssertionError:"}


HARNESS = """
import numpy as np

import nki

# SUBSTITUTE HERE

if __name__ == "__main__":
    x = np.ones((128, 16), np.float32)
    print("Test passed" if np.allclose(nki.simulate(solution)(x), 2 * x) else "Test failed")
"""


def test_autocomps_solutions_are_put_into_their_harnesses(tmp_path: Path, capsys: Any) -> None:
    harness = tmp_path / "harnesses/trn-small/0_double_test.py"
    harness.parent.mkdir(parents=True)
    harness.write_text(HARNESS)
    for name, factor in (("0_double_ref", "2.0"), ("0_double_slow", "3.0"), ("1_alone_ref", "2.0")):
        kernel(tmp_path / f"sols/trn-small/{name}.py", name="solution", factor=factor)
    status, result = result_of(capsys, "--corpus", tmp_path, "--kind", "autocomp")
    assert status == 1
    assert reasons(result) == {"trn-small/0_double_ref": "", "trn-small/0_double_slow": "Test failed"}
    assert (result["traced"], result["correct"]) == (2, 1)


def test_an_autocomp_problem_says_what_its_harness_lacks(tmp_path: Path, capsys: Any) -> None:
    harness = tmp_path / "harnesses/trn-small/0_double_test.py"
    harness.parent.mkdir(parents=True)
    harness.write_text("import no_such_package\n" + HARNESS)
    kernel(tmp_path / "sols/trn-small/0_double_ref.py", name="solution")
    _, result = result_of(capsys, "--corpus", tmp_path, "--kind", "autocomp")
    assert reasons(result) == {"trn-small/0_double_ref": "needs the package no_such_package"}
