"""Stores the knobs of an IR as plain data; the graph itself is traced again from its workload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from targets.nki.knobs.errors import KnobError
from targets.nki.knobs.graph import Graph
from targets.nki.knobs.ir import LOOP_ORDER, LTILES, SCOPES, KernelIR, Scope

_FIELDS = {LOOP_ORDER: list, LTILES: dict, SCOPES: dict}


def to_document(ir: KernelIR) -> dict[str, Any]:
    """Return the three knobs of an IR as lists, mappings, numbers and names."""
    scopes = {name: {dim: scope.name for dim, scope in item.items()} for name, item in ir.scopes.items()}
    return {LOOP_ORDER: list(ir.loop_order), LTILES: dict(ir.ltiles), SCOPES: scopes}


def from_document(graph: Graph, document: Mapping[str, Any]) -> KernelIR:
    """Return the IR of a graph that a document describes, valid or not.

    Raises:
        KnobError: the document does not hold three knobs; the message names the fault.
    """
    for name, kind in _FIELDS.items():
        if not isinstance(document.get(name), kind):
            raise KnobError(f"{name} is {document.get(name)!r}; it is a {kind.__name__}")
    unknown = sorted(set(document) - set(_FIELDS))
    if unknown:
        raise KnobError(f"{unknown[0]!r} is no knob; the knobs are {', '.join(_FIELDS)}")
    scopes = {name: _parse_scopes(name, item) for name, item in document[SCOPES].items()}
    return KernelIR(graph, tuple(document[LOOP_ORDER]), document[LTILES], scopes)


def _parse_scopes(buffer: str, item: Any) -> dict[str, Scope]:
    if not isinstance(item, dict):
        raise KnobError(f"{SCOPES}[{buffer}] is {item!r}; it is a dict of dimensions")
    for dim, name in item.items():
        if name not in Scope.__members__:
            raise KnobError(
                f"{SCOPES}[{buffer}][{dim}] is {name!r}; it is one of {', '.join(Scope.__members__)}"
            )
    return {dim: Scope[name] for dim, name in item.items()}
