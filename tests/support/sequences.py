"""Learnt sequences, experiences and techniques to test with."""

from __future__ import annotations

from typing import Any

from state.model import (
    About,
    Credit,
    ExperienceKind,
    LearntExperience,
    LearntSequence,
    LearntTechnique,
    Leg,
    Step,
    Tags,
    digest_of,
)

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


def technique(name: str = "new:pack_heads", of: Tags | None = None, **fields: Any) -> LearntTechnique:
    found = {"title": "Pack heads", "description": "Put two heads on one tile.", "run": "donor", "run_seq": 9}
    credit = Credit(tries=4, gains=2, log_gain=0.8)
    known = {"technique": name, "tags": of or tags(), "model": "local/m", "problem": "p", "credit": credit}
    return LearntTechnique(**found | known | fields)


def about(of: Tags | None = None, **fields: Any) -> About:
    found = {"kind": ExperienceKind.POSITIVE, "technique": "hoist", "speedup": 2.0, "predicted": True}
    return About(**{"tags": of or tags(), "toolchain": "sim 1", "problem": "p"} | found | fields)


def experience(origin: str = "donor", of: Tags | None = None, **fields: Any) -> LearntExperience:
    """Return an experience of a run; fields of what it is about may be given beside its own."""
    own = {name: fields.pop(name) for name in tuple(fields) if name in LearntExperience.model_fields}
    found = {"slow": digest_of(SOURCE), "fast": None, "summary": f"what {origin} found"}
    return LearntExperience(**{"origin": origin, "about": about(of, **fields)} | found | own)


def imported(number: int, **fields: Any) -> LearntExperience:
    """Return an experience of a file, another one for each number."""
    known = {"imported": True, "kind": None, "technique": "", "speedup": None, "predicted": None}
    return experience("rewrites.json", **known | {"summary": f"advice {number}"} | fields)
