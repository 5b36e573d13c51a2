"""Whether two programs are the same up to names: instruction by instruction, tile by tile."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from nki_sim.forms import Form, Site
from nki_sim.program.ir import Program
from state.model import Digest


def program_digest(program: Program) -> Digest:
    """Return a digest that programs share if they issue the same instructions on the same tensors.

    Names, source lines and hints to the compiler do not count; nor does which declaration made a tile, if
    the declarations say the same.
    """
    digest = hashlib.sha256()
    for part in _describe(program):
        digest.update(part.encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _describe(program: Program) -> Iterator[str]:
    tensors = _by_first_use([*program.inputs, *program.outputs, *program.tensors.tolist()])
    forms = _by_first_use(program.form_ids.tolist())
    yield repr((program.target, len(program.inputs), len(program.outputs)))
    for tensor in tensors:
        yield repr((_site_meaning(program.site(tensor)), program.constants.get(tensor)))
    for form in forms:
        yield repr(_form_meaning(program.forms[form]))
    yield repr([forms[form] for form in program.form_ids.tolist()])
    yield repr([tensors[tensor] for tensor in program.tensors.tolist()])
    yield repr(program.offsets.tolist())
    yield repr(program.cores.tolist())


def _by_first_use(numbers: Iterable[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for number in numbers:
        found.setdefault(number, len(found))
    return found


def _site_meaning(site: Site) -> object:
    return site.shape, site.dtype, site.buffer, site.address


def _form_meaning(form: Form) -> object:
    return form.op, form.engine, form.operands, form.params
