"""Names and arguments that a kernel has wrong are found in its text, all of them, as tracing refuses each."""

from __future__ import annotations

import pytest

import nki_sim
import seeds
from nki_sim import ArraySpec
from nki_sim.errors import KernelError
from nki_sim.frontend.source_faults import list_source_faults
from targets.registry import starting_kernel

HEAD = """import nki
import nki.isa as nisa
import nki.language as nl
from nki import language as other


@nki.jit
def kernel(x):
    out = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
"""
END = "    return out\n"


def faults(*lines: str) -> list[tuple[int, str, str]]:
    source = HEAD + "".join(f"    {line}\n" for line in lines) + END
    first = HEAD.count("\n") + 1
    return [(one.line - first, one.code, one.message) for one in list_source_faults(source)]


def test_all_of_them_are_found_each_at_its_line():
    assert faults(
        "nisa.dma_copy(out=tile, src=x)",
        "nisa.tensor_scaler(dst=tile, data=tile,",
        "                   op0=nl.multiplied, operand0=2.0)",
        "nki.isa.copy(dst=out, src=tile)",
        "other.zorros((1, 2))",
    ) == [
        (0, "unsupported_argument", "nisa.dma_copy takes no out="),
        (1, "unknown_name", "nisa.tensor_scaler is unknown"),
        (2, "unknown_name", "nl.multiplied is unknown"),
        (3, "unknown_name", "nisa.copy is unknown"),
        (4, "unknown_name", "nl.zorros is unknown"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "nisa.dma_copy(dst=tile, src=x, name='load', engine=None)",
        "nisa.dma_copy(dst=tile, src=x, mask=None)",
        "nisa.dma_copy(**{'out': tile})",
        "x.anything(nothing=1)",
        "hasattr(nl, 'zorros')",
        "nki.nothing_of_this_kind",
    ],
)
def test_what_may_be_right_is_no_fault(line):
    assert faults(line) == []


def test_what_may_be_caught_and_names_bound_again_are_left_out():
    assert faults("try:", "    nl.zorros", "except AttributeError:", "    pass") == []
    assert list_source_faults("import nki.language as nl\ndef f(nl):\n    return nl.zorros\n") == []
    assert list_source_faults("def (") == []
    assert list_source_faults("x = " + "(" * 5000) == []


@pytest.mark.parametrize(
    "line", ["nisa.dma_copy(out=tile, src=x)", "nl.load_store(tile)", "nisa.tensor_copy(dst=out, data=tile)"]
)
def test_a_trace_refuses_the_same_with_the_same_hint(line):
    source = f"{HEAD}    {line}\n{END}"
    (found,) = list_source_faults(source)
    with pytest.raises(KernelError) as refused:
        nki_sim.trace(source, args=[ArraySpec((128, 64), "float32")], target="trn2")
    assert (found.code, found.line, found.hint) == (
        refused.value.code,
        refused.value.line,
        refused.value.hint,
    )
    assert refused.value.message.startswith(found.message)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_kernels_that_are_right_have_none(target):
    for name in seeds.builtin_problems():
        kernel = starting_kernel(seeds.load_problem(name), target).decode()
        assert list_source_faults(kernel) == [], name
