"""Raises the kernels that others wrote before rewrites are tried on them.

A kernel is raised once, as the first step of every sequence that begins with it. The step names the raised
kernel's blob, so that carrying the sequence out again needs no second tracing. A raised kernel counts only
if tracing it gives the program of the original, and about its predicted latency; otherwise the original
stays, and the look-ahead's reasons say why. A kernel that is ported from the legacy namespace is held to
neither, because its own compiler moves and joins instructions: the judge alone says whether what came of it
is right.

Raised or not, tiles that the kernel overwrites are then separated, because the other rewrites ask what a tile
holds, and tiles that it uses by parts of their rows are split, because `stack` asks that too. First
iterations join their loops, and loops that hand data on to one another become one, because rewrites of a loop
see nothing outside it, if that costs nothing. If tiles do not fit on chip after that, loops are fused one
pair at a time until they do, or put in an order in which less comes back. These steps gain little or nothing
by themselves, so a search would not come to them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agent_core.process_pool import ProcessPool
from agent_core.roles import LookAheadAnswer, Predict, PredictionsEndedError, ReadBlob
from agent_core.roles.worker_pool import ask_worker
from state.model import RewriteStep, digest_of
from targets.base import KernelReading
from targets.nki.rewrites import answer_in_worker
from targets.nki.rewrites.prediction_scale import RunEngineJob, problem_job_fields

if TYPE_CHECKING:
    from agent_core.effects import LookAheadRequest
    from seeds import ProblemSpec
    from state.model import ErrorInfo, PredictedLatency

TECHNIQUE = "raise"
CLEAR_TILES = (
    RewriteStep(technique="separate", site="all tiles", title="separate all tiles"),
    RewriteStep(technique="split_rows", site="all tiles", title="split_rows all tiles"),
    RewriteStep(technique="unpeel", site="all loops", title="unpeel all loops"),
    RewriteStep(
        technique="fuse_loops",
        site="all loops",
        title="fuse_loops all loops (when in the first iteration)",
        choice={"when": "in the first iteration"},
    ),
    RewriteStep(technique="fuse_loops", site="all loops", title="fuse_loops all loops"),
)
"""The steps after the first, each where it applies and costs nothing."""
OWN_AUTHOR = "builtin"
"""Author of the kernels that the rewrites made; they are raised already, as far as they can be."""
MAX_LATENCY_CHANGE = 0.01
"""Relative difference in predicted latency that a raised kernel may have."""


@dataclass(frozen=True, slots=True)
class RaisedParent:
    """The kernel to look ahead from, after `steps`; `reason` says why it was not raised.

    `raised` is the raised kernel before its tiles became clear, empty if it was not raised. `source` is
    predicted to take `latency_ratio` times as long as the original. `ported` says whether that was written in
    the legacy namespace.
    """

    source: str
    steps: tuple[RewriteStep, ...] = ()
    raised: str = ""
    reason: str = ""
    latency_ratio: float = 1.0
    ported: bool = False

    def complete(self, answer: LookAheadAnswer) -> LookAheadAnswer:
        """Return an answer whose sequences begin with the parent as it was before."""
        variants = answer.variants
        if self.reason:
            variants = variants.model_copy(update={"reasons": (self.reason, *variants.reasons)})
        if not self.steps:
            return replace(answer, variants=variants)
        found = tuple(one.model_copy(update={"steps": (*self.steps, *one.steps)}) for one in variants.found)
        raised = self.raised.encode()
        return replace(
            answer,
            variants=variants.model_copy(update={"found": found}),
            sources={**answer.sources, **({digest_of(raised): raised} if raised else {})},
        )


async def raise_parent(
    request: LookAheadRequest, source: str, predict: Predict, ask: RunEngineJob, shapes: dict[str, Any]
) -> RaisedParent:
    """Return the request's parent in canonical form, if it is somebody else's and not canonical already.

    Raises:
        RoleError: the pool or the evaluator failed.
    """
    if request.parent.author == OWN_AUTHOR:
        return RaisedParent(source)
    return await _raise_kernel(source, predict, ask, shapes=shapes)


async def read_original(
    source: str, predict: Predict, spec: ProblemSpec, size: str, target: str
) -> KernelReading:
    """Return what the rewrites cannot read of somebody's kernel, also after raising it.

    Raises:
        RoleError: the engine failed.
        remote.RemoteError: nothing can be predicted here.
    """
    shapes = problem_job_fields(spec, size, target)
    pool = ProcessPool(answer_in_worker, workers=1)  # a text may keep the engine busy beyond a deadline

    async def ask(job: dict[str, Any]) -> dict[str, Any]:
        return await ask_worker(pool, json.dumps(job, sort_keys=True), "the rewrite engine")

    errors: list[ErrorInfo | None] = []

    async def observe(
        sources: Sequence[str], dims: Mapping[str, int] | None = None, *, canonical: bool = False
    ) -> Sequence[PredictedLatency]:
        found = await predict(sources, dims, canonical=canonical)
        errors.extend(one.error for one in found)
        return found

    try:
        raised = await _raise_kernel(source, observe, ask, shapes=shapes)
        if errors and errors[0] is not None:
            return KernelReading(readable=False, error=errors[0])
        form = await ask({"job": "form", "source": raised.source, **shapes})
    finally:
        await pool.aclose()
    others = (told for told in dict.fromkeys(form["obstacles"]) if told not in raised.reason)
    reasons = (*([raised.reason] if raised.reason else []), *others)
    return KernelReading(readable=form["readable"], reasons=reasons if form["obstacles"] else ())


async def _raise_kernel(
    source: str, predict: Predict, ask: RunEngineJob, *, shapes: dict[str, Any]
) -> RaisedParent:
    """The kernel in canonical form, if it is not in that form already, and with clear tiles."""
    form = await ask({"job": "form", "source": source, **shapes})
    made, made_ms = RaisedParent(source), None
    if form["obstacles"]:
        made, made_ms = await _write_canonical(source, form["obstacles"], predict, ask=ask, shapes=shapes)
    if not (made.raised or form["readable"]):
        return made
    return await _clear_tiles(made, made_ms, predict, ask=ask, shapes=shapes)


async def _write_canonical(
    source: str, obstacles: Sequence[str], predict: Predict, *, ask: RunEngineJob, shapes: dict[str, Any]
) -> tuple[RaisedParent, float | None]:
    """The kernel in canonical form, or as it is, with its predicted latency in ms if that is known."""
    (before,) = await predict([source], canonical=True)
    if before.canonical is None or before.canonical.source is None:
        why = before.canonical.reason if before.canonical is not None else _error_text(before)
        return _kept(source, why or "the evaluator knows no canonical form"), before.latency_ms
    raised, ported = before.canonical.source, before.canonical.ported
    (after,) = await predict([raised], canonical=not ported)
    why = _find_difference(before, after, ported=ported)
    if not why:
        left = (await ask({"job": "form", "source": raised, **shapes}))["obstacles"]
        clearer = len(left) < len(obstacles) or ported
        why = "" if clearer else f"the raised kernel is no clearer: {left[0]}"
    if why:
        return _kept(source, why), before.latency_ms
    assert before.latency_ms is not None
    assert after.latency_ms is not None
    ratio = after.latency_ms / before.latency_ms
    step = RewriteStep(
        technique=TECHNIQUE,
        site="kernel",
        title=_describe_step(obstacles[0], ratio, ported=ported),
        choice={"source": digest_of(raised.encode())},
        speedup=round(1 / ratio, 6) if ported else 1.0,
    )
    parent = RaisedParent(raised, (step,), raised, latency_ratio=ratio, ported=ported)
    return parent, after.latency_ms


async def _clear_tiles(
    parent: RaisedParent,
    latency_ms: float | None,
    predict: Predict,
    *,
    ask: RunEngineJob,
    shapes: dict[str, Any],
) -> RaisedParent:
    """The kernel after those of the further steps that apply and cost nothing."""
    steps, source, known = list(parent.steps), parent.source, [latency_ms]

    async def accept(rewritten: str) -> float | None:
        """Take a rewritten kernel unless it is slower; return its latency over that before."""
        nonlocal source
        if known == [None]:
            (before,) = await predict([source])
            known.append(before.latency_ms)
        before_ms = known[-1]
        after_ms = (await predict([rewritten]))[0].latency_ms if before_ms is not None else None
        if before_ms is None or after_ms is None or after_ms > before_ms * (1 + MAX_LATENCY_CHANGE):
            return None
        source = rewritten
        known.append(after_ms)
        return after_ms / before_ms

    with suppress(PredictionsEndedError):  # What is left of the time is the search's.
        for tidy in CLEAR_TILES:
            told = [tidy.model_dump(mode="json")]
            made = (await ask({"job": "combine", "source": source, "steps": told, **shapes}))["made"]
            if made and await accept(made[-1]["source"]) is not None:
                steps.append(tidy)
        for job in ({"job": "fit"}, {"job": "keep", "computed": parent.ported}):
            made = await ask({**job, "source": source, **shapes})
            change = await accept(made["source"]) if made["steps"] else None
            if change is not None:
                gain = round(change ** (-1 / len(made["steps"])), 6)
                steps += [RewriteStep(**told, speedup=gain) for told in made["steps"]]
    found = [ms for ms in known if ms is not None]
    ratio = found[-1] / found[0] if found else 1.0
    return replace(parent, source=source, steps=tuple(steps), latency_ratio=parent.latency_ratio * ratio)


def _describe_step(obstacle: str, ratio: float, *, ported: bool) -> str:
    if not ported:
        return f"raise the kernel to its canonical form ({obstacle})"
    return f"port the kernel to nki, in canonical form (predicted {ratio - 1:+.1%})"


def _kept(source: str, why: str) -> RaisedParent:
    return RaisedParent(source, reason=f"the kernel was not raised: {why}")


def _error_text(one: PredictedLatency) -> str:
    return one.error.message if one.error is not None else ""


def _find_difference(before: PredictedLatency, after: PredictedLatency, *, ported: bool) -> str:
    """Why a raised kernel does not stand for the original; empty if it does."""
    if not ported:
        if after.canonical is None or before.canonical is None:
            return f"the raised kernel cannot be traced: {_error_text(after)}"
        if after.canonical.program != before.canonical.program:
            return "the raised kernel issues another program"
    if before.latency_ms is None or after.latency_ms is None:
        return f"no latency is predicted: {_error_text(before) or _error_text(after)}"
    change = after.latency_ms / before.latency_ms - 1
    if abs(change) > MAX_LATENCY_CHANGE and not ported:
        return f"the raised kernel's predicted latency differs by {change:+.1%}"
    return ""


def split_raise(
    source: str, steps: Sequence[RewriteStep], read: ReadBlob
) -> tuple[str, Sequence[RewriteStep]]:
    """The kernel that the rewrites of a sequence start from, and these rewrites.

    Raises:
        BlobMissing: the raised kernel is gone.
    """
    if steps and steps[0].technique == TECHNIQUE:
        return read(str(steps[0].choice["source"])).decode(), steps[1:]
    return source, steps
