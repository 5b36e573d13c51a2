"""What NKI adds to the tools of models: its rules as texts, and the rewrite engine as an editor.

The engine runs in a process of its own; each answer follows from the kernel and the problem alone.
"""

from __future__ import annotations

import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from agent_core.process_pool import ProcessPool
from agent_core.roles.worker_pool import ask_worker
from agent_core.tools.rewriting import AppliedRewrite, KernelPlace, OfferedRewrite, OfferedRewrites
from nki_sim.frontend import source_faults
from nki_sim.rulebook import collect_rules
from state.model import ErrorInfo
from targets.base import RuleText, SearchWords
from targets.nki.rewrites import answer_in_worker
from targets.nki.rewrites.prediction_scale import problem_job_fields


@cache
def list_rule_texts() -> tuple[RuleText, ...]:
    """Return the simulator's rules, sorted by code."""
    return tuple(RuleText(rule.code, rule.says, rule.fix) for rule in collect_rules())


def list_source_faults(source: str) -> list[ErrorInfo]:
    """Return the names and arguments of the NKI namespace that a kernel has wrong."""
    return [
        ErrorInfo(code=one.code, message=one.message, line=one.line, hint=one.hint or None)
        for one in source_faults.list_source_faults(source)
    ]


def read_search_words() -> SearchWords:
    """Return the words by which people search the documentation."""
    found = tomllib.loads((Path(__file__).parent / "search_words.toml").read_text())
    return SearchWords(tuple(frozenset(group) for group in found["groups"]), found["called"])


class EngineRewriter:
    """Offers and carries out the engine's rewrites; implements `agent_core.tools.rewriting.Rewriter`."""

    def __init__(self) -> None:
        self._pool = ProcessPool(answer_in_worker, workers=1)

    async def find_obstacles(self, source: str, place: KernelPlace) -> tuple[str, ...]:
        """Return what stands in the way of rewrites in a kernel.

        Raises:
            RoleError: the engine failed.
        """
        return tuple((await self._ask({"job": "form", "source": source}, place))["obstacles"])

    async def list_rewrites(self, source: str, place: KernelPlace) -> OfferedRewrites:
        """Return all rewrites that apply to a kernel, the most promising first.

        Raises:
            RoleError: the kernel cannot be read (`unreadable_kernel`), or the engine failed.
        """
        found = await self._ask({"job": "expand", "source": source, "credits": {}}, place)
        offered = [
            OfferedRewrite(
                technique=move["technique"],
                site=move["site"],
                title=move["title"],
                params=move["choice"],
                value=move["value"],
            )
            for move in found["moves"]
        ]
        ranked = sorted(offered, key=lambda one: (-one.value, one.id, one.title))
        return OfferedRewrites(rewrites=tuple(ranked), refusals=tuple(found["reasons"]))

    async def apply_rewrite(self, source: str, rewrite: OfferedRewrite, place: KernelPlace) -> AppliedRewrite:
        """Return a kernel after one rewrite.

        Raises:
            RoleError: it does not apply there (`does_not_apply`, `unknown_technique`, `no_change`), or the
                engine failed.
        """
        job = {
            "job": "apply",
            "source": source,
            "technique": rewrite.technique,
            "site": rewrite.site,
            "choice": rewrite.params,
        }
        made = await self._ask(job, place)
        return AppliedRewrite(source=made["source"], title=made["note"], keeps=made["keeps"])

    async def aclose(self) -> None:
        """End the engine's process."""
        await self._pool.aclose()

    async def _ask(self, job: dict[str, Any], place: KernelPlace) -> dict[str, Any]:
        whole = {**job, **problem_job_fields(place.spec, place.size, place.target)}
        return await ask_worker(self._pool, json.dumps(whole, sort_keys=True), "the rewrite engine")


def create() -> EngineRewriter:
    """Return a new rewriter; its process starts with its first job."""
    return EngineRewriter()
