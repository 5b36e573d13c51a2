"""Models the legacy compiler's choice of engine for instructions that leave it open.

Profiles show copies, and products or sums with a scalar, on ScalarE as `activation` of the identity, and
instructions on two tensors on VectorE [C]. ScalarE computes in float32, so integers stay on an engine where
they are exact [I]. Where VectorE and GpSimd have ports of their own, instructions on two tensors in SBUF are
shared out so that both are busy for as long: rope on Trainium 2 takes 0.57 of VectorE's time alone [C].
"""

from __future__ import annotations

from dataclasses import replace

from nki_sim.compiler.program_draft import ProgramDraft
from nki_sim.dtypes import DTYPES
from nki_sim.forms import Form
from nki_sim.operators import OPERATORS
from nki_sim.targets import Target

_AFFINE = frozenset({("multiply", None), ("add", None), ("subtract", None), ("multiply", "add")})


_SEPARATE_PORTS = 3
"""The first generation whose VectorE and GpSimd read SBUF at the same time."""


def assign_engines(draft: ProgramDraft, target: Target) -> None:
    """Move instructions whose engine is open to the engine that the compiler chooses."""
    draft.replace_forms({
        number: draft.add_form(replace(form, engine="scalar"))
        for number, form in enumerate(list(draft.forms))
        if form.hint("engine") == "open" and form.engine == "vector" and _on_scalar(form)
    })  # fmt: skip
    if target.generation >= _SEPARATE_PORTS:
        _share_with_gpsimd(draft, target)


def _share_with_gpsimd(draft: ProgramDraft, target: Target) -> None:
    """Give each instruction on two tensors that may run on GpSimd to the engine that is done first."""
    choices: dict[int, tuple[int, float, float]] = {}
    for number, form in enumerate(list(draft.forms)):
        if _may_run_on_gpsimd(form):
            moved = replace(form, engine="gpsimd")
            own, other = (OPERATORS[form.op].cost(one, target).busy_ns for one in (form, moved))
            choices[number] = (draft.add_form(moved), own, other)
    forms = draft.form_ids.copy()
    busy = {"vector": 0.0, "gpsimd": 0.0}
    for at, number in enumerate(forms.tolist()):
        if number in choices:
            moved_form, own_ns, moved_ns = choices[number]
            if busy["gpsimd"] + moved_ns < busy["vector"] + own_ns:
                busy["gpsimd"] += moved_ns
                forms[at] = moved_form
            else:
                busy["vector"] += own_ns
    draft.replace_forms(forms)


def _may_run_on_gpsimd(form: Form) -> bool:
    return (
        form.op == "tensor_tensor"
        and form.engine == "vector"
        and form.hint("engine") == "open"
        and all(item.buffer == "sbuf" for item in form.tiles)
    )


def _on_scalar(form: Form) -> bool:
    if not all(DTYPES[item.dtype].kind == "float" for item in form.tiles):
        return False
    if form.op == "tensor_copy":
        return True
    return form.op == "tensor_scalar" and (form.param("op0"), form.param("op1")) in _AFFINE
