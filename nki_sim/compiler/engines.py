"""Which engine the legacy compiler gives an instruction that leaves the choice to it.

Profiles show copies and products or sums with a scalar on ScalarE, as `activation` of the identity, and what
takes two tensors on VectorE [C].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nki_sim.compiler.draft import Draft
from nki_sim.forms import Form

_AFFINE = frozenset({("multiply", None), ("add", None), ("subtract", None), ("multiply", "add")})


def assign(draft: Draft) -> None:
    """Move instructions whose engine is open to the one the compiler takes."""
    moved: Mapping[int, int] = {
        number: draft.form(replace(form, engine="scalar"))
        for number, form in enumerate(list(draft.forms))
        if form.hint("engine") == "open" and form.engine == "vector" and _on_scalar(form)
    }
    draft.reform(moved)


def _on_scalar(form: Form) -> bool:
    if form.op == "tensor_copy":
        return True
    return form.op == "tensor_scalar" and (form.param("op0"), form.param("op1")) in _AFFINE
