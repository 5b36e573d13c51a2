"""Runs in the pool's processes: pure functions from JSON to JSON, so that LibCST stays out of the event loop.

Every answer is either `{"ok": ...}` or `{"error": {"code", "message"}}`; the same request always gets the
same bytes.
"""

from __future__ import annotations

import ast
import gc
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple
from random import Random
from typing import Any

from nki_sim import targets
from targets.nki.rewrites.estimate import estimate_kernel
from targets.nki.rewrites.explore import RewrittenKernel, check_rewrite, explore_rewrites, refuse_faults
from targets.nki.rewrites.inlining import canonicalize_kernel
from targets.nki.rewrites.kept_tiles import keep_tiles
from targets.nki.rewrites.kernel_ir import ArrayArgument, Kernel, KernelArgument
from targets.nki.rewrites.memory_fit import fit_tiles
from targets.nki.rewrites.proxy_problem import arguments_at, count_instructions, find_proxy_problem
from targets.nki.rewrites.random_walk import RandomStep, walk_randomly
from targets.nki.rewrites.rank import RankingEvidence, expected_log_speedup, rank_rewrites, select_rewrites
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.rounding import estimate_rounding
from targets.nki.rewrites.sequence_replay import follow_sequence, replay_sequence
from targets.nki.rewrites.shortened_loops import ShortenedDimension, find_shortening, shorten_loops
from targets.nki.rewrites.source_form import describe_form
from targets.nki.rewrites.source_simplification import simplify_source
from targets.nki.rewrites.source_tree import SourceError
from targets.nki.rewrites.transform import RewriteRefused, Transform
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS, list_transforms

MAX_REASONS = 8
COLLECT_EVERY = 200_000
"""Objects that a job creates between garbage collections."""
_PERCENT_SUFFIX = "_active_time_percent"


class _JobError(RewriteRefused):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def answer_request(request: str) -> str:
    """Answer one request `{"job": ..., ...}`."""
    values = json.loads(request)
    try:
        with _defer_collection():
            made = perform_job(values)
    except _JobError as failure:
        return json.dumps({"error": {"code": failure.code, "message": str(failure)}})
    except SourceError as error:
        return json.dumps({"error": {"code": "unreadable_kernel", "message": str(error)}})
    except RewriteRefused as refusal:
        return json.dumps({"error": {"code": "does_not_apply", "message": str(refusal)}})
    return json.dumps({"ok": made}, sort_keys=True)


def perform_job(values: dict[str, Any]) -> dict[str, Any]:
    """Do one job in this process."""
    return _JOB_HANDLERS[values["job"]](values)


@contextmanager
def _defer_collection() -> Iterator[None]:
    """A job creates many small objects and keeps most of them, so collecting garbage finds little."""
    usual = gc.get_threshold()
    gc.set_threshold(COLLECT_EVERY, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _parse_evidence(values: dict[str, Any]) -> RankingEvidence:
    return RankingEvidence(
        bottlenecks=_find_bottlenecks(values["bottleneck"], values["profile"]),
        tried=frozenset((technique, place) for technique, place in values["tried"]),
        credits=_parse_credits(values),
    )


def _parse_credits(values: dict[str, Any]) -> dict[str, tuple[int, float]]:
    return {name: (int(tries), float(gain)) for name, (tries, gain) in values["credits"].items()}


def _rank_job(values: dict[str, Any]) -> dict[str, Any]:
    """The plans of one parent: `count` rewrites with their sites, and why others do not apply."""
    target = targets.load(values["target"])
    ranking, refusals = rank_rewrites(
        values["source"],
        _parse_arguments(values),
        target,
        _parse_evidence(values),
        transforms=_allowed_transforms(values),
    )
    picked = select_rewrites(ranking, values["count"], values["seed"])
    siblings = {
        item.site_and_choice: [dict(other.choice) for other in ranking if _is_sibling(item, other)]
        for item in picked
    }
    plans = [
        asdict(item) | {"place": item.site_and_choice, "choices": siblings[item.site_and_choice]}
        for item in picked
    ]
    return {"plans": plans, "refusals": refusals[:MAX_REASONS]}


def _find_bottlenecks(named: str | None, profile: dict[str, float]) -> frozenset[str]:
    """The profile's class and its busiest engine, `tensor` to `dma`."""
    busy = {
        name.removesuffix(_PERCENT_SUFFIX).removesuffix("_engine"): value for name, value in profile.items()
    }
    busiest = max(sorted(busy), key=busy.__getitem__, default=None)
    return frozenset(name for name in (named, busiest) if name is not None)


def _is_sibling(item: Any, other: Any) -> bool:
    return bool(item is not other and (item.technique, item.site) == (other.technique, other.site))


def _expand_job(values: dict[str, Any]) -> dict[str, Any]:
    """All rewrites of a kernel, each carried out, with its expected value and size."""
    target = targets.load(values["target"])
    kernel = read_kernel(values["source"], _parse_arguments(values), target)
    children, refusals = explore_rewrites(
        kernel, _parse_arguments(values), target, transforms=_allowed_transforms(values), keep_going=True
    )
    before = estimate_kernel(kernel, target)
    evidence = RankingEvidence(bottlenecks=frozenset({before.busiest_engine}), credits=_parse_credits(values))
    moves = [
        {
            **_describe_step(child),
            "source": child.source,
            "value": expected_log_speedup(child, before, evidence),
            "instructions": count_instructions(child.kernel),
        }
        for child in children
    ]
    return {"moves": moves, "reasons": refusals[:MAX_REASONS]}


def _proxy_job(values: dict[str, Any]) -> dict[str, Any]:
    """The dimensions to predict at; smaller ones if the problem has too many instructions."""
    from seeds import ProblemSpec  # not at the top: most jobs need none, and it loads much

    spec, dims, most = ProblemSpec.model_validate(values["spec"]), values["dims"], values["most"]
    target = targets.load(values["target"])
    found = find_proxy_problem(values["source"], spec, dims, target, most)
    shortened: tuple[ShortenedDimension, ...] = ()
    if found.dims is None and found.instructions > most:
        shortened = find_shortening(
            read_kernel(values["source"], arguments_at(spec, dims), target), most, target
        )
    return {
        "dims": found.dims,
        "instructions": found.instructions,
        "shortened": [astuple(one) for one in shortened],
    }


def _shorten_job(values: dict[str, Any]) -> dict[str, Any]:
    """A kernel with fewer iterations along dimensions of its arguments, and along which of them, or None.

    `code` is by what the judge identifies the kernel with all iterations.
    """
    from targets.nki.judge.normalise import code_digest  # not at the top: it loads the models of events

    target = targets.load(values["target"])
    dimensions = [ShortenedDimension(*one) for one in values["dimensions"]]
    try:
        kernel = read_kernel(values["source"], _parse_arrays(values["arguments"]), target)
    except SourceError:
        return {"shortened": None}
    made = shorten_loops(kernel, dimensions, target)
    return {"shortened": made and asdict(made), "code": code_digest(values["source"].encode())}


def _combine_job(values: dict[str, Any]) -> dict[str, Any]:
    """The sources after each further one of several rewrites, without those that no longer apply."""
    source, done, made = values["source"], [], []
    for number, step in enumerate(values["steps"]):
        try:
            with refuse_faults(keep_going=True):
                source = _rewrite_source(source, step, values)
        except (RewriteRefused, SourceError):
            continue
        done.append(number)
        made.append({"steps": list(done), "source": source})
    return {"made": made}


def _retrace_job(values: dict[str, Any]) -> dict[str, Any]:
    """The result of a sequence of another run here: the steps that apply, and the source after each."""
    target = targets.load(values["target"])
    allowed = {transform.id for transform in _allowed_transforms(values)}
    past = (
        step if step is not None and step.technique in allowed else None
        for step in follow_sequence(values["legs"], _parse_arrays(values["theirs"]), target)
    )
    made = replay_sequence(values["source"], _parse_arguments(values), target, past)
    return {
        "made": [
            {
                "number": one.number,
                "technique": one.technique,
                "site": one.site,
                "title": one.title,
                "choice": dict(one.choice),
                "source": one.source,
                "instructions": count_instructions(one.kernel),
            }
            for one in made
        ]
    }


def _rounding_job(values: dict[str, Any]) -> dict[str, Any]:
    """The relative errors that the split products of these sources lead to."""
    arguments, target = _parse_arguments(values), targets.load(values["target"])
    kernels = (read_kernel(source, arguments, target) for source in values["sources"])
    return {"rounding": list(map(estimate_rounding, kernels))}


def _random_walk_job(values: dict[str, Any]) -> dict[str, Any]:
    """The source after a random sequence of rewrites; its length and steps are drawn by a seed."""
    random = Random(values["seed"])  # noqa: S311  a search, no secret
    steps = random.randint(1, values["longest"])
    target = targets.load(values["target"])
    made = walk_randomly(
        values["source"],
        _parse_arguments(values),
        target,
        steps,
        random,
        transforms=_allowed_transforms(values),
    )
    told = list(map(_describe_step, made))
    return {"steps": told, "source": made[-1].source if made else values["source"]}


def _fit_job(values: dict[str, Any]) -> dict[str, Any]:
    """The source after steps for kernels whose tiles do not fit, and these steps."""
    kernel, target = _read_source(values)
    return _describe_steps(values, fit_tiles(kernel, kernel.arguments, target))


def _keep_job(values: dict[str, Any]) -> dict[str, Any]:
    """The source after steps that keep tiles on chip, and these steps."""
    kernel, target = _read_source(values)
    kept = keep_tiles(kernel, kernel.arguments, target, computed=values["computed"])
    return _describe_steps(values, kept)


def _read_source(values: dict[str, Any]) -> tuple[Kernel, targets.Target]:
    target = targets.load(values["target"])
    return read_kernel(values["source"], _parse_arguments(values), target), target


def _describe_steps(values: dict[str, Any], made: Sequence[RewrittenKernel]) -> dict[str, Any]:
    source = made[-1].source if made else values["source"]
    return {"steps": [_describe_step(one) for one in made], "source": source}


def _describe_step(one: RewrittenKernel | RandomStep) -> dict[str, Any]:
    return {
        "technique": one.transform.id,
        "site": one.site,
        "title": one.transform.render_title(one.site, one.choice),
        "choice": dict(one.choice),
    }


def _replay_job(values: dict[str, Any]) -> dict[str, Any]:
    """The source after a whole sequence of rewrites."""
    source = values["source"]
    for step in values["steps"]:
        source = _rewrite_source(source, step, values)
    return {"source": source}


def _simplify_job(values: dict[str, Any]) -> dict[str, Any]:
    """The source after passes that simplify its text, and those that changed it."""
    source, passes = simplify_source(values["source"], values["passes"])
    return {"source": source, "passes": passes}


def _form_job(values: dict[str, Any]) -> dict[str, Any]:
    """What stands in the way of rewrites in a kernel; empty if it is in canonical form."""
    found = describe_form(values["source"], _parse_arguments(values), targets.load(values["target"]))
    return {"obstacles": list(found.obstacles), "readable": found.readable}


def _apply_job(values: dict[str, Any]) -> dict[str, Any]:
    """The source after one rewrite."""
    source = _rewrite_source(values["source"], values, values)
    transform = TRANSFORMS[values["technique"]]
    return {
        "source": source,
        "note": transform.render_title(values["site"], values["choice"]),
        "keeps": transform.keeps,
    }


def _rewrite_source(source: str, step: dict[str, Any], values: dict[str, Any]) -> str:
    """The source after a rewrite; its kernel must pass the checks of `explore_rewrites`."""
    transform = TRANSFORMS.get(step["technique"])
    if transform is None:
        raise _JobError("unknown_technique", f"no built-in transformation is called {step['technique']!r}")
    if transform not in _allowed_transforms(values):
        why = "does not say `mx = true`" if transform.rounds_products else "allows less error (`rel_l2`)"
        raise _JobError("does_not_apply", f"{transform.id}: the problem {why}")
    target = targets.load(values["target"])
    kernel = canonicalize_kernel(read_kernel(source, _parse_arguments(values), target), target)
    place = transform.find_sites(kernel, target).get(step["site"])
    if place is None:
        raise _JobError("does_not_apply", f"{transform.id}: the kernel has no site {step['site']!r}")
    new = transform.apply(kernel, target, place, step["choice"])
    _check_changed(source, new)
    check_rewrite(kernel, new, _parse_arguments(values), target)
    return new


def _allowed_transforms(values: dict[str, Any]) -> tuple[Transform[Any], ...]:
    return list_transforms(mx=values.get("mx", False), rel_l2=values.get("rel_l2", 1.0))


def _check_changed(before: str, after: str) -> None:
    try:
        same = ast.dump(ast.parse(before)) == ast.dump(ast.parse(after))
    except SyntaxError as error:
        raise _JobError("does_not_parse", f"the rewritten kernel does not parse: {error.msg}") from error
    if same:
        raise _JobError("no_change", "the rewrite changes nothing")


def _parse_arguments(values: dict[str, Any]) -> list[KernelArgument]:
    return _parse_arrays(values["arguments"])


def _parse_arrays(told: list[Any]) -> list[KernelArgument]:
    """Arrays are given as pairs of shape and type; all else are numbers."""
    return [ArrayArgument(tuple(item[0]), item[1]) if isinstance(item, list) else item for item in told]


_JOB_HANDLERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "rank": _rank_job,
    "apply": _apply_job,
    "expand": _expand_job,
    "fit": _fit_job,
    "keep": _keep_job,
    "form": _form_job,
    "proxy": _proxy_job,
    "shorten": _shorten_job,
    "combine": _combine_job,
    "replay": _replay_job,
    "retrace": _retrace_job,
    "rounding": _rounding_job,
    "random_walk": _random_walk_job,
    "simplify": _simplify_job,
}
