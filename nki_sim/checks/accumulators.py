"""Checks VectorE's accumulation registers after `select_reduce` on idle, which may have changed them.

The documents do not define the registers of those lanes until an instruction resets or loads them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nki_sim.checks.violations import Violation
from nki_sim.forms import Form
from nki_sim.program.ir import Program
from nki_sim.xorwow import LANES

_SPOILER = "select_reduce"


def check(program: Program) -> Iterator[Violation]:
    """One violation for each line that reads undefined registers, in program order."""
    kinds = [_register_effect(form) for form in program.forms]
    if not any(form.op == _SPOILER and kind for form, kind in zip(program.forms, kinds, strict=True)):
        return
    spoiled = np.zeros((int(program.cores.max()) + 1, LANES), dtype=bool)
    seen: set[int] = set()
    chosen = np.flatnonzero(np.array([bool(kind) for kind in kinds])[program.form_ids])
    for number in chosen.tolist():
        form, kind = program.forms[program.form_ids[number]], kinds[program.form_ids[number]]
        dst, line = form["dst"], int(program.lines[number])
        lanes = spoiled[program.cores[number], dst.start : dst.start + dst.partitions]
        lanes |= kind == "idle" and form.op == _SPOILER
        if kind == "define":
            lanes[:] = False
        elif lanes.any() and line not in seen and (kind == "read" or form.operand("reduce_res")):
            seen.add(line)
            yield Violation(
                "accumulators_undefined",
                f"nisa.{form.op} reads accumulation registers that select_reduce on idle may have changed",
                "", "reset or loaded", "undefined", line,
                "begin with reduce_cmd.reset_reduce after a select_reduce on idle",
            )  # fmt: skip


def _register_effect(form: Form) -> str:
    """What a VectorE instruction does to the registers: define, read or idle; empty for nothing."""
    command = form.param("reduce_cmd")
    if form.engine != "vector" or command is None:
        return ""
    return {"reduce": "read", "idle": "idle"}.get(str(command), "define")
