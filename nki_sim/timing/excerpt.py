"""Takes parts of a long program that stand for the whole when only ratios of times are needed.

An excerpt's runs end at transfers of inputs and outputs, chosen by their number among these. Variants of a
kernel move the same data, so their excerpts do the same part of the work, wherever instructions were added.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nki_sim.program.ir import LOOP_MARKS, SYNC_OPERATORS, Ints, Iterations, Program

RUN_INSTRUCTIONS = 640
"""Consecutive instructions in a run of an excerpt: several iterations of an inner loop."""


def take_excerpt(program: Program, count: int) -> Program:
    """Return a program of `count` instructions: runs of instructions spread over the whole program.

    Values written before a run and read in it count as present from the start. Shorter programs, programs
    whose cores synchronise and programs with data-dependent loops are returned whole.
    """
    if len(program) <= count or any(
        form.op in LOOP_MARKS or form.op in SYNC_OPERATORS for form in program.forms
    ):
        return program
    runs = max(1, count // RUN_INSTRUCTIONS)
    length = count // runs
    return _extract_program(
        program, (_run_starts(program, runs, length)[:, None] + np.arange(length)).reshape(-1)
    )


def _run_starts(program: Program, runs: int, length: int) -> Ints:
    """Where each run begins; runs do not overlap."""
    cells = program.cells
    outside = np.isin(cells.tensor, (*program.inputs, *program.outputs))
    anchors = np.unique(cells.instruction[outside])
    if not len(anchors):
        anchors = np.arange(len(program))
    last = anchors[((np.arange(runs) + 0.5) / runs * len(anchors)).astype(np.int64)]
    before = np.arange(runs) * length
    firsts = np.maximum.accumulate(last + 1 - length - before).clip(min=0) + before
    after = len(program) - before[::-1] - length
    return np.minimum(firsts, after)


def _extract_program(program: Program, chosen: Ints) -> Program:
    """The program of the chosen instructions, with the forms and tensors that they use."""
    taken = np.isin(program.cells.instruction, chosen)
    forms, form_ids = np.unique(program.form_ids[chosen], return_inverse=True)
    tensors, numbers = np.unique(program.tensors[taken], return_inverse=True)
    nothing = np.zeros(0, dtype=np.int64)
    return replace(
        program,
        forms=tuple(program.forms[number] for number in forms.tolist()),
        form_ids=form_ids.reshape(-1),
        lines=program.lines[chosen],
        cores=program.cores[chosen],
        tensor_sites=program.tensor_sites[tensors],
        tensors=numbers.reshape(-1),
        offsets=program.offsets[taken],
        inputs=(),
        outputs=(),
        constants={},
        iterations=Iterations(np.zeros(len(chosen), dtype=np.int64), nothing, nothing, nothing),
    )
