"""Names that the namespaces do not have: what `hasattr` says, and how kernels that use them are refused."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

import nki_sim
from nki_sim import ArraySpec
from nki_sim.errors import KernelError
from nki_sim.frontend.legacy.modules import MODULES as LEGACY
from nki_sim.frontend.modules import MODULES
from nki_sim.operators import V4_INSTRUCTIONS

HEADERS = {
    "nki": "import nki, nki.isa as nisa, nki.language as nl\n",
    "neuronxcc.nki": (
        "import neuronxcc.nki as nki, neuronxcc.nki.isa as nisa, neuronxcc.nki.language as nl\n"
    ),
}
SPEC = ArraySpec((4, 8), "float32")

CURRENT = [(MODULES[name], name) for name in MODULES]
ALL = [*CURRENT, *((module, name) for name, module in LEGACY.items())]


@pytest.mark.parametrize(("module", "name"), ALL)
def test_unknown_names_are_no_attributes(module: ModuleType, name: str) -> None:
    assert not hasattr(module, "no_such_name")
    assert getattr(module, "no_such_name", None) is None
    assert not hasattr(module, "__no_such_name__")


@pytest.mark.parametrize("name", sorted(V4_INSTRUCTIONS))
def test_instructions_of_later_targets_are_no_attributes_of_the_older_namespace(name: str) -> None:
    assert hasattr(MODULES["nki.isa"], name)
    package = LEGACY["neuronxcc.nki.isa"]
    assert not hasattr(package, name)
    with pytest.raises(AttributeError, match=rf"not supported: nisa\.{name} .*NeuronCore-v4"):
        getattr(package, name)


@pytest.mark.parametrize(
    ("name", "near"),
    [("nki.isa.tensor_cpy", "nisa.tensor_copy"), ("nki.isa.dma_load", "nisa.dma_copy"),
     ("nki.isa.store", "nisa.dma_copy"), ("nki.isa.tensor_load", "nisa.tensor_copy"),
     ("nki.language.afine_range", "nl.affine_range"),
     ("nki.language.float_32", "nl.float32"), ("nki.jitt", "nki.jit"),
     ("nki.collectives.all_gathr", "nki.collectives.all_gather"),
     ("neuronxcc.nki.isa.tensor_cpy", "nisa.tensor_copy"), ("neuronxcc.nki.language.loda", "nl.load"),
     ("neuronxcc.nki.simulate_kernl", "neuronxcc.nki.simulate_kernel")],
)  # fmt: skip
def test_the_nearest_name_is_suggested(name: str, near: str) -> None:
    module, _, wrong = name.rpartition(".")
    with pytest.raises(AttributeError, match=f"unknown .*did you mean {near}\\?"):
        getattr({**MODULES, **LEGACY}[module], wrong)


def refused(namespace: str, body: str) -> KernelError:
    text = f"{HEADERS[namespace]}\n@nki.jit\ndef kernel(x):\n    {body}\n"
    with pytest.raises(KernelError) as caught:
        nki_sim.trace(text, args=[SPEC])
    assert caught.value.line == 5
    return caught.value


@pytest.mark.parametrize("namespace", HEADERS)
@pytest.mark.parametrize(
    ("body", "code", "text"),
    [("nisa.actvation(x)", "unknown_name", "did you mean nisa.activation?"),
     ("nl.xyzzy(x)", "unknown_name", "nl.xyzzy is unknown")],
)  # fmt: skip
def test_kernels_are_refused_by_name(namespace: str, body: str, code: str, text: str) -> None:
    error = refused(namespace, body)
    assert error.code == code
    assert text in str(error)


def test_each_namespace_refuses_what_is_the_others() -> None:
    for namespace, name in (("nki", "nl.dynamic_range"), ("neuronxcc.nki", "nisa.activate2")):
        error = refused(namespace, f"{name}(x)")
        assert (error.code, f"not supported: {name}" in str(error)) == ("unsupported", True)


@pytest.mark.parametrize(
    "body",
    ["nl.prelu(x)", "nki.profile(x)", "nki.collectives.all_reduce([x])",
     "nki.compiler.no_reorder()"],
)  # fmt: skip
def test_what_the_documents_list_is_refused_as_such(body: str) -> None:
    assert refused("nki", f"import nki.collectives, nki.compiler; {body}").code == "unsupported"


def test_code_that_looks_for_features_takes_its_other_way(tracing: Any) -> None:
    text = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x)
        special = getattr(nisa, "tensor_copy_dynamic_src", None)
        if special is not None or hasattr(nl, "dynamic_range"):
            special(tile)
        try:
            kind = nl.float_nine
        except AttributeError:
            kind = nl.float32 if hasattr(nl, "load") and hasattr(nl, "float8_e8m0fnu") else None
        nisa.activation(tile, nl.exp, tile)
        nl.store(out, nl.copy(tile, dtype=kind))
        return out
    """
    assert "activation" in {form.op for form in tracing(text, SPEC).forms}
