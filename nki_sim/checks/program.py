"""Checks a whole program against the hardware's rules.

The front end checks single calls; capacity, initialisation and outputs need the whole program. Programs may
come from an untrusted process, so the rules of single instructions are applied again. The result is a list of
`Violation`, empty if the program can run, with at most one entry per rule and declaration so that it stays
short.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nki_sim.checks import accumulators, iterations, placement, races, updates
from nki_sim.checks.coverage import examine_coverage
from nki_sim.checks.violations import Violation
from nki_sim.dtypes import DTYPES, V4
from nki_sim.forms import HBM_BUFFERS, Site
from nki_sim.operators import OPERATORS
from nki_sim.program.ir import Ints, Program
from nki_sim.targets import Target
from nki_sim.timing import memory

__all__ = ["Violation", "check", "check_capacity"]


def check(program: Program, target: Target, *, partial_outputs: bool = False) -> list[Violation]:
    """Return every rule that the program breaks on the target.

    With `partial_outputs` it is enough that a part of each output is written.
    """
    found = [
        *_form_violations(program, target),
        *updates.check(program),
        *accumulators.check(program),
        *_written_inputs(program),
        *_output_buffers(program),
        *_hbm_capacity(program, target),
        *_tile_partitions(program, target),
        *placement.check(program, target),
    ]
    # The legacy compiler places sums elsewhere when PSUM is full (`compiler.psum_placement`).
    if program.dialect != "neuronxcc":
        found += check_capacity(program, target)
    # The next checks look at elements, so skip programs with excessive sizes.
    found = found or [*iterations.check(program), *races.check(program)]
    if found:
        return found
    findings = examine_coverage(program).findings
    written = program.cells.tensor[program.cells.writes] if partial_outputs else ()
    return [
        _coverage_violation(program, *entry)
        for entry in findings
        if (entry[0] != "tensor_output_not_written_to" or entry[1] not in written)
        and (entry[0] != "psum_accumulate_undefined" or target.generation < V4)
    ]


def _form_violations(program: Program, target: Target) -> Iterator[Violation]:
    used, firsts = np.unique(program.form_ids, return_index=True)
    for form_id, number in zip(used.tolist(), firsts.tolist(), strict=True):
        form = program.forms[form_id]
        for breach in OPERATORS[form.op].find_breaches(form, target):
            roles = [item.role for item in form.operands]
            name = ""
            if breach.role in roles:
                cell = int(program.cells.first[number]) + roles.index(breach.role)
                name = program.site(int(program.tensors[cell])).name
            line = int(program.lines[number])
            yield Violation(
                breach.code,
                f"nisa.{form.op}: {breach.message}",
                name,
                breach.limit,
                breach.value,
                line,
                breach.hint,
            )


def _written_inputs(program: Program) -> Iterator[Violation]:
    """Yield inputs that are written without being outputs, and constants that are written."""
    cells = program.cells
    fixed = [number for number in (*program.inputs, *program.constants) if number not in program.outputs]
    for number in fixed:
        site = program.site(number)
        hits = np.flatnonzero((cells.tensor == number) & cells.writes)
        if len(hits) and site.buffer != "register":
            line = int(program.lines[cells.instruction[hits[0]]])
            yield Violation(
                "cannot_update_immutable_parameter", f"{site.name} is read only and is written", site.name,
                "read only", "written", line, "write to an nl.shared_hbm tensor and return it",
            )  # fmt: skip


def _output_buffers(program: Program) -> Iterator[Violation]:
    """Yield outputs that are neither in HBM nor changed arguments, for the current namespace.

    Several cores share only what is in shared HBM.
    """
    allowed = {"shared_hbm"} if len(program) and program.cores.any() else {"shared_hbm", "hbm"}
    for number in program.outputs if program.dialect == "nki" else ():
        site = program.site(number)
        if site.buffer not in allowed and number not in program.inputs:
            yield Violation(
                "output_buffer", f"output {site.name} is in {site.buffer}", site.name, "shared_hbm",
                site.buffer, site.line, "declare what the kernel returns with buffer=nl.shared_hbm",
            )  # fmt: skip


def _hbm_capacity(program: Program, target: Target) -> Iterator[Violation]:
    counts = np.bincount(program.tensor_sites, minlength=len(program.sites)).tolist()
    sizes = [
        (site.size * DTYPES[site.dtype].itemsize * count, site)
        for site, count in zip(program.sites, counts, strict=True)
        if site.buffer in HBM_BUFFERS
    ]
    total = sum(nbytes for nbytes, _ in sizes)
    if total > target.hbm_bytes:
        largest, site = max(sizes, key=lambda entry: entry[0])
        yield Violation(
            "hbm_capacity", f"tensors in HBM take {total} bytes ({site.name}: {largest}), a core of "
            f"{target.name} has {target.hbm_bytes}", site.name, target.hbm_bytes, total, site.line,
            "use smaller tensors",
        )  # fmt: skip


def _tile_partitions(program: Program, target: Target) -> Iterator[Violation]:
    limit = target.partitions
    for site in program.sites:
        if site.buffer not in HBM_BUFFERS and site.shape[0] > limit:
            message = f"{site.name} has {site.shape[0]} partitions, the limit is {limit}"
            yield Violation(
                "num_partition_exceed_arch_limit", message, site.name, limit, site.shape[0], site.line,
                "tile the first dimension by 128",
            )  # fmt: skip


def check_capacity(program: Program, target: Target) -> Iterator[Violation]:
    """Yield PSUM, core by core, if it overflows with tiles placed by the compiler, and SBUF if one tile is
    larger than it.
    """
    limit = memory.memory_capacity("sbuf", target)
    tiles = [site for site in program.sites if site.buffer == "sbuf" and site.address is None]
    too_large = any(memory.tile_footprint(site, target) > limit for site in tiles)
    for found in find_overflows(program, target):
        if too_large or found.code == "psum_capacity":
            yield found


def find_overflows(program: Program, target: Target) -> Iterator[Violation]:
    """Yield the on-chip memories, core by core, that hold too little for all tiles placed by the compiler."""
    for name in memory.MEMORIES:
        for core in np.unique(program.tensor_cores).tolist():
            yield from _check_memory(program, target, name, core=core)


def _check_memory(program: Program, target: Target, name: str, *, core: int) -> Iterator[Violation]:
    """Check the peak of a core's SBUF (bytes per partition) or PSUM (banks) over program-order lifetimes."""
    chosen = np.array([site.buffer == name and site.address is None for site in program.sites], dtype=bool)
    life = memory.tensor_lifetimes(program)
    tensors = np.flatnonzero(
        chosen[program.tensor_sites] & (life.first >= 0) & (program.tensor_cores == core)
    )
    if not len(tensors):
        return
    sizes = np.array([memory.tile_footprint(site, target) for site in program.sites], dtype=np.int64)
    taken = sizes[program.tensor_sites[tensors]]
    first, last = life.first[tensors], life.last[tensors]
    use = np.zeros(len(program) + 1, dtype=np.int64)
    np.add.at(use, first, taken)
    np.add.at(use, last + 1, -taken)
    profile = np.cumsum(use)
    limit = memory.memory_capacity(name, target)
    over = np.flatnonzero(profile > limit)
    if len(over):
        peak = int(np.argmax(profile))
        live = tensors[(first <= peak) & (last >= peak)]
        line = int(program.lines[over[0]])
        yield _capacity_violation(
            name, limit, int(profile[peak]), line=line, shares=_memory_shares(program, live, sizes)
        )


def _memory_shares(program: Program, live: Ints, sizes: Ints) -> list[tuple[int, int, Site]]:
    """(total size, count, declaration) of the live tensors, the largest first."""
    sites, counts = np.unique(program.tensor_sites[live], return_counts=True)
    found = [
        (int(sizes[site]) * count, count, program.sites[site])
        for site, count in zip(sites.tolist(), counts.tolist(), strict=True)
    ]
    return sorted(found, key=lambda entry: -entry[0])


def _capacity_violation(
    memory_name: str, limit: int, value: int, *, line: int, shares: list[tuple[int, int, Site]]
) -> Violation:
    unit = "bytes per partition" if memory_name == "sbuf" else "banks"
    parts = [f"{site.name} (line {site.line}) {count} x {total // count}" for total, count, site in shares]
    return Violation(
        f"{memory_name}_capacity",
        f"{value} {unit} of {memory_name.upper()} are in use at once, {limit} are there: "
        f"{', '.join(parts[:6])}",
        shares[0][2].name, limit, value, line,
        "use smaller tiles, or fewer at a time",
    )  # fmt: skip


_TEXTS = {
    "uninitialised_read": (
        "{name} is read before it is written",
        "write the whole tile first; a first nc_matmul takes accumulate=False or None",
    ),
    "psum_accumulate_undefined": (
        "nc_matmul accumulates onto {name}, which another instruction initialised",
        "start the group with accumulate=False or None instead of a memset",
    ),
    "tensor_output_not_written_to": (
        "{value} elements of output {name} are never written",
        "cover every element of the output, also the tails",
    ),
}


def _coverage_violation(program: Program, code: str, tensor: int, number: int, value: int) -> Violation:
    site = program.site(tensor)
    text, hint = _TEXTS[code]
    line = int(program.lines[number]) if number >= 0 else site.line
    message = text.format(name=site.name, value=value)
    if number >= 0 and site.line:
        message += f" (declared in line {site.line})"
    return Violation(code, message, site.name, 0, value, line, hint)
