"""The jail's entry in a process of its own, its requests and replies, the shims and the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nki_sim
from nki_sim import ArraySpec, protocol
from nki_sim.errors import InputError, IRError, KernelError, LimitError
from nki_sim.program import wire
from nki_sim.tracer import answer_request

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
    status, data = answer_request(request(texts.source_of(ENDLESS), limits={"max_instructions": 50}))
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
        json.dumps({"source": "", "args": [{"value": [1]}]}),
        json.dumps({"source": "", "args": ["x"]}),
        json.dumps({"source": "", "args": [{"list": 3}]}),
        json.dumps({"source": "", "args": 3}),
        json.dumps({"source": "", "kwargs": [3]}),
        json.dumps({"source": "", "lnc": "2"}),
        json.dumps({"source": ""})[:-1] + ', "args": [' + '{"list": [' * 3000 + "]}" * 3000 + "]}",
    ],
)
def test_requests_that_make_no_sense_are_refused(text: str) -> None:
    status, data = answer_request(text)
    assert status == 1
    with pytest.raises(InputError):
        protocol.parse_reply(data)


def test_arguments_of_every_kind_reach_the_kernel() -> None:
    source = HEADER_FOR_ARGUMENTS
    shape = {"shape": [4, 4], "dtype": "float32"}
    arguments = {
        "source": source,
        "args": [shape, {"value": None}],
        "kwargs": {
            "mode": {"value": "fast"},
            "parts": {"list": [shape, {"tuple": [{"value": 3}]}, {"dict": {"k": {"value": 1.5}}}]},
        },
        "lnc": 1,
    }
    status, data = answer_request(json.dumps(arguments))
    assert status == 0
    program = protocol.parse_reply(data)
    assert [program.site(number).name for number in program.inputs] == ["x", "parts_0"]


HEADER_FOR_ARGUMENTS = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def kernel(x, nothing, *, mode, parts):
    assert nothing is None and mode == "fast" and parts[1] == (3,) and parts[2] == {"k": 1.5}
    assert nl.program_ndim() == 1
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=parts[0])
    return out
"""


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


NOTED = """from __future__ import annotations
from dataclasses import dataclass
import enum
@dataclass(frozen=True)
class Span:
    first: int
    size: "int" = 128
class Half(enum.Enum):
    TOP = enum.auto()
"""


def test_a_kernels_module_is_known_while_it_is_traced_and_not_afterwards(texts: Any) -> None:
    before = dict(sys.modules)
    checks = "assert Span(1).size == 128 and Half['TOP'].value == 1 and __name__ != '__main__'\n"
    status, data = answer_request(request(NOTED + texts.source_of(checks + texts.stream())))
    assert status == 0, data
    assert {name for name in sys.modules if name.startswith("__kernel")} == set()
    assert all(sys.modules[name] is module for name, module in before.items())


@pytest.mark.parametrize(
    "line",
    [
        "from math import nothing",
        "raise ValueError(m)",
        "import json; json.loads('?')",
        "from nki_sim import no",
    ],
)
def test_errors_do_not_say_where_things_lie_on_this_machine(texts: Any, line: str) -> None:
    _, data = answer_request(request(texts.source_of(f"import decimal as m\n{line}\n")))
    with pytest.raises(KernelError) as caught:
        protocol.parse_reply(data)
    for folder in (sys.base_prefix, sys.prefix, str(Path(nki_sim.__file__).parent.parent)):
        assert f"{folder}/" not in caught.value.message
    assert ("[json" in caught.value.message) == ("json" in line)


def test_a_forged_line_number_is_an_error_of_the_tree() -> None:
    forged = b'{"code": "", "message": "", "hint": "", "type": "KernelError", "line": Infinity}'
    with pytest.raises(IRError):
        protocol.parse_reply(protocol._HEAD.pack(protocol.MAGIC, b"E", len(forged)) + forged)


def test_a_reply_with_something_after_it_is_refused(texts: Any) -> None:
    _, data = answer_request(request(texts.source_of(texts.stream())))
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


def test_the_toolchain_names_package_model_and_format() -> None:
    model = f"nki_sim {nki_sim.__version__} model {nki_sim.MODEL_VERSION}"
    assert nki_sim.toolchain() == f"{model} format {wire.VERSION}"


COUNTING = """import nki.isa as nisa

CALLS = []


@nki.jit
def kernel(x):
    CALLS.append(1)
    out = nl.ndarray(x.shape, nl.float32, nl.shared_hbm)
    t = nl.ndarray((128, 512), nl.float32, nl.sbuf, name=f"t{len(CALLS)}")
    nisa.dma_copy(dst=t, src=x)
    for _ in range(TIMES):
        nisa.activation(dst=t, op=nl.exp, data=t)
    nisa.dma_copy(dst=out, src=t)
    return out
"""


def counting(times: str) -> str:
    return "import nki\nimport nki.language as nl\n" + COUNTING.replace("TIMES", times)


def test_a_program_must_be_the_same_at_every_call_if_that_is_asked_for() -> None:
    text = counting("len(CALLS)")
    assert answer_request(request(text))[0] == 0
    with pytest.raises(KernelError, match="another program when it is called again") as caught:
        protocol.parse_reply(answer_request(request(text, repeat=True))[1])
    assert caught.value.code == "trace_differs"


def test_names_of_tensors_may_differ_from_call_to_call() -> None:
    found = [answer_request(request(counting("2"), repeat=repeat)) for repeat in (True, False)]
    assert found[0] == found[1]
    assert found[0][0] == 0


def test_repeat_is_a_boolean() -> None:
    with pytest.raises(InputError, match="repeat is true or false, not 3"):
        protocol.decode_request(request("", repeat=3))
