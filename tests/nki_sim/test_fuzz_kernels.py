"""Hostile kernels: whatever they raise, return or do to the recorder, a reply comes back that can be read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nki_sim import protocol, targets, tracer
from nki_sim.checks import program as checks
from nki_sim.errors import KernelError, LimitError, SimError, escape_surrogates
from nki_sim.frontend.recorder import Recorder

COPY = """
    out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=x)
    return out
"""

RECORDER = """
    import sys
    frame = sys._getframe()
    while "recorder" not in frame.f_locals:
        frame = frame.f_back
    recorder = frame.f_locals["recorder"]
"""


def kernel(body: str, head: str = "") -> str:
    imports = "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n"
    return f"{imports}from nki_sim.errors import *\n{head}\n@nki.jit\ndef kernel(x):\n    {body}\n"


def traced(source: str) -> Any:
    """The program, or the error that the reading side gets."""
    request = {"source": source, "args": [{"shape": [128, 64], "dtype": "float32"}]}
    _, data = tracer.answer_request(json.dumps(request))
    try:
        return protocol.parse_reply(data)
    except SimError as error:
        return error


RAISED = {
    "words that raise": ("class E(Exception):\n    def __str__(self): raise ValueError", "E()"),
    "words that are none": ("class E(Exception):\n    def __str__(self): return 5", "E()"),
    "words that end the process": ("class E(Exception):\n    def __str__(self): raise SystemExit", "E()"),
    "a class without a name": (
        "class M(type):\n    __name__ = property(lambda _: 1 / 0)\nclass E(Exception, metaclass=M): pass",
        "E()",
    ),
    "a traceback that is none": ("class E(Exception):\n    __traceback__ = 5", "E()"),
    "an error like ours": (
        "class E(SimError):\n    code = object()\n    def __str__(self): raise OSError", "E()",
    ),
    "an error of ours without fields": ("class E(KernelError):\n    def __init__(self): pass", "E()"),
    "fields of no type": ("", "KernelError(object(), {1}, object(), 3)"),
    "a line that is text": ("", "KernelError('a', 'b', 'line', 'c')"),
    "a line without end": ("", "KernelError('a', 'b', 10 ** 5000, 'c')"),
    "an error never made": ("", "KernelError.__new__(KernelError)"),
    "half a character": ("", "ValueError('\\ud800')"),
    "a group": ("", "BaseExceptionGroup('g', [KeyboardInterrupt()])"),
    "the end": ("", "GeneratorExit"),
}  # fmt: skip


@pytest.mark.parametrize("name", RAISED)
def test_whatever_a_kernel_raises_is_an_error_at_its_line(name: str) -> None:
    head, error = RAISED[name]
    source = kernel(f"raise {error}", head)
    found = traced(source)
    assert type(found) is KernelError
    assert found.line == source.splitlines().index(f"    raise {error}") + 1
    assert str(found) == escape_surrogates(str(found))


FORGED = {
    "an offset too many": "recorder._stream.offsets.append(5)" + COPY,
    "no columns": "recorder._tensor_sites = None" + COPY,
    "columns of another type": "recorder._stream.forms = [1, 2]" + COPY,
    "constants of another type": "recorder._constants = {0: 5}" + COPY,
    "bytes that are no program": "recorder.to_bytes = lambda *a: b'noise'" + COPY,
    "a file name of another type": "recorder.filename = object()" + COPY,
    "a tensor that is not there": COPY.replace("return", "recorder._stream.tensors[0] = 1 << 31\n    return"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_recorder_gives_no_program(name: str) -> None:
    assert isinstance(traced(kernel(RECORDER.strip() + "\n    " + FORGED[name].strip())), SimError)


@pytest.mark.parametrize("name", ["'\\ud800'", "'n' * 501", "object()"])
def test_names_can_be_written(name: str) -> None:
    tile = f"nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf, name={name})"
    found = traced(kernel(tile + COPY))
    assert (found.code, found.line) == ("name", 8)


ODD = {
    "a generator": kernel("yield 1"),
    "a list in itself": kernel("l = []; l.append(l); return l"),
    "endless recursion": kernel("def f(): return f()\n    f()"),
    "an index that ends the process": kernel(
        "x[I()]", "class I:\n    def __index__(self): raise SystemExit(0)"
    ),
    "a type without a hash": kernel(
        "nl.ndarray((128, 4), dtype=H(), buffer=nl.sbuf)",
        "class H:\n    def __hash__(self): raise KeyError('h')",
    ),
    "a shape without end": kernel("nl.ndarray((128, 10 ** 30), dtype=nl.float32, buffer=nl.sbuf)"),
    "no signature": kernel("return x") + "kernel.func.__signature__ = 5\n",
    "parentheses": "x = " + "(" * 5000 + ")" * 5000,
    "signs": "x = " + "-" * 100_000 + "1",
    "a zero byte": "\0",
    "an encoding": "# -*- coding: none -*-",
    "an end while importing": "import sys; sys.exit(0)",
    "a launch on too many cores": kernel("return x") + "kernel = kernel[10 ** 9]\n",
}


@pytest.mark.parametrize("name", ODD)
def test_odd_kernels_are_errors_of_the_kernel(name: str) -> None:
    assert isinstance(traced(ODD[name]), KernelError)


def test_a_kernel_may_go_on_after_an_error_it_caught() -> None:
    body = "try:\n        nisa.tensor_copy(dst=x, src=x)\n    except BaseException: pass"
    program = traced(kernel(body + COPY))
    assert len(program) == 1
    assert checks.check(program, targets.load("trn2")) == []


def test_loops_inside_each_other_are_bounded() -> None:
    recorder = Recorder(targets.load("trn2"), "none.py", max_instructions=10)
    for loop in range(64):
        recorder.enter_iteration(loop, 0)
    with pytest.raises(LimitError, match="64 loops"):
        recorder.enter_iteration(64, 0)
