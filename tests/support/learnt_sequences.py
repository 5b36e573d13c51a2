"""Learnt sequences, experiences and techniques to test with."""

from __future__ import annotations

from typing import Any

from state.model import (
    ExperienceContext,
    ExperienceKind,
    LearntExperience,
    LearntSequence,
    LearntTechnique,
    ProblemTags,
    RewriteStep,
    SequenceLeg,
    TechniqueCredit,
    digest_of,
)

SOURCE = b"a kernel of another run"


def rewrite_step(technique: str = "hoist", site: str = "a out of i", **fields: Any) -> RewriteStep:
    return RewriteStep(**{"technique": technique, "site": site, "title": f"{technique} {site}"} | fields)


def problem_tags(*operators: str, **fields: Any) -> ProblemTags:
    found = {"target": "trn2", "operators": operators or ("nc_matmul",), "dtypes": ("float32",)}
    return ProblemTags(**found | {"extents": (10, 8)} | fields)


def learnt_sequence(
    run: str = "donor", speedup: float = 2.0, of: ProblemTags | None = None, **fields: Any
) -> LearntSequence:
    legs = (SequenceLeg(source=digest_of(SOURCE), steps=(rewrite_step(),), speedup=speedup),)
    found = {
        "run": run,
        "run_seq": 7,
        "problem": "p",
        "tags": of or problem_tags(),
        "legs": legs,
        "speedup": speedup,
    }
    return LearntSequence(**found | {"arguments": ([[256, 1024], "float32"],)} | fields)


def learnt_technique(
    name: str = "new:pack_heads", of: ProblemTags | None = None, **fields: Any
) -> LearntTechnique:
    found = {"title": "Pack heads", "description": "Put two heads on one tile.", "run": "donor", "run_seq": 9}
    credit = TechniqueCredit(tries=4, gains=2, log_gain=0.8)
    known = {
        "technique": name,
        "tags": of or problem_tags(),
        "model": "local/m",
        "problem": "p",
        "credit": credit,
    }
    return LearntTechnique(**found | known | fields)


def experience_context(of: ProblemTags | None = None, **fields: Any) -> ExperienceContext:
    found = {"kind": ExperienceKind.POSITIVE, "technique": "hoist", "speedup": 2.0, "predicted": True}
    return ExperienceContext(
        **{"tags": of or problem_tags(), "toolchain": "sim 1", "problem": "p"} | found | fields
    )


def learnt_experience(
    origin: str = "donor", of: ProblemTags | None = None, **fields: Any
) -> LearntExperience:
    """Return an experience of a run; fields of what it is about may be given beside its own."""
    own = {name: fields.pop(name) for name in tuple(fields) if name in LearntExperience.model_fields}
    found = {"slow": digest_of(SOURCE), "fast": None, "summary": f"what {origin} found"}
    return LearntExperience(**{"origin": origin, "about": experience_context(of, **fields)} | found | own)


def imported_experience(number: int, **fields: Any) -> LearntExperience:
    """Return an experience of a file, another one for each number."""
    known = {"imported": True, "kind": None, "technique": "", "speedup": None, "predicted": None}
    return learnt_experience("rewrites.json", **known | {"summary": f"advice {number}"} | fields)
