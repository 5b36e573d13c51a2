"""The jail's entry in a process of its own, its requests and replies, the shims and the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nki_sim
from nki_sim import ArraySpec, cli, protocol
from nki_sim.errors import InputError, IRError, KernelError, LimitError
from nki_sim.operators import OPERATORS
from nki_sim.tracer import reply

ARGS = [{"shape": [128, 512], "dtype": "float32"}]
ENDLESS = """
@nki.jit
def kernel(x):
    while True:
        nisa.dma_copy(dst=nl.ndarray((1, 1), nl.float32, nl.sbuf), src=x[0:1, 0:1])
"""


def request(source: str, **fields: Any) -> str:
    return json.dumps({"source": source, "args": ARGS, **fields})


def in_process(text: str) -> tuple[int, bytes, str]:
    """Exit status, reply and standard output of a tracer started as the jail starts it."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "nki_sim.tracer", "--out-fd", str(writing)]
    root = str(Path(nki_sim.__file__).parent.parent)
    with os.fdopen(reading, "rb") as pipe:
        done = subprocess.run(
            command, input=text.encode(), capture_output=True, pass_fds=[writing], timeout=60, check=False,
            env={"PYTHONPATH": root},
        )  # fmt: skip
        os.close(writing)
        data = pipe.read()
    return done.returncode, data, done.stdout.decode()


def test_a_kernel_is_traced_without_numpy_and_may_print(texts: Any) -> None:
    source = texts.source_of(texts.stream()) + "\nimport sys\nprint('numpy' in sys.modules)\n"
    status, data, printed = in_process(request(source, target="trn1"))
    program = protocol.parse_reply(data)
    assert (status, printed.strip(), program.target, len(program)) == (0, "False", "trn1", 4)
    assert (
        program.to_bytes()
        == nki_sim.trace(source, args=[ArraySpec((128, 512), "float32")], target="trn1").to_bytes()
    )


@pytest.mark.parametrize("leave", ["sys.exit(0)", "raise SystemExit", "raise KeyboardInterrupt"])
def test_a_kernel_cannot_end_the_tracer_with_success(leave: str, texts: Any) -> None:
    status, data, _ = in_process(request(texts.source_of(f"import sys\n{leave}\n")))
    assert status == 1
    with pytest.raises(KernelError) as caught:
        protocol.parse_reply(data)
    assert (caught.value.code, caught.value.line) == ("kernel_exit", 7)


def test_a_tracer_that_dies_leaves_no_reply(texts: Any) -> None:
    _, data, _ = in_process(request(texts.source_of("import os\nos._exit(0)\n")))
    assert data == b""
    with pytest.raises(IRError):
        protocol.parse_reply(data)


def test_limits_come_with_the_request(texts: Any) -> None:
    status, data = reply(request(texts.source_of(ENDLESS), limits={"max_instructions": 50}))
    assert status == 1
    with pytest.raises(LimitError) as caught:
        protocol.parse_reply(data)
    assert caught.value.code in {"limit_instructions", "limit_tensors"}


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[]",
        "{}",
        json.dumps({"source": 3}),
        request("", colour="red"),
        request("", entry=3),
        request("", limits={"max_seconds": 3}),
        request("", limits={"max_instructions": 0}),
        json.dumps({"source": "", "args": [{"shape": [0], "dtype": "float32"}]}),
        json.dumps({"source": "", "args": [{"shape": [4], "dtype": "float99"}]}),
        json.dumps({"source": "", "args": [{"value": "text"}]}),
        json.dumps({"source": "", "args": ["x"]}),
    ],
)
def test_requests_that_make_no_sense_are_refused(text: str) -> None:
    status, data = reply(text)
    assert status == 1
    with pytest.raises(InputError):
        protocol.parse_reply(data)


@given(st.binary(max_size=200))
def test_any_reply_gives_only_errors_of_the_tree(noise: bytes) -> None:
    for data in (noise, protocol._HEAD.pack(protocol.MAGIC, b"P", len(noise)) + noise,
                 protocol._HEAD.pack(protocol.MAGIC, b"E", len(noise)) + noise):  # fmt: skip
        with pytest.raises(IRError):
            protocol.parse_reply(data)


def test_a_kernel_that_raises_half_a_character_is_reported_in_words_that_can_be_written(texts: Any) -> None:
    _, data, _ = in_process(request(texts.source_of("raise ValueError('\\ud800')\n")))
    with pytest.raises(KernelError) as caught:
        protocol.parse_reply(data)
    assert "\\ud800" in caught.value.message
    caught.value.message.encode()


def test_a_forged_line_number_is_an_error_of_the_tree() -> None:
    forged = b'{"code": "", "message": "", "hint": "", "type": "KernelError", "line": Infinity}'
    with pytest.raises(IRError):
        protocol.parse_reply(protocol._HEAD.pack(protocol.MAGIC, b"E", len(forged)) + forged)


def test_a_reply_with_something_after_it_is_refused(texts: Any) -> None:
    _, data = reply(request(texts.source_of(texts.stream())))
    protocol.parse_reply(data)
    with pytest.raises(IRError):
        protocol.parse_reply(data + b"x")


# -- shims ---------------------------------------------------------------------------------------


def run_python(code: str, *paths: Path) -> str:
    root = Path(nki_sim.__file__).parent.parent
    env = {"PYTHONPATH": os.pathsep.join(str(path) for path in (*paths, root))}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=env
    )
    return done.stdout.strip()


SHIMS = Path(nki_sim.__file__).parent / "shims"
USE = (
    "import nki, nki.language as nl, nki.isa as nisa; "
    "print(nki.jit.__module__, nl.exp, nisa.nc_matmul.__module__)"
)


def test_the_shims_stand_in_for_an_absent_package() -> None:
    assert run_python(USE, SHIMS) == "nki_sim.frontend.api nl.exp nki_sim.frontend.isa"


def test_a_real_package_wins_over_the_shims(tmp_path: Path) -> None:
    package = tmp_path / "nki"
    package.mkdir()
    (package / "__init__.py").write_text("def jit(f): return f\n")
    (package / "language.py").write_text("exp = 'real'\n")
    (package / "isa.py").write_text("def nc_matmul(): pass\n")
    assert run_python(USE, SHIMS, tmp_path) == "nki real nki.isa"


# -- command line --------------------------------------------------------------------------------


@pytest.fixture
def kernel_file(tmp_path: Path, texts: Any) -> Path:
    path = tmp_path / "stream.py"
    path.write_text(texts.source_of(texts.stream()))
    return path


def command(capsys: Any, *argv: Any) -> tuple[int, str, str]:
    status = cli.main([str(item) for item in argv])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_run_compares_with_a_reference(kernel_file: Path, tmp_path: Path, capsys: Any) -> None:
    reference = tmp_path / "reference.py"
    for factor, status in ((1.0, 0), (1.001, 1)):
        reference.write_text(f"import numpy as np\ndef forward(x): return np.exp(x) * {factor} + x\n")
        argv = ("run", kernel_file, "--arg", "128x512", "--reference", reference, "--seeds", "0,21", "--json")
        found, out, _ = command(capsys, *argv)
        report = json.loads(out)
        assert (found, report["correct"]) == (status, status == 0)
        assert report["rel_l2"].keys() == {"0", "21"}
        assert report["error"] is None
        assert report["counters"]["hbm_read_bytes"] == 128 * 512 * 4


def test_run_without_a_reference_claims_nothing(kernel_file: Path, capsys: Any) -> None:
    status, out, _ = command(capsys, "run", kernel_file, "--arg", "128x512:float32", "--json")
    assert (status, json.loads(out)["correct"]) == (0, None)


def test_a_broken_rule_is_reported_as_incorrect(kernel_file: Path, capsys: Any) -> None:
    status, out, _ = command(capsys, "run", kernel_file, "--arg", "128x600", "--json")
    report = json.loads(out)
    assert (status, report["correct"]) == (1, False)
    assert [item["code"] for item in report["checks"]] == ["tensor_output_not_written_to"]
    assert command(capsys, "trace", kernel_file, "--arg", "128x600")[0] == 1


def test_profile_calls_latency_predicted(kernel_file: Path, capsys: Any) -> None:
    status, out, _ = command(
        capsys, "profile", kernel_file, "--arg", "256x1024", "--target", "trn1", "--json"
    )
    report = json.loads(out)
    assert status == 0
    assert report["predicted"]["lo_ms"] <= report["predicted"]["latency_ms"] <= report["predicted"]["hi_ms"]
    assert report["explanation"]["bottleneck"]
    text = command(capsys, "profile", kernel_file, "--arg", "256x1024")[1]
    assert text.startswith("target: trn2\npredicted:\n  latency_ms: ")


def test_kernel_errors_have_their_own_status(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "bad.py"
    path.write_text("import nki\n\n\n@nki.jit\ndef kernel(x):\n    return 1 / 0\n")
    status, out, _ = command(capsys, "run", path, "--arg", "4x4", "--json")
    report = json.loads(out)
    assert (status, report["correct"], report["error"]["line"]) == (3, False, 6)
    status, _, err = command(capsys, "run", path, "--arg", "4x4")
    assert status == 3
    assert "line 6: kernel_exception: ZeroDivisionError" in err


@pytest.mark.parametrize(
    "argv",
    [
        ("trace", "missing.py"),
        ("trace", "KERNEL", "--arg", "4xfour"),
        ("trace", "KERNEL", "--arg", "4x4:float99"),
        ("trace", "KERNEL", "--arg", "128x512", "--target", "trn9"),
        ("run", "KERNEL", "--arg", "128x512", "--reference", "KERNEL"),
        ("run", "KERNEL", "--arg", "128x512", "--seeds", "a,b"),
        ("run", "KERNEL", "--arg", "128x512", "--seeds", ""),
        ("run", "KERNEL", "--arg", "128x512", "--seeds", "0,-1"),
    ],
)
def test_usage_errors_are_one_line(argv: tuple[str, ...], kernel_file: Path, capsys: Any) -> None:
    if argv[-1] == "KERNEL":
        kernel_file.with_name("empty.py").write_text("x = 1\n")
        argv = (*argv[:-1], str(kernel_file.with_name("empty.py")))
    status, _, err = command(capsys, *[str(kernel_file) if item == "KERNEL" else item for item in argv])
    assert status == 2
    assert err.startswith("nki-sim: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def forward(x): return x[:5]", "arrays of [(5, 512)], the kernel of [(128, 512)]"),
        ("def forward(x): return 1.0", "arrays of [()], the kernel of [(128, 512)]"),
        ("def forward(x): return x, x", "the kernel of [(128, 512)]"),
        ("def forward(): return 0", "the reference raised TypeError"),
        ("def forward(x): return x + y", "the reference raised NameError"),
        ("1 / 0", "the reference raised ZeroDivisionError"),
        ("def forward(x:", "the reference raised SyntaxError"),
    ],
)
def test_a_reference_at_fault_is_usage(
    text: str, message: str, kernel_file: Path, tmp_path: Path, capsys: Any
) -> None:
    reference = tmp_path / "reference.py"
    reference.write_text(text + "\n")
    status, out, err = command(capsys, "run", kernel_file, "--arg", "128x512", "--reference", reference)
    assert (status, out) == (2, "")
    assert message in err


def test_a_kernel_file_that_is_no_text_is_usage(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "binary.py"
    path.write_bytes(b"\xff\xfe\x00")
    status, _, err = command(capsys, "trace", path)
    assert status == 2
    assert err.startswith("nki-sim: ")


def test_profile_applies_the_checks_first(kernel_file: Path, capsys: Any) -> None:
    status, out, _ = command(capsys, "profile", kernel_file, "--arg", "128x600", "--json")
    report = json.loads(out)
    assert status == 1
    assert [item["code"] for item in report["checks"]] == ["tensor_output_not_written_to"]
    assert "predicted" not in report


def test_an_interrupt_while_tracing_ends_the_command(tmp_path: Path) -> None:
    """It is not taken for an exception of the kernel, which may catch what it likes."""
    kernel, started = tmp_path / "endless.py", tmp_path / "started"
    kernel.write_text(
        "import nki\n\n\n@nki.jit\ndef kernel(x):\n"
        f"    open({str(started)!r}, 'w').close()\n"
        "    while True:\n        try:\n            pass\n        except BaseException:\n            pass\n"
    )
    process = subprocess.Popen([sys.executable, "-m", "nki_sim.cli", "run", str(kernel), "--arg", "4x4"])
    try:
        while not started.exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == -signal.SIGINT
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("1e-5", 1e-5), ("2.5", 2.5), ("4x4", ArraySpec((4, 4), "float32")),
     ("8:bfloat16", ArraySpec((8,), "bfloat16")), ("2x3x4:int32", ArraySpec((2, 3, 4), "int32"))],
)  # fmt: skip
def test_arguments_are_shapes_or_numbers(text: str, value: Any) -> None:
    assert cli.parse_argument(text) == value


def test_ops_and_path(capsys: Any) -> None:
    report = json.loads(command(capsys, "ops", "--json")[1])
    assert report["supported"].keys() == OPERATORS.keys()
    assert not set(report["supported"]) & set(report["unsupported"])
    assert command(capsys, "path")[1].strip() == str(SHIMS)


def test_the_toolchain_names_package_and_model() -> None:
    assert nki_sim.toolchain() == f"nki_sim {nki_sim.__version__} model {nki_sim.MODEL_VERSION}"


def test_relative_error_of_equal_arrays_is_zero() -> None:
    assert cli.relative_l2(np.ones(4), np.ones(4)) == 0.0
    assert cli.relative_l2(np.zeros(4), np.ones(4)) == pytest.approx(1.0)
