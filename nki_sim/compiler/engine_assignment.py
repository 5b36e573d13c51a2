"""Models the legacy compiler's choice of engine for instructions that leave it open.

Profiles show copies, and products or sums with a scalar, on ScalarE as `activation` of the identity, and
instructions on two tensors on VectorE [C]. ScalarE computes in float32, so integers stay on an engine where
they are exact [I].
"""

from __future__ import annotations

from dataclasses import replace

from nki_sim.compiler.program_draft import ProgramDraft
from nki_sim.dtypes import DTYPES
from nki_sim.forms import Form

_AFFINE = frozenset({("multiply", None), ("add", None), ("subtract", None), ("multiply", "add")})


def assign_engines(draft: ProgramDraft) -> None:
    """Move instructions whose engine is open to the engine that the compiler chooses."""
    draft.replace_forms({
        number: draft.add_form(replace(form, engine="scalar"))
        for number, form in enumerate(list(draft.forms))
        if form.hint("engine") == "open" and form.engine == "vector" and _on_scalar(form)
    })  # fmt: skip


def _on_scalar(form: Form) -> bool:
    if not all(DTYPES[item.dtype].kind == "float" for item in form.tiles):
        return False
    if form.op == "tensor_copy":
        return True
    return form.op == "tensor_scalar" and (form.param("op0"), form.param("op1")) in _AFFINE
