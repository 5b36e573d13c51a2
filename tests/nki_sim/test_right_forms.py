"""Names of other frameworks and of older NKI: the error says what to write, in words that are right."""

from __future__ import annotations

import re

import pytest

import nki_sim
from nki_sim.errors import KernelError
from nki_sim.forms import ArraySpec
from nki_sim.frontend import isa, language
from nki_sim.frontend.right_forms import ARGUMENTS, INSTRUCTIONS, LANGUAGE
from nki_sim.operators import OPERATORS

NAMED = re.compile(r"\b(nisa|nl)\.([a-z_]\w*)")
CALLED = re.compile(r"\bnisa\.([a-z_]\w*)\(([^()]*)\)")
MODULES = {"nl": language, "nisa": isa}


@pytest.mark.parametrize(("module", "table"), [(language, LANGUAGE), (isa, INSTRUCTIONS)])
def test_no_name_that_exists_is_called_a_wrong_one(module, table):
    assert [name for name in table if hasattr(module, name)] == []


@pytest.mark.parametrize("form", sorted({*LANGUAGE.values(), *INSTRUCTIONS.values(), *ARGUMENTS.values()}))
def test_what_is_told_to_write_exists(form):
    named = NAMED.findall(form)
    assert [f"{module}.{name}" for module, name in named if not hasattr(MODULES[module], name)] == []
    for operator, arguments in CALLED.findall(form):
        known = {argument.name for argument in OPERATORS[operator].signature}
        assert set(re.findall(r"(\w+)=", arguments)) <= known


def refused(body: str) -> KernelError:
    text = f"""
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    {body}
    nisa.dma_copy(dst=out, src=t)
    return out
"""
    with pytest.raises(KernelError) as caught:
        nki_sim.trace(text, args=[ArraySpec((128, 64), "float32")])
    return caught.value


@pytest.mark.parametrize(
    ("body", "code", "hint"),
    [
        ("nisa.activation(dst=t, func=nl.exp, data=t)", "unsupported_argument", "op=; it takes dst, op"),
        ("nisa.activation(dst=t, op=nl.swish, data=t)", "unknown_name", "did you mean nl.silu?"),
        ("i = nl.arange(128)[:, None]", "unknown_name", "nl.ds(start, size)"),
        ("t = nl.concatenate([t, t], axis=1)", "unknown_name", "write its parts by slices"),
        ("nl.tensor_copy(dst=t, src=t)", "unknown_name", "instructions are in nki.isa"),
        ("nisa.add(t, t, t)", "unknown_name", "nisa.tensor_tensor(dst=..., data1=..., data2=..., op=nl.add)"),
        ("nisa.matmul(t, t, t)", "unknown_name", "did you mean nisa.nc_matmul?"),
        ("nisa.activaton(t, nl.exp, t)", "unknown_name", "did you mean nisa.activation?"),
        ("nisa.tensor_copy(dst=t, scr=t)", "unsupported_argument", "did you mean src=?; it takes dst, src"),
        ("nisa.tensor_copy(dst=t, src=t, colour=1)", "unsupported_argument", "it takes dst, src"),
        ("nisa.tensor_copy(dst=t, src=t, mask=t)", "unsupported_argument", "clamp the slices"),
        ("nisa.tensor_copy(dst=t)", "missing_argument", "it takes dst, src"),
        ("nisa.memset(t, 0.0, None, 4)", "too_many_arguments", "they are dst, value"),
    ],
)  # fmt: skip
def test_the_hint_says_what_to_write(body, code, hint):
    error = refused(body)
    assert error.code == code
    assert hint in (error.hint or "")
