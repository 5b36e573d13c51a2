"""Indices of arrays in HBM as text: slices where they say it, else an access pattern."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from targets.base import UntranslatableError
from targets.nki.translation.access import Access, Atom, SplitNeededError
from targets.nki.translation.text import product_text, slice_text, sum_text
from targets.nki.translation.values import Buffer


@dataclass(frozen=True, slots=True)
class Run:
    """A loop that an instruction walks: from where (text), and how many steps (text or number)."""

    atom: Atom
    start: str
    count: str | int


def transfer_text(target: str, source: str) -> str:
    """Return a transfer whose descriptors are made before the launch, because its addresses are known."""
    return f"nisa.dma_copy(dst={target}, src={source}, dge_mode=nisa.dge_mode.none)"


def array_text(
    buffer: Buffer, access: Access, *, runs: Sequence[Run | int], fixed: Mapping[Atom, str]
) -> str:
    """Return an array's elements for one instruction.

    `runs` are the tile's dimensions: loops, or a number for a dimension of that size along which nothing
    moves. `fixed` are the variables of loops around.
    """
    if any(stride < 0 for _, stride in access.terms):
        raise UntranslatableError(f"elements of {buffer.name} that are read backwards")
    found = _slices(buffer, access, runs, fixed)
    return found if found is not None else _pattern(buffer, access, runs, fixed=fixed)


def _slices(
    buffer: Buffer, access: Access, runs: Sequence[Run | int], fixed: Mapping[Atom, str]
) -> str | None:
    try:
        indices = access.split_by_axis(buffer.shape)
    except (SplitNeededError, UntranslatableError):
        return None
    by_atom = {run.atom: run for run in runs if isinstance(run, Run)}
    texts: list[str] = []
    walked: list[Atom] = []
    for size, index in zip(buffer.shape, indices, strict=True):
        inner = [(atom, step) for atom, step in index.terms if atom in by_atom]
        outer = [product_text(fixed[atom], step) for atom, step in index.terms if atom in fixed]
        if len(inner) > 1 or any(step < 1 for _, step in inner):
            return None
        if not inner:
            texts.append(sum_text(*outer, index.offset))
            continue
        atom, step = inner[0]
        run = by_atom[atom]
        start = sum_text(*outer, product_text(run.start, step), index.offset)
        texts.append(slice_text(start, run.count, size, step))
        walked.append(atom)
    wanted = [run.atom if isinstance(run, Run) else None for run in runs]
    if wanted != walked:
        return None
    whole = all(text == ":" for text in texts)
    return buffer.name if whole else f"{buffer.name}[{', '.join(texts)}]"


def _pattern(buffer: Buffer, access: Access, runs: Sequence[Run | int], *, fixed: Mapping[Atom, str]) -> str:
    pairs = []
    terms: list[str | int] = [access.offset]
    for run in runs:
        if isinstance(run, int):
            pairs.append(f"[0, {run}]" if run > 1 else "[1, 1]")
            continue
        stride = access.stride(run.atom)
        pairs.append(f"[{stride}, {run.count}]")
        terms.append(product_text(run.start, stride))
    terms += [product_text(variable, access.stride(atom)) for atom, variable in fixed.items()]
    return f"{buffer.name}.ap([{', '.join(pairs)}], offset={sum_text(*terms)})"
