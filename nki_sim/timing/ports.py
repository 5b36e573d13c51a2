"""Memory ports that engines share and hold while an instruction runs.

The table `PORTS` gives the ports that an instruction holds, by its form and the generation. An engine that
needs a port held by another engine waits until that instruction ends. Ports that only one engine of a program
uses cost nothing and are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from nki_sim.forms import Form, Operand, Site
from nki_sim.operators.costs import Cost
from nki_sim.program.ir import Program
from nki_sim.targets import Target

HoldsPort = Callable[[Form, Cost], bool]


def _touches_buffer(buffer: str) -> HoldsPort:
    return lambda form, _: any(item.buffer == buffer for item in form.operands)


def _uses_sbuf(form: Form, cost: Cost) -> bool:
    """Instructions on SBUF, and descriptors, which GpSimd writes there."""
    return cost.software or _touches_buffer("sbuf")(form, cost)


def _uses_bus(form: Form, cost: Cost) -> bool:
    """GpSimd on SBUF at any time, VectorE in its 16-bit modes."""
    return cost.fast or (form.engine != "vector" and _uses_sbuf(form, cost))


def _always_holds(form: Form, cost: Cost) -> bool:
    del form, cost
    return True


@dataclass(frozen=True, slots=True)
class MemoryPort:
    """A port of one core, or one per bank of its PSUM, and which instructions of which engines hold it."""

    name: str
    engines: frozenset[str]
    holds: HoldsPort
    per_bank: bool = False


_VECTOR_GPSIMD = frozenset({"vector", "gpsimd"})
_VECTOR_SCALAR = frozenset({"vector", "scalar"})

DESCRIPTORS = MemoryPort("GpSimd", frozenset({"gpsimd"}), _always_holds)
"""GpSimd itself, which software DMA keeps busy until its descriptors are made."""

PORTS: dict[int, tuple[MemoryPort, ...]] = {
    2: (
        MemoryPort("SBUF of Vector and GpSimd", _VECTOR_GPSIMD, _uses_sbuf),
        MemoryPort("PSUM of Vector and Scalar", _VECTOR_SCALAR, _touches_buffer("psum")),
    ),
    3: (
        MemoryPort("bus of Vector and GpSimd", _VECTOR_GPSIMD, _uses_bus),
        MemoryPort("PSUM bank of Vector and Scalar", _VECTOR_SCALAR, _touches_buffer("psum"), per_bank=True),
    ),
}
"""By generation [D: A1 and A2, access to SBUF and PSUM]; later generations use the last entry."""


@dataclass(frozen=True, slots=True, eq=False)
class HeldPorts:
    """`ports[i]` are the numbers of the ports that instruction i holds; there are `count` ports."""

    ports: list[tuple[int, ...]]
    count: int


def find_held_ports(program: Program, target: Target, costs: list[Cost]) -> HeldPorts:
    """Return the contended ports that each instruction holds."""
    table = (*PORTS[min(target.generation, max(PORTS))], DESCRIPTORS)
    kinds = [_form_ports(table, form, cost) for form, cost in zip(program.forms, costs, strict=True)]
    contended = {port for port in table if _count_engines(port, program, kinds, costs=costs) > 1}
    kinds = [tuple(port for port in found if port in contended) for found in kinds]
    if not contended:
        return HeldPorts([()] * len(program), 0)
    users: dict[Hashable, set[str]] = defaultdict(set)
    wanted = _port_instances(program, kinds, target)
    for form_id, keys in zip(program.form_ids.tolist(), wanted, strict=True):
        for key in keys:
            users[key].add(program.forms[form_id].engine)
    numbers = {key: place for place, key in enumerate(key for key, who in users.items() if len(who) > 1)}
    return HeldPorts([tuple(numbers[key] for key in keys if key in numbers) for keys in wanted], len(numbers))


def _port_instances(
    program: Program, kinds: list[tuple[MemoryPort, ...]], target: Target
) -> list[tuple[Hashable, ...]]:
    """The port instances that each instruction holds: by form, core and, for banks, tensors."""
    known: dict[tuple[int, ...], tuple[Hashable, ...]] = {}
    found: list[tuple[Hashable, ...]] = []
    tensors, first = program.tensors.tolist(), program.cells.first.tolist()
    by_bank = [any(port.per_bank for port in ports) for ports in kinds]
    for number, place in enumerate(zip(program.form_ids.tolist(), program.cores.tolist(), strict=True)):
        form_id = place[0]
        key = (*place, *tensors[first[number] : first[number + 1]]) if by_bank[form_id] else place
        if key not in known:
            known[key] = tuple(_instance_keys(kinds[form_id], program, target, place=key))
        found.append(known[key])
    return found


def _form_ports(table: tuple[MemoryPort, ...], form: Form, cost: Cost) -> tuple[MemoryPort, ...]:
    engine = "gpsimd" if cost.software else form.engine
    return tuple(port for port in table if engine in port.engines and port.holds(form, cost))


def _count_engines(
    port: MemoryPort, program: Program, kinds: list[tuple[MemoryPort, ...]], *, costs: list[Cost]
) -> int:
    """How many engines of a program hold a port."""
    forms = zip(program.forms, kinds, strict=True)
    return len({form.engine for form, found in forms if port in found})


def _instance_keys(
    ports: tuple[MemoryPort, ...], program: Program, target: Target, *, place: tuple[int, ...]
) -> Iterator[Hashable]:
    form_id, core, *tensors = place
    for port in ports:
        if port.per_bank:
            yield from _bank_keys(
                program.forms[form_id], core, list(map(program.site, tensors)), tensors=tensors, target=target
            )
        else:
            yield port.name, core


def _bank_keys(
    form: Form, core: int, sites: list[Site], *, tensors: list[int], target: Target
) -> Iterator[Hashable]:
    """The banks that an instruction touches: banks of its core for placed tiles, else banks of the tile.

    Tiles that the compiler places are assumed to have banks of their own.
    """
    for item, site, tensor in zip(form.operands, sites, tensors, strict=True):
        if item.buffer == "psum":
            before, owner = (0, tensor) if site.address is None else (site.address[1], -1 - core)
            for bank in _touched_banks(item, before, target.psum_bank_bytes):
                yield owner, bank


def _touched_banks(item: Operand, before: int, bank_bytes: int) -> range:
    low = before + (item.column - item.reach_below) * item.itemsize
    return range(low // bank_bytes, (low + item.free_extent * item.itemsize - 1) // bank_bytes + 1)
