"""Rewrites a traced program so that its arguments have the problem's declared shapes.

Kernels may take inputs, and return outputs, in other shapes with the same elements in the same order. The
numeric stages see the declared shapes; rules and timing see the kernel's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from nki_sim.dtypes import DTYPES
from nki_sim.forms import Form
from nki_sim.program.ir import Program
from remote.judge.rejection import RejectedError
from seeds.spec import ProblemSpec
from state.model import Verdict

Shape = tuple[int, ...]


def with_declared_shapes(program: Program, spec: ProblemSpec, size: str) -> Program:
    """Return the program with inputs and outputs in the shapes of `spec`, which have as many elements.

    Raises:
        RejectedError: it returns one array where the problem has two of different shapes.
    """
    dims = spec.dims(size)
    shapes: dict[int, Shape] = {}
    numbers = (*program.inputs, *program.outputs)
    for number, item in zip(numbers, (*spec.inputs, *spec.outputs), strict=True):
        shape = item.resolve_shape(dims)
        if shapes.setdefault(number, shape) != shape:
            text = f"{item.name} of shape {shape} is the same array as another of shape {shapes[number]}"
            raise RejectedError(Verdict.INCORRECT, "output_shape", text)
    other = {number: shape for number, shape in shapes.items() if program.site(number).shape != shape}
    return _reshape_tensors(program, other) if other else program


def _reshape_tensors(program: Program, shapes: Mapping[int, Shape]) -> Program:
    """Give each tensor a site of its own; where its row length changes, adapt its operands too."""
    sites, tensor_sites = list(program.sites), program.tensor_sites.copy()
    for number, shape in shapes.items():
        tensor_sites[number] = len(sites)
        sites.append(replace(program.site(number), shape=shape))
    longer = {number: shape[-1] for number, shape in shapes.items() if program.site(number).row != shape[-1]}
    forms, form_ids = _forms_with_rows(program, longer)
    return replace(
        program, sites=tuple(sites), tensor_sites=tensor_sites, forms=tuple(forms), form_ids=form_ids
    )


def _forms_with_rows(program: Program, rows: Mapping[int, int]) -> tuple[list[Form], np.ndarray]:
    """Forms for instructions whose operands are in tensors with other row lengths than recorded."""
    forms, form_ids, cells = list(program.forms), program.form_ids.copy(), program.cells
    known: dict[tuple[int, tuple[tuple[int, int], ...]], int] = {}
    touching = np.unique(cells.instruction[np.isin(cells.tensor, list(rows))])
    for number in touching.tolist():
        first, end = int(cells.first[number]), int(cells.first[number + 1])
        tensors = cells.tensor[first:end].tolist()
        changed = tuple((place, rows[tensor]) for place, tensor in enumerate(tensors) if tensor in rows)
        key = (int(form_ids[number]), changed)
        if key not in known:
            known[key] = len(forms)
            declared = {place: DTYPES[program.site(tensors[place]).dtype].itemsize for place, _ in changed}
            forms.append(_form_with_rows(forms[key[0]], dict(changed), declared))
        form_ids[number] = known[key]
    return forms, form_ids


def _form_with_rows(form: Form, rows: Mapping[int, int], itemsizes: Mapping[int, int]) -> Form:
    """The form with other row lengths, by position; given in declared elements."""
    operands = list(form.operands)
    for place, row in rows.items():
        item = operands[place]
        operands[place] = replace(item, row=max(1, row * itemsizes[place] // item.itemsize))
    return replace(form, operands=tuple(operands))
