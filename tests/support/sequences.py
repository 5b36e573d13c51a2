"""Learnt sequences to test with."""

from __future__ import annotations

from typing import Any

from state.model import LearntSequence, Leg, Step, Tags, digest_of

SOURCE = b"a kernel of another run"


def step(technique: str = "hoist", site: str = "a out of i", **fields: Any) -> Step:
    return Step(**{"technique": technique, "site": site, "title": f"{technique} {site}"} | fields)


def tags(*operators: str, **fields: Any) -> Tags:
    found = {"target": "trn2", "operators": operators or ("nc_matmul",), "dtypes": ("float32",)}
    return Tags(**found | {"extents": (10, 8)} | fields)


def sequence(
    run: str = "donor", speedup: float = 2.0, of: Tags | None = None, **fields: Any
) -> LearntSequence:
    legs = (Leg(source=digest_of(SOURCE), steps=(step(),), speedup=speedup),)
    found = {"run": run, "run_seq": 7, "problem": "p", "tags": of or tags(), "legs": legs, "speedup": speedup}
    return LearntSequence(**found | {"arguments": ([[256, 1024], "float32"],)} | fields)
